"""Relation messages and catalog descriptions → an encoder per table, in its current version.

Also keeps each table's state record. What is new (a schema version, a table's state) is handed
out as a state record, to be written in the same Kafka transaction as the rows that need it.
"""

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from cdc.completion import Reread
from cdc.dead_letters import DeadLetters, GuardedEncoder
from cdc.errors import GapError, UnreadTableError
from cdc.events import TableEncoder
from cdc.metadata import MessageEvents, TransactionMetadata
from cdc.postgres.catalog import TableDescription, relation_signature
from cdc.readable import Encoder, Pipeline, ReadableEncoder
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import (
    Phase,
    SnapshotRequest,
    TableState,
    schema_record,
    table_record,
)
from cdc.records.topics import data_topic
from cdc.reference import Log
from cdc.rules import EventRules, key_signature, rekeyed
from cdc.schemas import SchemaHistory
from cdc.settings import Settings
from cdc.transactions import Transaction
from cdc.wal.messages import Relation, ReplicaIdentity

log = structlog.get_logger()


class Lookups(NamedTuple):
    """What is asked of PostgreSQL as a relation appears.

    ``describe``: its columns. ``entry``: the OID of its entry in the publication, by its own.
    ``reread``: rows of it whose unchanged values are wanted. ``present``: whether a start now
    would find it, by its OID and name, among the tables to capture.
    """

    describe: Callable[[Relation], tuple[Column, ...]]
    entry: Callable[[int], int]
    reread: Reread
    present: Callable[[int, TableName], bool]


