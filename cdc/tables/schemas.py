"""Relations and catalog descriptions → schema versions, what differs, and their encoders.

ALTER TABLE … ADD COLUMN with a default gives every row a value, ALTER COLUMN … TYPE a new one,
and neither is in the stream: what the log has of these rows is to be read again.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-NOTES
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import structlog

from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder
from cdc.events.fields import EventField, plan
from cdc.events.metadata import MessageEvents, TransactionMetadata
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules, key_signature, rekeyed
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import TableState, schema_record
from cdc.records.topics import data_topic
from cdc.settings import CaptureSettings
from cdc.tables.reads import TableReads
from cdc.wal.messages import Relation, ReplicaIdentity

log = structlog.get_logger()
Filled: TypeAlias = Callable[[int, Sequence[str]], Collection[str]]
"""In which of these columns of a table, by its OID, rows have values that nothing wrote."""

_SAME_TEXT: Final = {"text", "varchar"}
"""From one to the other a value stays what it is, if there is room."""


def altered_columns(before: TableSchema, after: TableSchema, filled: Filled) -> list[str]:
    """The columns of the later version in which rows may have values that no event has told."""
    if before.oid != after.oid:
        return []
    numbered = all(column.number is not None for column in (*before.columns, *after.columns))
    earlier = {(column.number if numbered else column.name): column for column in before.columns}
    new, altered = [], []
    for column in after.columns:
        was = earlier.get(column.number if numbered else column.name)
        if was is None:
            new.append(column.name)
        elif not _keeps_values(was, column):
            altered.append(column.name)
    return [*altered, *sorted(filled(after.oid, new))] if new else altered


def _keeps_values(before: Column, after: Column) -> bool:
    """Whether the column's type, if it is another one, has left every value as it was."""
    if (before.type_oid, before.modifier) == (after.type_oid, after.modifier):
        return True
    if before.array != after.array:
        return False
    if {before.type, after.type} <= _SAME_TEXT:
        return after.modifier == -1 or 0 <= before.modifier <= after.modifier
    if before.type == after.type == "numeric":
        room, had = after.precision_scale, before.precision_scale
        return room is None or (had is not None and had[0] <= room[0] and had[1] == room[1])
    return False


def _key(columns: Iterable[Column]) -> list[int | str]:
    """The columns of the key in its order: by their numbers, where these are known."""
    keyed = ((column.key, column.number or column.name) for column in columns)
    return [column for ordinal, column in sorted(each for each in keyed if each[0] is not None)]


