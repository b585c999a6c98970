"""What the log has of tables → all that is known of them, and what becomes of their rows.

Relations that arrive, and described tables, go through a state machine: a table's changes are
followed, passed over, or wait until its rows are being read; what it lacks is a gap (GapError).
A table whose changes can't be taken is set aside, with the reason as its doubt.
Nothing is done here: what the log gets is returned, and so is what has to be done before that is
written. PostgreSQL is asked through functions that whoever does that hands in.
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
    """What is asked of PostgreSQL as relations arrive and tables join, each a function.

    ``columns`` of a table. ``entry``: the OID of its entry in the publication, by its own.
    ``description`` of a table, by its OID and name, if a start now would find it among those to
    capture. ``instant``: how far the WAL is, and then a transaction ID (64 bits) that is younger
    than whatever is open. ``check`` raises TableRefusedError for a table that a first start would
    refuse, ``check_readable`` where the role may not read rows of one of them. ``await_visible``:
    waits until what a transaction (32 bits) has done is seen, or raises UnreadTableError.
    ``filled``: in which of these columns of a table, by its OID, rows have values that nothing
    wrote.
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
    """A topic that may not be there yet."""

    name: str
    cleanup: Cleanup


class Effects(NamedTuple):
    """What has to be done on the servers before records of a table are made or written.

    ``moves_wal``: the stream goes on only where somebody writes to the source.
    """

    topics: tuple[NewTopic, ...] = ()
    moves_wal: bool = False

    def and_then(self, later: "Effects") -> "Effects":
        """Both."""
        return Effects(self.topics + later.topics, self.moves_wal or later.moves_wal)


NO_EFFECTS = Effects()


class Joined(NamedTuple):
    """What the log gets by a table that joins; nothing while it waits."""

    records: list[Record]
    effects: Effects = NO_EFFECTS


class Arrival(NamedTuple):
    """What a relation means; without a schema its changes are passed over."""

    schema: TableSchema | None
    records: list[Record]
    effects: Effects = NO_EFFECTS


class Tables:
    """The captured tables as the log knows them, and as PostgreSQL has them.

    What is new (a schema version, a table's state) is handed out as a state record, to be written
    in the same Kafka transaction as the rows that need it.
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
        """``states`` and ``schemas`` are those that the log has."""
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
        """A relation whose changes arrive, the first of them at ``since``.

        ``xid``: the transaction (32 bits) that its change is of.

        Raises UnreadTableError when the next start has to read its rows first. A table that is gone
        since, or has another name, can't be read under this one, ever: it is passed over, or every
        start would end here. (What has another name is read under that.) One that left the
        publication and came back goes on, until the catalog check has it read again; where that
        doesn't run (not ``lossless``), GapError: PostgreSQL then sends a new Relation.
        """
        states, table = self.states, TableName(relation.namespace, relation.name)
        records = states.renamed(relation.oid, table, since.commit_lsn)
        if table in states.waiting:
            return Arrival(None, records)
        if not (is_readable_name(table) and self._settings.captures(str(table))):
            return Arrival(None, [*records, *states.left_out(table)])
        entry = self._lookups.entry(relation.oid)
        if entry == 0 and xid is not None:  # gone, or not to be seen yet
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
        if entry != 0:  # 0: it has just left, maybe for ever
            records += self._check_entry(table, relation.oid, entry, since)
        if self._lacks_its_key(relation, since):
            joined = self._join_arrived(relation.oid, table, since, read=True)
            records += joined.records
            return Arrival(None, records, effects.and_then(joined.effects))
        schema, new = self._streamed(relation, since, xid)
        return Arrival(schema, [*records, *new], effects)

    def is_joinable(self, table: TableDescription, *, read: bool = False) -> bool:
        """Whether a table can be followed without its rows, or these be ``read`` while it is."""
        name = str(table.name)
        if not (read or self._settings.snapshots(name)) and self.has_joined(table):
            return True
        return table.is_chunked and name not in self._settings.snapshot_select_statements

    def has_joined(self, table: TableDescription) -> bool:
        """Whether its changes aren't followed yet: it is new here, or another one of that name."""
        is_other = self.states.is_made_anew(table.name, table.oid, table.entry)
        return is_other or not self.states.is_followed(table.name)

    def has_signals(self, table: TableName) -> bool:
        """Whether a table's rows are signals: these count though the table be set aside."""
        return str(table) == self._settings.signal_data_collection

    def check_taken(self, described: Iterable[TableDescription]) -> None:
        """Raise GapError for tables that are set aside, and that nobody would read again.

        That is so where the catalog isn't checked (not ``lossless``).
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
        """Follow a table that was described just now; returns what the log gets.

        Where its rows are wanted, or have to be ``read``, that begins once the stream has come to
        the WAL's present end: what it brings from before may be of another table of that name, or
        of another shape, and is passed over. Otherwise it is followed from behind ``reached`` on.
        One that can't be captured is set aside. Raises UnreadTableError where its rows can't be
        read while it is streamed.
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
        """Note up to where a table was right in whose place another one is read."""
        # A read that was under way is of no use any more, and mustn't make it whole meanwhile.
        requests = () if state.initial else state.requests
        right_until = self.states.right_until(state.name) if self._settings.lossless else None
        return self.states.set_requests(state.name, requests, right_until=right_until)

    def begin_waiting(self, reached: Position) -> Joined:
        """Begin to read one that has joined, if the stream has come so far.

        One at a time: it takes a topic, which brokers take a while to make. What an open
        transaction did to it before it was published isn't in the stream: chunks have to show that.
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
            # Without watermarks its rows wait until the stream has moved, by whomever.
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
        """Begin to read a table; rows that the log has of it up to ``gone`` are to be gone.

        ``requests``: all of the table's from here on. By default what is before ``at`` goes, and
        all of it; with ``bounds`` of partitions, what is within these. Returns events, and state
        records; a table is set aside of which no such event can be made.
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
        """Note that a table that was begun is whole at a position, with whatever was read of it."""
        _, new = self.schemas.described(table, at)
        state = self.states[table.name]
        assert state.initial is not None  # noqa: S101 (it has one until it is whole)
        return [*new, *self.reads.finish(table.name, state.initial, at, state.pages_total)]

    def _streamed(
        self, relation: Relation, since: Position, xid: int | None
    ) -> tuple[TableSchema | None, list[Record]]:
        """The schema of a relation; none where the table is set aside for what it is by now."""
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
        """Its columns; the stream has a transaction's DDL before others see it in the catalog."""
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
        """Note an entry that the log lacks; see ``arrive`` for another one than it has."""
        state = self.states[table]
        if not self._settings.lossless:
            check_published([state], {table: (oid, entry)}, since.commit_lsn)
        return [] if state.entry else self.states.put(state.model_copy(update={"entry": entry}))

    def _lacks_its_key(self, relation: Relation, since: Position) -> bool:
        """Whether a table that is followed without its rows was filled before it had its key.

        Its topic takes no record without: such rows are to be had only by reading them.
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

        One that is gone, or has another name by now, is passed over, with a warning. Raises
        UnreadTableError for one that can't be read while streaming.
        """
        table = self._lookups.description(oid, name)
        if table is None:
            reason = "it was dropped, renamed or removed from the publication before it was read"
            _pass_over(name, since, reason)
            return Joined([])
        return self.join(table, since._replace(index=since.index - 1), read=read)

    def _follow(self, joined: WaitingTable, reached: Position) -> Joined:
        """Follow a table without its rows; what it was like until now is no gap."""
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