class Tables:
    """The captured tables as the log knows them: states, schema versions, encoders."""

    def __init__(
        self,
        settings: Settings,
        database: str,
        states: Iterable[TableState],
        schemas: Iterable[TableSchema],
        lookups: Lookups,
        rules: EventRules,
        pipeline: Pipeline,
        letters: DeadLetters | None = None,
    ) -> None:
        self.states = {state.name: state for state in states}
        self.requested = {name for name, state in self.states.items() if state.requests}
        """The tables that signals have asked to be read."""
        self.requested_changes = 0
        self.prefix = settings.capture.topic_prefix
        self._captures = settings.capture.captures
        self._partitions = settings.log.topic_partitions
        self._cleanup = settings.log.topic_cleanup_policy
        self._database = database
        self._history = SchemaHistory(self.prefix, schemas)
        self._describe, self._entry, self.reread, self._present = lookups
        self._takes_late = not settings.capture.lossless
        self._rules = rules
        self.letters = letters
        self.pipeline = pipeline
        self._log = Log(self.prefix, database, 1, compacted=False, run_id=str(uuid.uuid4()))
        self.transactions = (
            TransactionMetadata(rules, settings.capture.transaction_topic)
            if rules.events.transaction_metadata
            else None
        )
        self.messages = MessageEvents(rules, self._log, blocks=self.transactions)

    @property
    def is_plain(self) -> bool:
        """Whether the settings ask for nothing but what the hot path writes."""
        return self._rules.plain and self.pipeline.is_plain

    def unread(
        self, described: Iterable[TableDescription], again: Collection[str] = ()
    ) -> list[TableDescription]:
        """The tables whose rows aren't all in the log yet, and those asked for again."""
        return [
            table
            for table in described
            if str(table.name) in again or not self.is_whole(table.name)
        ]

    def is_whole(self, table: TableName) -> bool:
        """Whether all of the table's rows are in the log."""
        return table in self.states and self.states[table].phase is Phase.STREAMING

    def has_read(self, relation: Relation, position: Position) -> bool:
        """Whether the table's snapshot shows what was committed at the position."""
        state = self.states.get(TableName(relation.namespace, relation.name))
        return state is not None and position < Position(state.epoch, state.snapshot_lsn, 0)

    def begin_snapshot(self, table: TableDescription, position: Position) -> list[Record]:
        """Start (or start again) a table's snapshot; returns the state records to write."""
        known = self.states.get(table.name)
        renamed = self._renamed(table.oid, table.name, position.commit_lsn)
        keyed = self._is_keyed(table.columns, table.name, table.replica_identity)
        begun = self._set(
            TableState(
                namespace=table.name.namespace,
                table=table.name.name,
                topic=data_topic(self.prefix, table.name),
                partitions=known.partitions if known else self._partitions,
                cleanup=self._cleanup if keyed else "delete",
                epoch=position.epoch,
                phase=Phase.SNAPSHOT,
                snapshot_lsn=position.commit_lsn,
                oid=table.oid,
                entry=table.entry,
                rows_estimated=table.rows_estimated,
            )
        )
        return [*renamed, begun]

    def _is_keyed(
        self, columns: tuple[Column, ...], table: TableName, identity: ReplicaIdentity
    ) -> bool:
        return any(column.key for column in rekeyed(columns, table, identity, self._rules))

    def advance_snapshot(self, table: TableName, rows: int, chunks: tuple[int, int]) -> Record:
        """Count the chunks (done, total) and rows sent so far; returns the table's state record."""
        chunks_done, chunks_total = chunks
        return self._set(
            self.states[table].model_copy(
                update={
                    "rows_sent": rows,
                    "chunks_done": chunks_done,
                    "chunks_total": chunks_total,
                    "phase": Phase.STREAMING if chunks_done == chunks_total else Phase.SNAPSHOT,
                    "ts_ms": time.time_ns() // 1_000_000,
                }
            )
        )

    def set_requests(self, table: TableName, requests: Iterable[SnapshotRequest]) -> Record:
        """Note which reads of a table signals have asked for; returns its state record."""
        now = {"requests": tuple(requests), "ts_ms": time.time_ns() // 1_000_000}
        return self._set(self.states[table].model_copy(update=now))

    def ordered(
        self, content: bytes, position: Position, transaction: Transaction | None
    ) -> list[Record]:
        """What an order about a dead letter (a logical message) brings into the log."""
        if self.letters is None or transaction is None:
            return []
        return self.letters.orders(content, position, transaction, self)

    def key_names(self, relation: Relation) -> tuple[str, ...]:
        """The columns of the table's own key, in the key's order."""
        return key_names(self._describe(relation))

    def _set(self, state: TableState) -> Record:
        self.states[state.name] = state
        if bool(state.requests) != (state.name in self.requested):
            self.requested ^= {state.name}
            self.requested_changes += 1
        return table_record(self.prefix, state)

    def snapshot_encoder(
        self, table: TableDescription, since: Position
    ) -> tuple[Encoder, list[Record]]:
        """An encoder for a described table, and the record of its schema version if it is new."""
        return self._encoder(
            table.name, table.signature, table.replica_identity, since, lambda: table.columns
        )

    def chunk_encoder(
        self, table: TableDescription, since: Position
    ) -> tuple[ReadableEncoder, list[Record]]:
        """The same for rows that are read while streaming: their events have a marker to tell."""
        signature, identity = table.signature, table.replica_identity
        schema, new = self._schema(table.name, signature, identity, since, lambda: table.columns)
        return self._readable(schema), new

    def stream_encoder(
        self, relation: Relation, since: Position
    ) -> tuple[Encoder | None, list[Record]]:
        """An encoder for a relation, or None when its table isn't captured.

        Raises UnreadTableError when it should be: the next start reads its rows first. A table
        that is gone since, or has another name, can't be read under this one, ever: it is passed
        over, or every start would end here. (What has another name is read under that.) Raises
        GapError if it left the publication and came back: PostgreSQL then sends a new Relation.
        """
        table = TableName(relation.namespace, relation.name)
        renamed = self._renamed(relation.oid, table, since.commit_lsn)
        captured = self._captures(str(table))
        entry = self._entry(relation.oid) if captured else 0
        if captured and table not in self.states and self._takes_late:
            renamed.append(self._appeared(relation, since, entry))
        if not self.is_whole(table):
            if captured:
                self._check_gone(relation.oid, table, since)
            return None, renamed
        if entry != 0:  # 0: it isn't captured, or has just left, maybe for ever
            check_published([self.states[table]], {table: (relation.oid, entry)}, since.commit_lsn)
            if self.states[table].entry == 0:
                state = self.states[table].model_copy(update={"entry": entry})
                renamed.append(self._set(state))
        encoder, new = self._encoder(
            table,
            relation_signature(relation),
            relation.replica_identity,
            since,
            lambda: self._describe(relation),
        )
        return encoder, [*renamed, *new]

    def _check_gone(self, oid: int, table: TableName, since: Position) -> None:
        """Raise UnreadTableError for an unread table that can still be read; warn otherwise."""
        if self._present(oid, table):
            raise UnreadTableError(
                f"changes of table {table} arrive, whose rows were never read: it was renamed,"
                " or added to the publication",
                where=f"position {since}",
                remedy="start again: its rows are read first",
            )
        log.warning(
            "changes are passed over: the table was dropped, renamed or taken out of the"
            " publication before its rows could be read",
            table=str(table),
            position=str(since),
        )

    def _appeared(self, relation: Relation, since: Position, entry: int) -> Record:
        """Capture a table from here on, without the rows that it had before.

        The stream may be ahead of what our session sees: then the entry is 0, for now.
        """
        name = TableName(relation.namespace, relation.name)
        keyed = self._is_keyed(self._describe(relation), name, relation.replica_identity)
        state = TableState(
            namespace=name.namespace,
            table=name.name,
            topic=data_topic(self.prefix, name),
            partitions=self._partitions,
            cleanup=self._cleanup if keyed else "delete",
            epoch=since.epoch,
            phase=Phase.STREAMING,
            snapshot_lsn=since.commit_lsn,
            oid=relation.oid,
            entry=entry,
        )
        self.pipeline.open_topic(state.topic, state.cleanup)
        return self._set(state)

    def _renamed(self, oid: int, name: TableName, lsn: Lsn) -> list[Record]:
        """Note in a table's state that it goes by another name since then."""
        return [
            self._set(state.model_copy(update={"renamed_lsn": lsn}))
            for state in list(self.states.values())
            if state.oid == oid and state.name != name
            if state.renamed_lsn is None and lsn > state.snapshot_lsn
        ]

    def _encoder(
        self,
        table: TableName,
        signature: str,
        replica_identity: ReplicaIdentity,
        since: Position,
        columns: Callable[[], tuple[Column, ...]],
    ) -> tuple[Encoder, list[Record]]:
        schema, new = self._schema(table, signature, replica_identity, since, columns)
        if not self.is_plain or (self.letters is not None and self.letters.covers(schema)):
            return self._readable(schema), new
        state = self.states[table]
        encoder = TableEncoder(
            schema,
            prefix=self.prefix,
            database=self._database,
            partitions=state.partitions,
            compacted=state.cleanup == "compact",
            reselects=self._reselects(state),
        )
        return encoder, new

    def _schema(
        self,
        table: TableName,
        signature: str,
        replica_identity: ReplicaIdentity,
        since: Position,
        columns: Callable[[], tuple[Column, ...]],
    ) -> tuple[TableSchema, list[Record]]:
        """The table's schema now, and the record of its version if that is new."""
        signature = key_signature(signature, table, self._rules)
        schema = self._history.current(table, signature)
        if schema is not None:
            return schema, []
        described = rekeyed(columns(), table, replica_identity, self._rules)
        schema = self._history.add(table, described, signature, replica_identity, since)
        return schema, [schema_record(self.prefix, schema)]

    def _readable(self, schema: TableSchema) -> ReadableEncoder:
        state = self.states[schema.name]
        compacted = state.cleanup == "compact"
        log = self._log._replace(partitions=state.partitions, compacted=compacted)
        rest = schema, self._rules, log, self.pipeline
        blocks, reselects = self.transactions, self._reselects(state)
        if self.letters is not None and self.letters.covers(schema):
            return GuardedEncoder(self.letters, *rest, blocks=blocks, reselects=reselects)
        return ReadableEncoder(*rest, blocks=blocks, reselects=reselects)

    def encoder_of(self, table: TableName, version: int) -> ReadableEncoder | None:
        """An encoder for rows of a schema version, if that is the newest one."""
        schema = self._history.newest(table)
        known = schema is not None and schema.version == version and table in self.states
        return self._readable(schema) if schema is not None and known else None

    def _reselects(self, state: TableState) -> bool:
        """Whether unchanged values are read again: a compacted topic would forget them."""
        return state.cleanup == "compact" and self._rules.events.reselect


def key_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of the key's columns, in the key's order."""
    keyed = [(column.key, column.name) for column in columns if column.key is not None]
    return tuple(name for _, name in sorted(keyed))


def check_published(
    states: Iterable[TableState],
    now: Mapping[TableName, tuple[int, int]],
    lsn: Lsn | None = None,
) -> None:
    """Raise GapError for tables that aren't, or aren't published, as when they were read.

    ``now`` has the OIDs of each table and of its entry in the publication, at ``lsn`` or today.
    """
    names = [
        str(state.name)
        for state in states
        if state.oid and (found := now.get(state.name)) is not None
        if found != (state.oid, state.entry or found[1])
        or (state.renamed_lsn is not None and (lsn is None or lsn > state.renamed_lsn))
    ]
    if names:
        raise GapError(
            "tables left the publication or had another name, and came back, were made anew, or are"
            " published with other columns or rows: what they lack isn't in the log:"
            f" {', '.join(names[:20])}",
            remedy="read them again: millrace snapshot " + " ".join(names),
        )
