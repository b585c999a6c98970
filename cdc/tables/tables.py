"""Relation messages and catalog descriptions → an encoder per table, in its current version.

Also keeps each table's state record. What is new (a schema version, a table's state) is handed
out as a state record, to be written in the same Kafka transaction as the rows that need it.
"""

import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from cdc.convert.pipeline import Encoder, ReadableEncoder, RecordPipeline
from cdc.dead_letters.letters import DeadLetters, GuardedEncoder
from cdc.errors import UnreadTableError
from cdc.events.metadata import MessageEvents, TransactionMetadata
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules, key_signature, rekeyed
from cdc.events.table_encoder import TableEncoder
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.postgres.preflight import shared_topic
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import SnapshotRequest, TableState, schema_record
from cdc.records.topics import data_topic
from cdc.records.transaction import Transaction
from cdc.settings import Settings
from cdc.tables.lookups import Lookups
from cdc.tables.notifications import Notifications
from cdc.tables.schema_history import SchemaHistory, altered_columns
from cdc.tables.states import Joining, TableStates, check_published
from cdc.wal.messages import Relation, ReplicaIdentity

log = structlog.get_logger()


class Tables(TableStates):
    """The captured tables as the log knows them: states, schema versions, encoders."""

    def __init__(
        self,
        settings: Settings,
        database: str,
        states: Iterable[TableState],
        schemas: Iterable[TableSchema],
        lookups: Lookups,
        rules: EventRules,
        pipeline: RecordPipeline,
        letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(settings, states, rules)
        self._captures = settings.capture.captures
        self._capture = settings.capture
        self._database = database
        self._history = SchemaHistory(self.prefix, schemas)
        self._lookups = lookups
        self._describe, self._entry, self.reread = lookups[:3]
        self._takes_late = not settings.capture.lossless
        self.letters = letters
        self.pipeline = pipeline
        self._log = LogContext(self.prefix, database, 1, compacted=False, run_id=str(uuid.uuid4()))
        self.transactions = (
            TransactionMetadata(rules, settings.capture.transaction_topic)
            if rules.events.transaction_metadata
            else None
        )
        self.notifications = Notifications(settings.capture, pipeline)
        self.messages = MessageEvents(rules, self._log, blocks=self.transactions)

    def has_key(self, table: TableName) -> bool:
        """Whether its newest rows in the log are told apart by a key."""
        schema = self._history.newest(table)
        return schema is None or bool(schema.key)

    @property
    def is_plain(self) -> bool:
        """Whether the settings ask for nothing but what the hot path writes."""
        return self._rules.plain and self.pipeline.is_plain

    def begin_anew(
        self,
        table: TableDescription,
        at: Position,
        requests: tuple[SnapshotRequest, ...],
        gone: Position | None = None,
    ) -> tuple[list[Record], list[Record]]:
        """Begin to read a table; rows that the log has of it up to ``gone`` are to be gone.

        ``requests``: all of the table's from here on. By default what is before ``at`` goes.
        Returns events, and state records.
        """
        is_known = table.name in self.states
        states = self.begin_snapshot(table, at, requests)
        if not is_known or self._takes_late:
            return [], states
        encoder, new = self.snapshot_encoder(table, at)
        truncated = encoder.snapshot_truncate(gone or at.just_before(), time.time_ns() // 1_000)
        return truncated, [*states, *new]

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

    def snapshot_encoder(
        self, table: TableDescription, since: Position
    ) -> tuple[Encoder, list[Record]]:
        """An encoder for a described table, and the record of its schema version if it is new."""
        schema, new = self._described(table, since)
        return self._encoder(schema), new

    def chunk_encoder(
        self, table: TableDescription, since: Position
    ) -> tuple[ReadableEncoder, list[Record]]:
        """The same for rows that are read while streaming: their events have a marker to tell."""
        schema, new = self._described(table, since)
        return self._readable(schema), new

    def stream_encoder(
        self, relation: Relation, since: Position, xid: int | None = None
    ) -> tuple[Encoder | None, list[Record]]:
        """An encoder for a relation, or None when its table isn't captured, or is still joining.

        ``xid``: the transaction (32 bits) that its change is of.

        Raises UnreadTableError when it should be: the next start reads its rows first. A table
        that is gone since, or has another name, can't be read under this one, ever: it is passed
        over, or every start would end here. (What has another name is read under that.) Raises
        GapError if it left the publication and came back: PostgreSQL then sends a new Relation.
        """
        table = TableName(relation.namespace, relation.name)
        renamed = self._renamed(relation.oid, table, since.commit_lsn)
        if table in self.joining:
            return None, renamed
        if not self._captures(str(table)):
            return None, [*renamed, *self._left_out(table)]
        entry = self._entry(relation.oid)
        appears = table not in self.states and self._takes_late
        if entry == 0 and xid is not None and not appears:  # gone, or not to be seen yet
            self._lookups.await_visible(xid)
            entry = self._entry(relation.oid)
        if appears:
            renamed.append(self._appeared(relation, self._describe(relation), since, entry))
            self.pipeline.open_topic(self.states[table].topic, self.states[table].cleanup)
        made_anew = entry != 0 and self.is_made_anew(table, relation.oid, entry)
        if made_anew or not self.is_followed(table):
            late = self._late(relation.oid, table, since)
            renamed += late
            if not late or table in self.joining:
                return None, renamed
        if entry == 0 and self.states[table].oid not in {0, relation.oid}:
            _pass_over(table, since, "they are of an older table of that name, which is gone")
            return None, renamed
        if entry != 0:  # 0: it has just left, maybe for ever
            renamed += self._check_entry(table, relation.oid, entry, since)
        if self._lacks_its_key(relation, since):
            renamed += self._late(relation.oid, table, since, read=True)
            return None, renamed
        signature, identity = relation_signature(relation), relation.replica_identity
        columns = partial(self._columns, relation, xid)
        schema, new = self._schema(table, relation.oid, signature, identity, since, columns)
        return self._encoder(schema), [*renamed, *new]

    def _columns(self, relation: Relation, xid: int | None) -> tuple[Column, ...]:
        """Its columns; the stream has a transaction's DDL before others see it in the catalog."""
        if xid is not None and not self._takes_late:
            self._lookups.await_visible(xid)
        return self._describe(relation)

    def _check_entry(self, table: TableName, oid: int, entry: int, since: Position) -> list[Record]:
        """Raise GapError for another table, or entry, than the log has; note one that it lacks."""
        state = self.states[table]
        check_published([state], {table: (oid, entry)}, since.commit_lsn)
        return [] if state.entry else [self._set(state.model_copy(update={"entry": entry}))]

    def _lacks_its_key(self, relation: Relation, since: Position) -> bool:
        """Whether a table that is followed without its rows was filled before it had its key.

        Its topic takes no record without: such rows are to be had only by reading them.
        """
        state = self.states[TableName(relation.namespace, relation.name)]
        if state.cleanup != "compact" or since.commit_lsn >= state.joined_lsn:
            return False
        columns = self._describe(relation)
        return not self._is_keyed(columns, state.name, relation.replica_identity)

    def _late(
        self, oid: int, name: TableName, since: Position, *, read: bool = False
    ) -> list[Record]:
        """Follow a table whose changes arrive, the first of them at ``since``; see ``join``.

        One that is gone, or has another name by now, is passed over, with a warning. Raises
        UnreadTableError for one that can't be read while streaming.
        """
        table = self._lookups.late(oid, name)
        if table is None:
            reason = "it was dropped, renamed or taken out of the publication before it was read"
            _pass_over(name, since, reason)
            return []
        return self.join(table, since._replace(index=since.index - 1), read=read)

    def can_be_late(self, table: TableDescription) -> bool:
        """Whether a table can be followed without its rows, or these be read while it is."""
        name = str(table.name)
        if not self._capture.snapshots(name) and self.has_joined(table):
            return True
        return table.is_chunked and name not in self._capture.snapshot_select_statements

    def join(
        self, table: TableDescription, reached: Position, order: int = 0, *, read: bool = False
    ) -> list[Record]:
        """Follow a table that was described just now; returns what the log gets.

        Where its rows are wanted, or have to be ``read``, that begins once the stream has come to
        the WAL's present end: what it brings from before may be of another table of that name, or
        of another shape, and is passed over. Otherwise it is followed from behind ``reached`` on.
        Raises UnreadTableError where its rows can't be read while it is streamed, TableRefusedError
        where the log would mix rows up.
        """
        name = str(table.name)
        if not self.can_be_late(table):
            raise UnreadTableError(
                f"table {name} has joined what is captured, and its rows were never read",
                where=f"position {reached}",
                remedy="start again: its rows are read first",
            )
        self._check_joining(table)
        joining = Joining(table, *self._lookups.instant(), order)
        if not (read or self._capture.snapshots(name)):
            return self._follow(joining, reached)
        self.joining[table.name] = joining
        known = self.states.get(table.name)
        # A read that was under way is of no use any more, and mustn't make it whole meanwhile.
        left = [self.set_requests(table.name, ())] if known is not None and known.initial else []
        return [*left, *self.begin_joined(reached)]

    def begin_joined(self, reached: Position) -> list[Record]:
        """Begin to read one that has joined, if the stream has come so far; for the log.

        One at a time: it takes a topic, which brokers take a while to make. What an open
        transaction did to it before it was published isn't in the stream: chunks have to show that.
        """
        for name, (table, wal_end, xid, order) in self.joining.items():
            if reached.commit_lsn < wal_end:
                continue
            del self.joining[name]
            log.info("a table appeared: its rows are read while streaming", table=str(name))
            now_ms = time.time_ns() // 1_000_000
            request = SnapshotRequest(kind="initial", order=order, behind_xid=xid, begun_ms=now_ms)
            events, states = self.begin_anew(table, reached, (request,), reached)
            self.pipeline.open_topic(self.states[name].topic, self.states[name].cleanup)
            if self._capture.incremental_snapshot_watermarking_strategy == "read_only":
                self._lookups.instant()  # its rows wait until the stream has moved, by whomever
            return [*states, *events, *self.notifications.initial("STARTED", reached, [name])]
        return []

    def _follow(self, joining: Joining, reached: Position) -> list[Record]:
        """Follow a table without its rows; what it was like until now is no gap."""
        table, wal_end, xid, _ = joining
        log.info("a table appeared: its changes are followed", table=str(table.name))
        if (known := self.states.get(table.name)) is not None:
            reached = max(reached, Position(known.epoch, known.snapshot_lsn, 0))
        first = (SnapshotRequest(kind="initial"),)
        events, states = self.begin_anew(table, reached, first, reached)
        state = self.states[table.name]
        self._set(state.model_copy(update={"joined_lsn": wal_end, "joined_xid": xid}))
        self.pipeline.open_topic(state.topic, state.cleanup)
        return [*states, *events, *self.take_as_read(table, reached)]

    def _check_joining(self, table: TableDescription) -> None:
        """Look at what a start looks at, and at tables that were here before."""
        topic = data_topic(self.prefix, table.name)
        for other in self.states.values() if self._capture.lossless else ():
            if other.topic == topic and other.name != table.name:
                raise shared_topic(topic, [other.name, table.name])
        self._lookups.check(table)

    def has_joined(self, table: TableDescription) -> bool:
        """Whether its changes aren't followed yet: it is new here, or another one of that name."""
        is_other = self.is_made_anew(table.name, table.oid, table.entry)
        return is_other or not self.is_followed(table.name)

    def take_as_read(self, table: TableDescription, at: Position) -> list[Record]:
        """Note that a table that was begun is whole at a position, with whatever was read of it."""
        return [*self.schema_records(table, at), self.finish_initial(table.name, at)]

    def schema_records(self, table: TableDescription, since: Position) -> list[Record]:
        """The record of a described table's schema version, if it is new.

        Derived tables need it, also of a table without rows.
        """
        return self._described(table, since)[1]

    def _described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        known = table.oid, table.signature, table.replica_identity
        return self._schema(table.name, *known, since, lambda: table.columns)

    def _encoder(self, schema: TableSchema) -> Encoder:
        if not self.is_plain or (self.letters is not None and self.letters.covers(schema)):
            return self._readable(schema)
        state = self.states[schema.name]
        return TableEncoder(
            schema,
            prefix=self.prefix,
            database=self._database,
            partitions=state.partitions,
            compacted=state.cleanup == "compact",
            reselects=self._reselects(state),
        )

    def _schema(
        self,
        table: TableName,
        oid: int,
        signature: str,
        replica_identity: ReplicaIdentity,
        since: Position,
        columns: Callable[[], tuple[Column, ...]],
    ) -> tuple[TableSchema, list[Record]]:
        """The table's schema now, and the record of its version if that is new."""
        signature = key_signature(signature, table, self._rules)
        schema = self._history.current(table, signature, since)
        if schema is not None:
            return schema, []
        before = self._history.newest(table)
        described = rekeyed(columns(), table, replica_identity, self._rules)
        schema = self._history.add(table, oid, described, signature, replica_identity, since)
        return schema, [schema_record(self.prefix, schema), *self._read_altered(before, schema)]

    def _read_altered(self, before: TableSchema | None, schema: TableSchema) -> list[Record]:
        """Have rows read again whose values DDL has changed; returns what the log gets."""
        name = str(schema.name)
        if before is None or self._takes_late or not self._capture.snapshots(name):
            return []
        found = altered_columns(before, schema, self._lookups.filled)
        altered = [column for column in found if self._rules.columns.keeps(name, column)]
        if not altered:
            return []
        if name in self._capture.snapshot_select_statements:
            log.warning(
                "columns were altered, and rows from before aren't read again, which a SELECT of"
                " one's own gives",
                table=name,
                columns=altered,
                remedy=f"stop the daemon, and run millrace snapshot {name}",
            )
            return []
        return self.read_altered(schema.name, altered)

    def _readable(self, schema: TableSchema) -> ReadableEncoder:
        state = self.states[schema.name]
        compacted = state.cleanup == "compact"
        log = self._log._replace(partitions=state.partitions, compacted=compacted)
        # A row that an update moves to where all is read is in the log by its event alone.
        rules = self._rules.with_all_updates if state.is_being_completed else self._rules
        rest = schema, rules, log, self.pipeline
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
        if state.requests:
            return True  # an update may move a row to where no chunk is read any more
        return state.cleanup == "compact" and self._rules.events.reselect


def _pass_over(table: TableName, since: Position, reason: str) -> None:
    told = {"table": str(table), "position": str(since), "reason": reason}
    log.warning("changes of a table are passed over", **told)


def key_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of the key's columns, in the key's order."""
    keyed = [(column.key, column.name) for column in columns if column.key is not None]
    return tuple(name for _, name in sorted(keyed))
