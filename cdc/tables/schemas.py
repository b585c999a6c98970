"""Relations and catalog descriptions → schema versions, their differences, and their encoders.

ALTER TABLE … ADD COLUMN with a default gives every row a value, ALTER COLUMN … TYPE a new one.
Neither is in the stream, so the log's rows must be read again.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-NOTES
"""

import shlex
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import structlog

from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder
from cdc.events.fields import EventField, plan
from cdc.events.metadata import MessageEvents, TransactionMetadata
from cdc.events.reference import LogContext
from cdc.events.rules import (
    EventRules,
    key_signature,
    left_out_signature,
    rekeyed,
    without_left_out,
)
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import TableState, schema_record
from cdc.records.topics import data_topic
from cdc.settings import CaptureSettings
from cdc.tables.planned import check_events
from cdc.tables.reads import TableReads
from cdc.wal.messages import Relation, RelationColumn, ReplicaIdentity

log = structlog.get_logger()
Filled: TypeAlias = Callable[[int, Sequence[str]], Collection[str]]
"""A table's OID and some columns → those in which rows have values that nothing wrote."""

_SAME_TEXT: Final = {"text", "varchar"}
"""A value stays the same from one to the other, if there is room."""


def altered_columns(before: TableSchema, after: TableSchema, filled: Filled) -> list[str]:
    """Return the later version's columns in which rows may have values that no event has."""
    if before.oid != after.oid:
        return []
    names = [[column.name for column in version.columns] for version in (before, after)]
    if _is_numbered(before) != _is_numbered(after) and names[0] != names[1]:
        # Sinks use names then, and a renamed column would lose its values.
        return [column.name for column in after.columns if column.key is None]
    numbered = _is_numbered(before) and _is_numbered(after)
    earlier = {(column.number if numbered else column.name): column for column in before.columns}
    new, altered = [], []
    for column in after.columns:
        was = earlier.get(column.number if numbered else column.name)
        if was is None:
            new.append(column.name)
        elif not _keeps_values(was, column) or (was.left_out and not column.left_out):
            altered.append(column.name)
    return [*altered, *sorted(filled(after.oid, new))] if new else altered


def _is_numbered(version: TableSchema) -> bool:
    return all(column.number is not None for column in version.columns)


def numbered(
    columns: tuple[Column, ...], before: TableSchema, now: TableDescription | None
) -> tuple[Column, ...]:
    """Add numbers to a Relation message's columns, if an earlier version and the catalog show them.

    No number is given twice, and columns come in their order. So columns that existed before, and
    exist now, existed in between. If they are as many as the message's columns, they are these.
    """
    if now is None or before.oid != now.oid:
        return columns
    published = {each.number: each for each in now.columns if each.name not in now.unpublished}
    earlier = {each.number: each for each in before.columns if each.number is not None}
    kept = sorted(earlier.keys() & published.keys() - {None})
    if len(kept) != len(columns) or any(
        column.type_oid not in {earlier[number].type_oid, published[number].type_oid}
        for column, number in zip(columns, kept, strict=True)
    ):
        return columns
    return tuple(
        column.model_copy(update={"number": number})
        for column, number in zip(columns, kept, strict=True)
    )


def _keeps_values(before: Column, after: Column) -> bool:
    """Whether the column's type, if it has changed, has left every value the same."""
    if (before.type_oid, before.modifier) == (after.type_oid, after.modifier):
        return True
    if before.array != after.array:
        return False
    if {before.type, after.type} <= _SAME_TEXT:
        return after.modifier == -1 or 0 <= before.modifier <= after.modifier
    if before.type == after.type == "numeric":
        is_in_key = before.key is not None and after.key is not None
        if is_in_key and (before.array or before.is_decimal != after.is_decimal):
            return False  # derived tables identify rows by it: text is another key
        room, had = after.precision_scale, before.precision_scale
        return room is None or (had is not None and had[0] <= room[0] and had[1] == room[1])
    return False


def _key(columns: Iterable[Column]) -> list[int | str]:
    """Return the columns of the key in its order: by their numbers, if these are known."""
    keyed = ((column.key, column.number or column.name) for column in columns)
    return [column for ordinal, column in sorted(each for each in keyed if each[0] is not None)]