class SchemaVersions:
    """Relations and descriptions → the table's schema now, and what the log gets if it is new.

    A version is compared by its signature, so that asking the catalog what a Relation message
    doesn't say is needed only where the signature is new.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        stored: Iterable[TableSchema],
        rules: EventRules,
        reads: TableReads,
        filled: Filled,
    ) -> None:
        """``stored`` are those that the log has."""
        self._settings = settings
        self._rules = rules
        self._reads = reads
        self._filled = filled
        self._newest: dict[TableName, TableSchema] = {}
        self._by_signature: dict[tuple[TableName, str], TableSchema] = {}
        for schema in sorted(stored, key=lambda schema: schema.version):
            self._set(schema)

    def newest(self, table: TableName) -> TableSchema | None:
        """The newest version, if there is one."""
        return self._newest.get(table)

    def has_key(self, table: TableName) -> bool:
        """Whether its newest rows in the log are told apart by a key."""
        schema = self.newest(table)
        return schema is None or bool(schema.key)

    def described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        """The schema of a table as the catalog has it.

        Derived tables need its record, also of a table without rows.
        """
        return self._version(
            table.name,
            table.oid,
            table.signature,
            table.replica_identity,
            since,
            lambda: table.columns,
            is_new=not self.is_newest(table) or bool(self.made_again(table)),
        )

    def check(self, table: TableDescription) -> None:
        """Raise TableRefusedError where no events can be made of a table as it is described."""
        plan(
            TableSchema(
                namespace=table.name.namespace,
                table=table.name.name,
                version=1,
                since="",
                topic=data_topic(self._settings.topic_prefix, table.name),
                replica_identity=table.replica_identity,
                columns=rekeyed(table.columns, table.name, table.replica_identity, self._rules),
                signature=table.signature,
                oid=table.oid,
            ),
            self._rules,
        )

    def is_newest(self, table: TableDescription) -> bool:
        """Whether the newest version looks like the table as it is described, and has its key.

        A signature doesn't tell the key's order, nor under REPLICA IDENTITY FULL its columns.
        """
        before = self.newest(table.name)
        signature = key_signature(table.signature, table.name, self._rules)
        if before is None or (before.oid, before.signature) != (table.oid, signature):
            return False
        now = rekeyed(table.columns, table.name, table.replica_identity, self._rules)
        return _key(before.columns) == _key(now)

    def is_outdated(self, table: TableDescription | None, at: Position) -> bool:
        """Whether the newest version is another one, and of later than a description of ``at``."""
        if table is None or (before := self.newest(table.name)) is None:
            return False
        return at < Position.parse(before.since) and not self.is_newest(table)

    def made_again(self, table: TableDescription) -> list[str]:
        """The columns that have another number by now, though the table looks the same."""
        before = self.newest(table.name)
        if before is None or not self.is_newest(table):
            return []
        numbers = {column.name: column.number for column in before.columns}
        return [
            column.name
            for column in table.columns
            if None not in {column.number, numbers.get(column.name)}
            if column.number != numbers[column.name]
        ]

    def streamed(
        self, relation: Relation, since: Position, columns: Callable[[], tuple[Column, ...]]
    ) -> tuple[TableSchema, list[Record]]:
        """The schema of a table as the stream has it; ``columns`` asks for what it doesn't say."""
        return self._version(
            TableName(relation.namespace, relation.name),
            relation.oid,
            relation_signature(relation),
            relation.replica_identity,
            since,
            columns,
        )

    def _version(
        self,
        table: TableName,
        oid: int,
        signature: str,
        replica_identity: ReplicaIdentity,
        since: Position,
        columns: Callable[[], tuple[Column, ...]],
        *,
        is_new: bool = False,
    ) -> tuple[TableSchema, list[Record]]:
        """``is_new``: it is another version, though the newest one has its signature."""
        signature = key_signature(signature, table, self._rules)
        before = self.newest(table)
        schema = self._by_signature.get((table, signature))
        # Of what is streamed once more, from before the newest version, an older one may be right.
        is_older = before is not None and since < Position.parse(before.since)
        if schema is not None and (schema is before or is_older) and not is_new:
            return schema, []
        schema = TableSchema(
            namespace=table.namespace,
            table=table.name,
            version=before.version + 1 if before else 1,
            since=str(since),
            topic=data_topic(self._settings.topic_prefix, table),
            replica_identity=replica_identity,
            columns=rekeyed(columns(), table, replica_identity, self._rules),
            signature=signature,
            oid=oid,
        )
        self._set(schema)
        record = schema_record(self._settings.topic_prefix, schema)
        return schema, [record, *self._read_altered(before, schema)]

    def _set(self, schema: TableSchema) -> None:
        self._newest[schema.name] = self._by_signature[schema.name, schema.signature] = schema

    def _read_altered(self, before: TableSchema | None, schema: TableSchema) -> list[Record]:
        """Have rows read again whose values DDL has changed; returns what the log gets."""
        name = str(schema.name)
        if before is None or not self._settings.lossless or not self._settings.snapshots(name):
            return []
        altered = [
            column
            for column in altered_columns(before, schema, self._filled)
            if self._rules.columns.keeps(name, column)
        ]
        keys = _key(before.columns), _key(schema.columns)
        is_rekeyed = before.oid == schema.oid and all(keys) and keys[0] != keys[1]
        if not (altered or is_rekeyed):
            return []
        if name in self._settings.snapshot_select_statements:
            log.warning(
                "columns were altered, and rows from before aren't read again, which a SELECT of"
                " one's own gives",
                table=name,
                columns=altered,
                remedy=f"stop the daemon, and run millrace snapshot {name}",
            )
            return []
        in_key = {column.name for version in (before, schema) for column in version.key}
        replaces = is_rekeyed or not in_key.isdisjoint(altered)
        return self._reads.read_altered(schema.name, altered, replaces=replaces)


class EncoderRegistry:
    """Makes the encoders of rows, transactions and logical messages; asking changes nothing."""

    def __init__(
        self,
        settings: CaptureSettings,
        database: str,
        states: Mapping[TableName, TableState],
        rules: EventRules,
        pipeline: RecordPipeline,
        dead_letters: DeadLetters | None,
    ) -> None:
        self._prefix = settings.topic_prefix
        self._lossless = settings.lossless
        self._database = database
        self._states = states
        self._rules = rules
        self._log = LogContext(self._prefix, database, 1, compacted=False, run_id=str(uuid.uuid4()))
        self.pipeline = pipeline
        self.dead_letters = dead_letters
        self.transactions = (
            TransactionMetadata(rules, settings.transaction_topic)
            if rules.events.transaction_metadata
            else None
        )
        self.messages = MessageEvents(rules, self._log, blocks=self.transactions)

    def encoder(self, schema: TableSchema) -> Encoder:
        """The encoder of a table, in this version of its schema."""
        state = self._states[schema.name]
        compacted = state.cleanup == "compact"
        log = self._log._replace(partitions=state.partitions, compacted=compacted)
        # A row that an update moves to where all is read is in the log by its event alone.
        rules = self._rules.with_all_updates if state.is_being_completed else self._rules
        blocks, reselects = self.transactions, self._reselects(state)
        # A record that goes to another topic doesn't tell by that which table it is of.
        is_routed = self.pipeline.transform is not None and self._lossless
        if self.dead_letters is not None and (self.dead_letters.covers(schema) or is_routed):
            return GuardedEncoder(
                self.dead_letters,
                schema,
                rules,
                log,
                self.pipeline,
                blocks=blocks,
                reselects=reselects,
            )
        return Encoder(schema, rules, log, self.pipeline, blocks=blocks, reselects=reselects)

    def key_fields(self, schema: TableSchema) -> list[EventField]:
        """The members of a record's key that its row shows as well, as they are."""
        planned = plan(schema, self._rules)
        shown = {field.column: field.decode for field in planned.row}
        return [field for field in planned.key if shown.get(field.column) is field.decode]

    def _reselects(self, state: TableState) -> bool:
        """Whether unchanged values are read again: a compacted topic would forget them."""
        if state.requests:
            return True  # an update may move a row to where no chunk is read any more
        return state.cleanup == "compact" and self._rules.events.reselect
