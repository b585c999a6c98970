"""The log's states, and tables that arrive or are described → the log's records, and steps to take.

Relations that arrive, and described tables, go through a state machine. A table's changes are
followed, skipped, or wait until its rows are being read. Missing changes are a gap (GapError). If
changes can't be captured, the table is set aside, with the reason as its doubt. This module only
returns records, and the steps before they are written. Its caller's functions ask PostgreSQL.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from cdc.convert.pipeline import RecordPipeline
from cdc.dead_letters.guard import DeadLetters
from cdc.errors import ROW_ERRORS, GapError, TableRefusedError, UnreadTableError
from cdc.events.rules import EventRules
from cdc.lines import name_first
from cdc.postgres.described import TableDescription
from cdc.records.bounds import Bound, EndedRows
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema, is_readable_name
from cdc.records.state import SnapshotRequest, TableState
from cdc.records.topics import Cleanup
from cdc.settings import Settings
from cdc.tables.ended import EndedPartitions
from cdc.tables.notifications import Notifications
from cdc.tables.obstacles import Obstacles
from cdc.tables.reads import TableReads
from cdc.tables.schemas import EncoderRegistry, Filled, SchemaVersions, numbered
from cdc.tables.states import TableStates, WaitingTable, check_published
from cdc.wal.messages import Relation

log = structlog.get_logger()


class Lookups(NamedTuple):
    """The questions to PostgreSQL when relations arrive and tables join, each a function.

    ``columns`` returns a table's columns, ``entry`` the OID of its entry in the publication, by its
    own. ``description`` describes a table, by its OID and name, if a start now would capture it.
    ``instant``: the WAL's position, and then a transaction ID (64 bits) younger than every open
    one. ``check`` raises TableRefusedError for a table that a first start would refuse,
    ``check_readable`` if the role may not read rows of one. ``await_visible`` waits until the
    effects of a transaction (32 bits) are visible, or raises UnreadTableError. ``filled`` returns
    in which of these columns of a table, by its OID, rows have values that nothing wrote.
    """

    columns: Callable[[Relation], tuple[Column, ...]]
    entry: Callable[[int], int]
    description: Callable[[int, TableName], TableDescription | None]
    instant: Callable[[], tuple[Lsn, int]]
    check: Callable[[TableDescription], None]
    check_readable: Callable[[Sequence[TableDescription]], None]
    await_visible: Callable[[int], None]
    filled: Filled


class NewTopic(NamedTuple):
    """A topic that may not exist yet."""

    name: str
    cleanup: Cleanup


class Effects(NamedTuple):
    """The steps to take on the servers before records of a table are made or written.

    ``moves_wal``: the stream moves only if a session writes to the source.
    """

    topics: tuple[NewTopic, ...] = ()
    moves_wal: bool = False

    def and_then(self, later: "Effects") -> "Effects":
        """Return both."""
        return Effects(self.topics + later.topics, self.moves_wal or later.moves_wal)


NO_EFFECTS = Effects()


class Joined(NamedTuple):
    """The log's records for a table that joins. Empty while it waits."""

    records: list[Record]
    effects: Effects = NO_EFFECTS


class Arrival(NamedTuple):
    """The meaning of a relation. Without a schema its changes are skipped."""

    schema: TableSchema | None
    records: list[Record]
    effects: Effects = NO_EFFECTS


