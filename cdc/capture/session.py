"""One start: connections, slot, log, tables, snapshot, up to where only streaming is left to do.

docs/decisions/0002-start-and-acknowledge.md has the order of a start and what each start finds
after a death at any point.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import psycopg
import structlog
from psycopg.pq.abc import PGconn

from cdc.capture import start
from cdc.capture.backfill import Again, Backfill, SnapshotObserver, SnapshotWriter
from cdc.capture.health import Health
from cdc.capture.slot_lease import Hold, StoppedError
from cdc.capture.wiring import open_tables
from cdc.dead_letters.letters import Refusals
from cdc.errors import ConfigError, UnreadTableError
from cdc.faults import FaultPoint, reach
from cdc.kafka.at_least_once import AtLeastOnceWriter
from cdc.kafka.producer import LogWriter
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress
from cdc.postgres import preflight, publication, risks, slot
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import (
    System,
    act,
    connect,
    current_wal_end,
    identify,
)
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Phase, Progress, progress_record
from cdc.records.topics import progress_topic
from cdc.settings import Settings
from cdc.tables.states import check_published
from cdc.tables.tables import Tables

log = structlog.get_logger()


class Session:
    """Everything that one start opens, and closes again when the stack unwinds."""

    writers: tuple[LogWriter, LogWriter]
    tables: Tables
    _topics: LogTopics
    _sql: psycopg.Connection
    _system: System
    _described: list[TableDescription]
    _slot: slot.SlotState | None
    _progress: Progress | None

    def __init__(
        self,
        settings: Settings,
        stack: ExitStack,
        stop: threading.Event,
        health: Health,
        *,
        refusals: Refusals,
        in_progress: bool = True,
    ) -> None:
        """``in_progress``: large transactions are to be sent before they have ended."""
        self._settings = settings
        self._refusals = refusals
        self._capture = settings.capture
        self._stack = stack
        self._stop = stop
        self._health = health
        self._in_progress = in_progress
        self._described = []
        self.has_waited = False
        """Whether this start has stood by: then all that a start checks at first was right."""

    def open(self, again: Sequence[str] = ()) -> None:
        """Connect to both sides, hold the slot and the log, and make sure that they fit."""
        self._take_lock()
        self._described = self._publish(self._check_tables(), again)
        risks.warn_of_failover(self._sql, self._capture.slot_failover)
        self._hold_slot()
        self._open_log()
        if self._progress is None:
            if self._capture.snapshot_mode == "recovery":
                raise start.nothing_to_go_on_from(self._capture.slot_name)
            start.check_unrecorded(self._slot, self._capture.slot_name)
        elif self._progress.phase is not Phase.CREATING and not self.is_complete:
            self._check_continuity(self._progress)
            self._progress = self._progress.model_copy(update={"timeline": self._system.timeline})
        self.tables = open_tables(
            self._settings, self._system, self._topics, self._sql, self._stack, self._refusals
        )
        self._health.opened(self._progress, self.tables.states)
        if self._progress is None or self._progress.is_first_start:
            start.check_untouched(self.tables.states, [table.name for table in self._described])
        if not again:  # one gap after the other can be mended so
            whole = [s for s in self.tables.states.values() if self.tables.is_whole(s.name)]
            check_published(whole, _published(self._described))
        self._topics.ensure_data_topics(self.tables.states.values(), self._described)

    def _connect(self) -> None:
        self._sql = self._stack.enter_context(connect(self._settings.source, purpose="control"))
        self.hold = Hold(
            self._settings,
            self._sql,
            self._stack,
            self._stop,
            self._health,
            in_progress=self._in_progress,
            on_wait=self._waits,
        )
        self._system = self._identify()
        self._topics = LogTopics(self._settings, self.hold.keep_alive)

    def _waits(self) -> None:
        self.has_waited = True

    def _take_lock(self) -> None:
        """Look at both sides, and take the right to the slot: a standby waits here."""
        self._connect()
        self._check_tables()
        self._topics.check_reachable()
        self.hold.lock()
        # A standby has waited long: the server may go by another timeline now.
        self._system = self._identify()

    def _hold_slot(self) -> None:
        """Stream from the slot, if there is one that gives anything."""
        self._slot = slot.inspect(self._sql, self._capture.slot_name)
        if self._slot is not None:
            slot.verify_ours(self._sql, self._slot)
            if slot.why_lost(self._slot) is None:
                self.hold.stream()

    def _open_log(self) -> None:
        """Fence off who wrote before, and read how far the log is."""
        self._topics.ensure_state_topics()
        self.writers = self._open_writers()
        self._progress = self._last_progress()

    def _check_continuity(self, progress: Progress) -> None:
        wal_end = current_wal_end(self._sql)
        start.check_continuity(progress, self._slot, self._system, wal_end)

    @property
    def writer(self) -> LogWriter:
        """The one that writes while there is no stream to keep up with."""
        return self.writers[0]

    @property
    def snapshotted(self) -> list[str]:
        """The tables whose rows the settings let a snapshot read, as people write them."""
        names = (str(table.name) for table in self._described)
        return [name for name in names if self._capture.snapshots(name)]

    @property
    def is_complete(self) -> bool:
        """Whether an earlier start did all that snapshot.mode = initial_only asks for."""
        return (
            self._capture.snapshot_mode == "initial_only"
            and self._slot is None
            and self._progress is not None
            and self._progress.phase is Phase.STREAMING
        )

    def end_slot(self) -> None:
        """Take the slot away: nobody is going to stream from it."""
        self.hold.release()
        slot.drop(self._sql, self._capture.slot_name)

    def catch_up(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        again: Sequence[str] = (),
    ) -> Progress:
        """Make the slot and read existing rows where that is still to do; returns the progress.

        What can be read while streaming is left for that: what is asked for by name, and what a new
        slot's snapshot gives in its time, is read here.
        """
        progress, exported = self._progress, None
        # As long as a snapshot is exported, the source can't vacuum, nor remove WAL: not for long.
        with ExitStack() as exporting:
            if progress is None or progress.phase is Phase.CREATING:
                self.hold.release()
                progress, exported = start.create_slot(
                    self._settings,
                    self._sql,
                    self._connect_replication(exporting),
                    self._system,
                    self.writer,
                    before=progress,
                    left_over=self._slot,
                    on_wait=self.hold.wait_for_open_transactions,
                )
            self._health.opened(progress, self.tables.states)
            at_once = exported is not None and not self._settings.begins_at_standby
            if self._to_read(again, at_once=at_once):
                if exported is None:
                    exported = exporting.enter_context(self._exact_snapshot())
                self._describe_again()
                unread = self._to_read(again, at_once=at_once)
                # Changes from before the snapshot aren't followed: its rows have to make up for it.
                asked = again if at_once else [str(table.name) for table in unread]
                progress = self._snapshot(
                    *(backfill, observer, exported, unread, progress, asked),
                )
        return self._begin_streaming(progress)

    def _to_read(self, again: Sequence[str], *, at_once: bool) -> list[TableDescription]:
        """The tables that have to be read before streaming begins."""
        unread = self.tables.unread(self._described, again)
        if self._capture.snapshot_mode == "recovery":
            return [one for one in unread if str(one.name) in again]
        if at_once:
            return unread
        can_wait = self.tables.can_be_late
        return [one for one in unread if str(one.name) in again or not can_wait(one)]

    def read_again(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        wanted: Mapping[TableName, str | None],
        xid: int | None,
    ) -> int:
        """Read tables that are being streamed once more; returns the number of events.

        A table may have a SELECT of its own. ``xid``: the last transaction that was streamed.
        """
        captured = [CapturedTable(self.tables.states[table].oid, table) for table in wanted]
        again = Again({table: own for table, own in wanted.items() if own is not None}, xid)
        assert self._progress is not None  # noqa: S101 (there is a stream)
        epoch = self._progress.position.epoch
        events = self._snapshot_writer(observer, epoch).write_again(
            backfill,
            self._exact_snapshot(),
            lambda: described_tables(self._sql, self._capture, captured),
            self._stop,
            again,
        )
        if self._stop.is_set():
            raise StoppedError
        return events

    def _exact_snapshot(self) -> AbstractContextManager[slot.ExportedSnapshot]:
        return slot.exact_snapshot(
            self._settings.source,
            self._capture.slot_name,
            on_wait=self.hold.wait_for_open_transactions,
        )

    def _snapshot_writer(self, observer: SnapshotObserver, epoch: int) -> SnapshotWriter:
        return SnapshotWriter(
            self._capture,
            self.writers,
            self.tables,
            epoch=epoch,
            keep_alive=self.hold.keep_alive,
            observer=observer,
        )

    def _identify(self) -> System:
        replication = self.hold.connect_replication()
        try:
            return identify(replication)
        finally:
            replication.finish()

    def _check_tables(self) -> list[CapturedTable]:
        """The captured tables, checked for everything that can be wrong on PostgreSQL's side."""
        captured = captured_tables(self._sql, self._capture)
        described = self._describe(captured)
        preflight.check(self._sql, self._settings.source, self._capture, described)
        return captured

    def _publish(
        self, captured: Sequence[CapturedTable], again: Sequence[str]
    ) -> list[TableDescription]:
        """Make or check the publication; returns the tables as they are published."""
        publication.ensure(self._sql, self._capture, captured)
        described = self._describe(captured)
        missing = set(again) - {str(table.name) for table in described}
        if missing:
            raise ConfigError(
                f"not captured: {', '.join(sorted(missing))}",
                where="table.include.list and the publication",
                remedy="name tables as schema.table, that the lists and the publication have",
            )
        return described

    def _describe(self, captured: Sequence[CapturedTable]) -> list[TableDescription]:
        """The tables in the order in which they are read."""
        described = described_tables(self._sql, self._capture, captured)
        return sorted(described, key=lambda table: self._capture.snapshot_rank(str(table.name)))

    def _describe_again(self) -> None:
        """Look tables up once more: what changed before the snapshot is in it, and only there."""
        captured = [CapturedTable(table.oid, table.name) for table in self._described]
        before = _published(self._described)
        self._described = self._describe(captured)
        if any(before[name] != now for name, now in _published(self._described).items()):
            raise UnreadTableError(
                "the publication was changed while a snapshot was about to begin",
                where=self._capture.publication_name,
                remedy="start again",
            )
        self._topics.ensure_data_topics(self.tables.states.values(), self._described)

    def _connect_replication(self, stack: ExitStack) -> PGconn:
        connection = self.hold.connect_replication()
        stack.callback(connection.finish)
        return connection

    def _open_writers(self) -> tuple[LogWriter, LogWriter]:
        """Both are opened before anything is read: what an older one may still do is settled."""
        options = self._topics.writer_options(self._described)
        name = f"millrace-{self._capture.topic_prefix}-{self._capture.slot_name}"
        return self._open_writer(name, options), self._open_writer(f"{name}.2", options)

    def _open_writer(self, transactional_id: str, options: Mapping[str, str]) -> LogWriter:
        exactly, suspects = self._settings.log.delivery == "exactly_once", self._refusals.suspects
        kind = LogWriter if exactly else AtLeastOnceWriter
        writer = kind(options, transactional_id, self.hold.keep_alive, suspects)
        self._stack.callback(writer.close)
        writer.open()
        return writer

    def _last_progress(self) -> Progress | None:
        topic = progress_topic(self._capture.topic_prefix)
        return last_progress(
            self._settings.kafka, topic, self._capture.slot_name, self.hold.keep_alive
        )

    def act_on_heartbeat(self) -> None:
        """Run the user's heartbeat.action.query, if there is one."""
        statement = self._capture.heartbeat_action_query
        if statement is not None:
            act(self._sql, statement)

    def _snapshot(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        exported: slot.ExportedSnapshot,
        unread: Sequence[TableDescription],
        progress: Progress,
        asked: Sequence[str],
    ) -> Progress:
        log.info("snapshot", tables=len(unread), consistent_point=str(exported.consistent_point))
        epoch = progress.position.epoch
        events = self._snapshot_writer(observer, epoch).write(
            backfill,
            exported,
            unread,
            self._stop,
            asked,
            self._capture.snapshot_transaction_max_ms / 1_000,
        )
        reach(FaultPoint.SNAPSHOT_DONE)
        return progress.model_copy(update={"events": progress.events + events})

    def _begin_streaming(self, progress: Progress) -> Progress:
        if self._stop.is_set():
            return progress
        progress = progress.model_copy(update={"phase": Phase.STREAMING})
        late = self._begin_late(progress.position)
        if late or progress != self._progress:
            self.writer.write(late)
            self.writer.write([progress_record(self._capture.topic_prefix, progress)])
            self.writer.commit()
        self._progress = progress
        return progress

    def _begin_late(self, position: Position) -> list[Record]:
        """Begin to follow tables that the log doesn't know, or knows as others of that name."""
        tables, records = self.tables, list[Record]()
        for order, table in enumerate(filter(tables.has_joined, self._described)):
            if self._capture.snapshot_mode == "recovery":
                records += tables.begin_snapshot(table, position)
                records += tables.take_as_read(table, position)
            else:
                records += tables.join(table, position, order)
                self.hold.keep_alive()
        return records


def _published(described: Sequence[TableDescription]) -> dict[TableName, tuple[int, int]]:
    """The OIDs of each table and of its entry in the publication."""
    return {table.name: (table.oid, table.entry) for table in described}