def _as_shown(before: Sequence[Column], now: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns with details that a signature lacks, such as ALTER COLUMN … SET DEFAULT.

    A column that may be another one now, or none, stays the same.
    """
    current = {column.name: column for column in now if column.number is not None}

    def shown(column: Column) -> Column:
        new = current.get(column.name)
        if new is None or column.number not in {None, new.number}:
            return column
        update = {
            "default": new.default,
            "labels": new.labels,
            "optional": new.optional,
        }
        return column.model_copy(update=update)

    return tuple(map(shown, before))


class SchemaVersions:
    """Relations and descriptions → the table's current schema, and the log's records if it is new.

    Versions are compared by signature. So the catalog must be asked for details that a Relation
    message lacks only if the signature is new.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        stored: Iterable[TableSchema],
        rules: EventRules,
        reads: TableReads,
        filled: Filled,
        *,
        shows_columns: bool = False,
    ) -> None:
        """``stored`` are the log's versions.

        ``shows_columns``: events show details that a signature lacks, so the catalog is asked.
        """
        self._settings = settings
        self._rules = rules
        self._reads = reads
        self._filled = filled
        self._shows_columns = shows_columns
        self._newest: dict[TableName, TableSchema] = {}
        self._by_signature: dict[tuple[TableName, str], TableSchema] = {}
        for schema in sorted(stored, key=lambda schema: schema.version):
            self._set(schema)

    def newest(self, table: TableName) -> TableSchema | None:
        """Return the newest version. None: there is none."""
        return self._newest.get(table)

    def has_key(self, table: TableName) -> bool:
        """Whether a key identifies the table's newest rows in the log."""
        schema = self.newest(table)
        return schema is None or bool(schema.key)

    def described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        """Return a table's schema by the catalog, and the log's records.

        Derived tables need its record, even for a table without rows.
        """
        return self._version(
            table.name,
            table.oid,
            self._signature(table.name, table.signature, table.columns),
            table.replica_identity,
            since,
            lambda: table.columns,
            is_new=not self.is_newest(table) or bool(self.made_again(table)),
        )

    def check(self, table: TableDescription) -> None:
        """Raise TableRefusedError if no events can be made of a table as it is described."""
        check_events(table, self._settings.topic_prefix, self._rules)

    def is_newest(self, table: TableDescription) -> bool:
        """Whether the newest version looks like the table's description, and has its key.

        A signature doesn't show the key's order, nor under REPLICA IDENTITY FULL its columns.
        """
        before = self.newest(table.name)
        signature = self._signature(table.name, table.signature, table.columns)
        if before is None or (before.oid, before.signature) != (table.oid, signature):
            return False
        now = rekeyed(table.columns, table.name, table.replica_identity, self._rules)
        return _key(before.columns) == _key(now)

    def is_outdated(self, table: TableDescription | None, at: Position) -> bool:
        """Whether the newest version differs from a description of ``at``, and is later."""
        if table is None or (before := self.newest(table.name)) is None:
            return False
        return at < Position.parse(before.since) and not self.is_newest(table)

    def made_again(self, table: TableDescription) -> list[str]:
        """Return the columns that have another number now, though the table looks the same."""
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
        """Return a table's schema by the stream. ``columns`` asks for details that it lacks."""
        table = TableName(relation.namespace, relation.name)
        return self._version(
            table,
            relation.oid,
            self._signature(table, relation_signature(relation), relation.columns),
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
        """Return the version, with records. ``is_new``: it is new even if its signature isn't."""
        before = self.newest(table)
        schema = self._by_signature.get((table, signature))
        # If changes from before the newest version are streamed again, an older one may be right.
        is_older = before is not None and since < Position.parse(before.since)
        made: tuple[Column, ...] | None = None
        if schema is not None and (schema is before or is_older) and not is_new:
            if is_older or not self._shows_columns:
                return schema, []
            made = _as_shown(schema.columns, columns())
            if made == schema.columns:
                return schema, []
        schema = TableSchema(
            namespace=table.namespace,
            table=table.name,
            version=before.version + 1 if before else 1,
            since=str(since),
            topic=data_topic(self._settings.topic_prefix, table),
            replica_identity=replica_identity,
            columns=made or self._written(columns(), table, replica_identity),
            signature=signature,
            oid=oid,
        )
        self._set(schema)
        record = schema_record(self._settings.topic_prefix, schema)
        return schema, [record, *self._read_altered(before, schema)]

    def _signature(
        self, table: TableName, signature: str, columns: Iterable[Column | RelationColumn]
    ) -> str:
        names = (column.name for column in columns)
        signature = key_signature(signature, table, self._rules)
        return left_out_signature(signature, table, names, self._rules)

    def _written(
        self, columns: tuple[Column, ...], table: TableName, identity: ReplicaIdentity
    ) -> tuple[Column, ...]:
        """Return the columns with the record's key, and with marks on those that events omit."""
        keyed = rekeyed(columns, table, identity, self._rules)
        return without_left_out(keyed, table, self._rules)

    def _set(self, schema: TableSchema) -> None:
        self._newest[schema.name] = self._by_signature[schema.name, schema.signature] = schema

    def _read_altered(self, before: TableSchema | None, schema: TableSchema) -> list[Record]:
        """Have rows read again if DDL has changed their values. Return the log's records."""
        name = str(schema.name)
        if before is None or not self._settings.lossless or not self._settings.snapshots(name):
            return []
        altered = [
            column
            for column in altered_columns(before, schema, self._filled)
            if self._rules.columns.keeps(name, column)
        ]
        is_rekeyed = before.oid == schema.oid and _key(before.columns) != _key(schema.columns)
        if not (altered or is_rekeyed):
            return []
        if name in self._settings.snapshot_select_statements:
            log.warning(
                "columns were altered, and earlier rows aren't read again: your own SELECT reads"
                " them",
                table=name,
                columns=altered,
                remedy=f"stop the daemon, and run millrace snapshot {shlex.quote(name)}",
            )
            return []
        in_key = {column.name for version in (before, schema) for column in version.key}
        replaces = is_rekeyed or not in_key.isdisjoint(altered)
        return self._reads.read_altered(schema.name, altered, replaces=replaces)


class EncoderRegistry:
    """Makes the encoders of rows, transactions and logical messages. Asking changes nothing."""

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
        """Return the encoder of a table, in this version of its schema."""
        state = self._states[schema.name]
        compacted = state.cleanup == "compact"
        log = self._log._replace(partitions=state.partitions, compacted=compacted)
        # If an update moves a row to a part that was read, the log has it by its event alone.
        rules = self._rules.with_all_updates if state.is_being_completed else self._rules
        blocks, reselects = self.transactions, self._reselects(state)
        # The topic of a routed record doesn't show its table.
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
        """Return the members of a record's key that its row also shows, in the same form."""
        planned = plan(schema, self._rules)
        shown = {field.column: field.decode for field in planned.row}
        return [field for field in planned.key if shown.get(field.column) is field.decode]

    def _reselects(self, state: TableState) -> bool:
        """Whether unchanged values are read again: a compacted topic would lose them."""
        if state.requests:
            return True  # an update may move a row to a part that was read
        return state.cleanup == "compact" and self._rules.events.reselect