class Tables:
    """The captured tables as the log knows them, and as PostgreSQL has them.

    Anything new (a schema version, a table's state) is returned as a state record, to be written in
    the same Kafka transaction as the rows that need it.
    """

    def __init__(
        self,
        settings: Settings,
        database: str,
        states: Iterable[TableState],
        schemas: Iterable[TableSchema],
        rules: EventRules,
        pipeline: RecordPipeline,
        lookups: Lookups,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        """``states`` and ``schemas`` are the log's."""
        self._settings = capture = settings.capture
        self._lookups = lookups
        self.states = TableStates(settings, states, rules)
        self.reads = TableReads(self.states)
        self.schemas = SchemaVersions(
            capture,
            schemas,
            rules,
            self.reads,
            lookups.filled,
            shows_columns=not capture.lossless or pipeline.convert.shows_columns,
        )
        checks = lookups.check, lookups.check_readable
        self.obstacles = Obstacles(capture, self.states, self.reads, self.schemas, *checks)
        self.encoders = EncoderRegistry(
            capture, database, self.states, rules, pipeline, dead_letters
        )
        self.notifications = Notifications(capture, pipeline)
        self.ended = EndedPartitions(settings, self.states, self.schemas, self.encoders)

    def arrive(self, relation: Relation, since: Position, xid: int | None = None) -> Arrival:
        """Process a relation whose changes arrive, the first of them at ``since``.

        ``xid``: the transaction (32 bits) of its change.

        Raise UnreadTableError if the next start must read its rows first. A table that is gone now,
        or has another name, can never be read under this one. It is skipped, or every start would
        end here. (A renamed table is read under its new name.) A table that left the publication
        and came back continues until the catalog check has it read again. If that doesn't run (not
        ``lossless``), raise GapError: PostgreSQL then sends a new Relation.
        """
        states, table = self.states, TableName(relation.namespace, relation.name)
        records = states.renamed(relation.oid, table, since.commit_lsn)
        if table in states.waiting:
            return Arrival(None, records)
        if not (is_readable_name(table) and self._settings.captures(str(table))):
            return Arrival(None, [*records, *states.left_out(table)])
        entry = self._lookups.entry(relation.oid)
        if entry == 0 and xid is not None:  # gone, or not visible yet
            self._lookups.await_visible(xid)
            entry = self._lookups.entry(relation.oid)
        appears = table not in states and not self._settings.lossless
        effects = NO_EFFECTS
        if appears:
            columns = self._lookups.columns(relation)
            records += states.appeared(relation, columns, since, entry)
            effects = Effects((self._topic(table),))
        made_anew = entry != 0 and states.is_made_anew(table, relation.oid, entry)
        if made_anew or not states.is_followed(table):
            joined = self._join_arrived(relation.oid, table, since)
            records += joined.records
            effects = effects.and_then(joined.effects)
            if not (joined.records and states.is_taken(table)):
                return Arrival(None, records, effects)
        if entry == 0 and states[table].oid not in {0, relation.oid}:
            _pass_over(table, since, "they are from an older table of that name, which was dropped")
            return Arrival(None, records, effects)
        if entry != 0:  # 0: it has left
            records += self._check_entry(table, relation.oid, entry, since)
        if self._lacks_its_key(relation, since):
            joined = self._join_arrived(relation.oid, table, since, read=True)
            records += joined.records
            return Arrival(None, records, effects.and_then(joined.effects))
        schema, new = self._streamed(relation, since, xid)
        return Arrival(schema, [*records, *new], effects)

    def is_joinable(self, table: TableDescription, *, read: bool = False) -> bool:
        """Whether a table can be followed without its rows, or they can be ``read`` while it is."""
        name = str(table.name)
        if not (read or self._settings.snapshots(name)) and self.has_joined(table):
            return True
        return table.is_chunked and name not in self._settings.snapshot_select_statements

    def has_joined(self, table: TableDescription) -> bool:
        """Whether its changes aren't followed yet: it is new here, or another one of that name."""
        is_other = self.states.is_made_anew(table.name, table.oid, table.entry)
        return is_other or not self.states.is_followed(table.name)

    def has_signals(self, table: TableName) -> bool:
        """Whether a table's rows are signals, which count even if the table is set aside."""
        return str(table) == self._settings.signal_data_collection

    def check_taken(self, described: Iterable[TableDescription]) -> None:
        """Raise GapError for tables that are set aside, and that nothing would read again.

        This happens if the catalog isn't checked (not ``lossless``).
        """
        states = self.states
        aside = (table for table in described if states.is_set_aside(table.name))
        names = [str(table.name) for table in aside if not self.has_joined(table)]
        if names:
            raise GapError(
                f"the log lacks changes of tables that were set aside: {name_first(names)}",
                remedy="read them again: millrace snapshot " + " ".join(names),
            )

    def join(
        self, table: TableDescription, reached: Position, order: int = 0, *, read: bool = False
    ) -> Joined:
        """Follow a table that was described right before. Return the log's records.

        If its rows are wanted, or must be ``read``, that begins once the stream has reached the
        WAL's current end. Earlier changes may be of another table of that name, or of another form,
        and are skipped. Otherwise the table is followed from behind ``reached`` on. A table that
        can't be captured is set aside. Raise UnreadTableError if its rows can't be read while
        streaming.
        """
        name = str(table.name)
        if (error := self.obstacles.of(table)) is not None:
            return Joined(self.obstacles.refuse(table, error, reached))
        if not self.is_joinable(table, read=read):
            raise UnreadTableError(
                f"table {name} is now captured, and its rows were never read",
                where=f"position {reached}",
                remedy="start again: its rows are read first",
            )
        waiting = WaitingTable(table, *self._lookups.instant(), order)
        if not (read or self._settings.snapshots(name)):
            return self._follow(waiting, reached)
        self.states.waiting[table.name] = waiting
        state = self.states.get(table.name)
        left = [] if state is None else self._leave(state)
        begun = self.begin_waiting(reached)
        return begun._replace(records=[*left, *begun.records])

    def _leave(self, state: TableState) -> list[Record]:
        """Record up to where a table was right that another one replaces."""
        # An active read is useless now, and mustn't complete the table.
        requests = () if state.initial else state.requests
        right_until = self.states.right_until(state.name) if self._settings.lossless else None
        return self.states.set_requests(state.name, requests, right_until=right_until)

    def begin_waiting(self, reached: Position) -> Joined:
        """Begin to read one table that has joined, if the stream has come that far.

        Each call begins one: it takes a topic, and brokers need time to create it. An open
        transaction's changes from before the table was published aren't in the stream: chunks must
        show them.
        """
        for name, (table, wal_end, xid, order) in self.states.waiting.items():
            if reached.commit_lsn < wal_end:
                continue
            del self.states.waiting[name]
            log.info("a new table is captured: its rows are read while streaming", table=str(name))
            now_ms = time.time_ns() // 1_000_000
            request = SnapshotRequest(kind="initial", order=order, behind_xid=xid, begun_ms=now_ms)
            events, states = self.begin_anew(table, reached, (request,), reached)
            strategy = self._settings.incremental_snapshot_watermarking_strategy
            # Without watermarks its rows wait until the stream moves, by any session's writes.
            effects = Effects((self._topic(name),), moves_wal=strategy == "read_only")
            started = self.notifications.initial("STARTED", reached, [name])
            return Joined([*states, *events, *started], effects)
        return Joined([])

    def begin_anew(
        self,
        table: TableDescription,
        at: Position,
        requests: tuple[SnapshotRequest, ...],
        gone: Position | None = None,
        bounds: Sequence[tuple[Bound, ...]] | None = None,
    ) -> tuple[list[Record], list[Record]]:
        """Begin to read a table. The log's rows of it up to ``gone`` must go.

        ``requests``: all requests of the table from here on. By default, all rows before ``at`` go.
        With ``bounds`` of partitions, only rows within these go. Return events, and state records.
        The table is set aside if no such event can be made.
        """
        before = self.states.get(table.name)
        states = self.states.begin_snapshot(table, at, requests, is_part=bounds is not None)
        if before is None or not before.is_in_log or not self._settings.lossless:
            return [], states
        upto, ts_us = gone or at.just_before(), time.time_ns() // 1_000
        try:
            schema, new = self.schemas.described(table, at)
            states += new
            encoder = self.encoders.encoder(schema)
            if bounds is None:
                return encoder.snapshot_truncate(upto, ts_us), states
            rows = (EndedRows(bounds=each, upto=upto) for each in bounds)
            events = [event for each in rows for event in encoder.ended(each, upto, ts_us)]
        except (*ROW_ERRORS, TableRefusedError) as error:  # the next state needs these records
            return [], [*states, *self.obstacles.set_aside(table.name, error)]
        return events, states

    def take_as_read(self, table: TableDescription, at: Position) -> list[Record]:
        """Record that a table's first read is complete at a position, with the rows read so far."""
        _, new = self.schemas.described(table, at)
        state = self.states[table.name]
        assert state.initial is not None  # noqa: S101 (it has one until it is whole)
        return [*new, *self.reads.finish(table.name, state.initial, at, state.pages_total)]

    def _streamed(
        self, relation: Relation, since: Position, xid: int | None
    ) -> tuple[TableSchema | None, list[Record]]:
        """Return the schema of a relation. None if the table is set aside for its current form."""
        table, identity = TableName(relation.namespace, relation.name), relation.replica_identity
        identifying = {column.name for column in relation.columns if column.key}

        def checked(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            self.obstacles.check_key(table, columns, identity, identifying)
            return columns

        try:
            schema, new = self.schemas.streamed(
                relation, since, lambda: checked(self._columns(relation, since, xid))
            )
            checked(schema.columns)  # a version may be known that was described, and never streamed
        except TableRefusedError as error:
            return None, self.obstacles.set_aside(table, error)
        return schema, new

    def _columns(self, relation: Relation, since: Position, xid: int | None) -> tuple[Column, ...]:
        """Return its columns. The stream has DDL before other sessions see it in the catalog."""
        if xid is not None and self._settings.lossless:
            self._lookups.await_visible(xid)
        columns = self._lookups.columns(relation)
        name = TableName(relation.namespace, relation.name)
        before = self.schemas.newest(name)
        is_sure = all(column.number is not None for column in columns)
        if is_sure or before is None or since < Position.parse(before.since):
            return columns
        return numbered(columns, before, self._lookups.description(relation.oid, name))

    def _check_entry(self, table: TableName, oid: int, entry: int, since: Position) -> list[Record]:
        """Record an entry that the log lacks. ``arrive`` handles an entry that differs."""
        state = self.states[table]
        if not self._settings.lossless:
            check_published([state], {table: (oid, entry)}, since.commit_lsn)
        return [] if state.entry else self.states.put(state.model_copy(update={"entry": entry}))

    def _lacks_its_key(self, relation: Relation, since: Position) -> bool:
        """Whether a table that is followed without its rows was filled before it had its key.

        Its topic accepts no record without a key, so such rows must be read.
        """
        state = self.states[TableName(relation.namespace, relation.name)]
        if state.cleanup != "compact" or since.commit_lsn >= state.joined_lsn:
            return False
        columns = self._lookups.columns(relation)
        return not self.states.is_keyed(columns, state.name, relation.replica_identity)

    def _join_arrived(
        self, oid: int, name: TableName, since: Position, *, read: bool = False
    ) -> Joined:
        """Follow a table whose changes arrive, the first of them at ``since``; see ``join``.

        A table that is gone, or has another name now, is skipped with a warning. Raise
        UnreadTableError if it can't be read while streaming.
        """
        table = self._lookups.description(oid, name)
        if table is None:
            reason = "it was dropped, renamed or removed from the publication before it was read"
            _pass_over(name, since, reason)
            return Joined([])
        return self.join(table, since._replace(index=since.index - 1), read=read)

    def _follow(self, joined: WaitingTable, reached: Position) -> Joined:
        """Follow a table without its rows. Its earlier content is no gap."""
        table, wal_end, xid, _ = joined
        log.info("a new table is captured: its changes are followed", table=str(table.name))
        if (before := self.states.get(table.name)) is not None:
            reached = max(reached, Position(before.epoch, before.snapshot_lsn, 0))
        first = (SnapshotRequest(kind="initial"),)
        events, states = self.begin_anew(table, reached, first, reached)
        state = self.states[table.name]
        behind = {"joined_lsn": wal_end, "joined_xid": xid}
        records = [*states, *events, *self.states.put(state.model_copy(update=behind))]
        if not self.states.is_set_aside(table.name):
            records += self.take_as_read(table, reached)
        return Joined(records, Effects((self._topic(table.name),)))

    def _topic(self, table: TableName) -> NewTopic:
        state = self.states[table]
        return NewTopic(state.topic, state.cleanup)


def _pass_over(table: TableName, since: Position, reason: str) -> None:
    log.warning(
        "changes of a table are ignored", table=str(table), position=str(since), reason=reason
    )
