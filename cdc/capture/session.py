"""Settings → one start: publication, slot, tables and snapshot, until only streaming is left.

docs/decisions/0002-start-and-acknowledge.md has the order of a start, and the state that each start
meets after a crash at any point.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import structlog

from cdc.capture import start
from cdc.capture.backfill import Backfill, SnapshotObserver, SnapshotWriter
from cdc.capture.servers import Servers
from cdc.capture.slot_lease import StoppedError
from cdc.capture.wiring import open_actions, open_tables
from cdc.errors import NotDoneError, UnreadTableError
from cdc.faults import FaultPoint, reach
from cdc.lines import name_first
from cdc.postgres import slot
from cdc.postgres.captured import described_tables, require_captured
from cdc.postgres.checks import risks
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Phase, Progress, progress_record
from cdc.records.topics import data_topic
from cdc.stream.encoding import Actions
from cdc.tables.reads import Again
from cdc.tables.states import check_published
from cdc.tables.tables import Tables

log = structlog.get_logger()


class Session:
    """Reads of tables as one start finds them, on servers that it has opened."""

    tables: Tables
    actions: Actions

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._capture = servers.settings.capture
        self._described: list[TableDescription] = []
        self._left_out: list[TableDescription] = []
        """Tables that the include and exclude lists select, but the publication lacks."""

    def open(self, again: Sequence[str] = (), *, tries_again: bool = False) -> None:
        """Connect to both sides, take the slot and the log, and check that they fit.

        ``tries_again``: read tables again whose reads were abandoned.
        """
        servers = self.servers
        servers.take_lock()
        self._publish(servers.check_tables(), again)
        risks.warn_of_failover(servers.sql, self._capture.slot_failover)
        servers.stream_slot()
        servers.open_log(self._described)
        self._check_progress()
        self.tables = open_tables(servers)
        self.actions = open_actions(servers, self.tables)
        states = self.tables.states
        servers.health.opened(servers.progress, states)
        if tries_again and (records := self.tables.obstacles.try_again()):
            servers.record(records)
        aside = self._set_aside(again)
        if servers.is_first_start:
            start.check_untouched(states, [table.name for table in self._described])
        if not (again or self._capture.lossless):  # otherwise each gap could be closed so
            whole = [state for state in states.values() if states.is_whole(state.name)]
            check_published(whole, _published(self._described))
            self.tables.check_taken(self._described)
        servers.topics.ensure_data_topics(states.values(), self._described, aside)

    def _set_aside(self, again: Sequence[str]) -> list[TableDescription]:
        """Set aside tables that can't be captured. Return those among them that have a topic.

        If the stream hasn't reached the obstacle yet, it sets the table aside there. Raise
        TableRefusedError if tables must not be set aside.
        """
        states, obstacles, servers = self.tables.states, self.tables.obstacles, self.servers
        aside, left = list[TableDescription](), list[TableDescription]()
        records = [*self._refused(), *self._tell_left_out()]
        for table, error in obstacles.of_all(self._described):
            is_asked = str(table.name) in again
            if error is None and (is_asked or not obstacles.is_given_up(table.name)):
                left.append(table)
                continue
            if error is not None:
                if is_asked or not servers.is_spared(table) or servers.is_first_start:
                    raise error
                assert servers.progress is not None  # noqa: S101 (the log has begun)
                if not obstacles.is_ahead(table):
                    records += obstacles.refuse(table, error, servers.progress.position)
            aside += [table] if states[table.name].is_in_log else []
        if records:
            servers.record(records)
        self._described = left
        return aside

    def _tell_left_out(self) -> list[Record]:
        """Set aside tables that the publication lacks, or warn of them."""
        obstacles, records = self.tables.obstacles, list[Record]()
        for table in self._left_out:
            if self.servers.is_first_start:
                raise obstacles.why_left_out(table)
            assert self.servers.progress is not None  # noqa: S101 (the log has begun)
            records += obstacles.leave_out(table, self.servers.progress.position)
        return records

    def _refused(self) -> list[Record]:
        """Set aside tables with a record that the brokers have refused. The log ends before it.

        Raise the refusal if no table has its topic, if the log lacks more than the table's changes
        and rows, or if tables must not be set aside.
        """
        tables, progress, records = self.tables, self.servers.progress, list[Record]()
        topics = {
            data_topic(self._capture.topic_prefix, each.name): each for each in self._described
        }
        names = {state.topic: state.name for state in tables.states.values() if state.is_in_log}
        refusals = self.servers.refusals
        writers = refusals.of_writers.items()
        of_writers = {data_topic(self._capture.topic_prefix, name): each for name, each in writers}
        for topic, error in (refusals.of_tables | of_writers).items():
            if topic not in names and topic in topics and progress is not None:
                # The refusal hit the table's rows, before the log had any of it.
                names[topic] = topics[topic].name
                records += tables.states.begin_snapshot(topics[topic], progress.position)
            name = names.get(topic)
            is_over = name is not None and tables.reads.is_over(name)
            is_in_vain = refusals.is_in_vain(topic, is_over=is_over)
            if name is None or is_in_vain or not self._capture.lossless:
                error.refused = None  # a restart wouldn't help
                raise error
            records += tables.obstacles.set_aside(name, error)
            asked = tables.states[name].requests  # the refused rows were read for these
            records += tables.reads.end(name, asked, "SQL_EXCEPTION", error.what)
        refusals.of_writers.clear()
        refusals.of_tables.clear()
        return records

    def _check_progress(self) -> None:
        """Check that the stream continues where the log ends."""
        servers = self.servers
        start.look_at_progress(servers)
        progress = servers.progress
        if progress and progress.phase is not Phase.CREATING and not servers.is_complete:
            timeline = servers.system.timeline
            servers.progress = progress.model_copy(update={"timeline": timeline})

    def check_read(self) -> None:
        """Raise NotDoneError if captured tables are set aside, as none is read without the slot."""
        states, captures = self.tables.states, self._capture.captures
        aside = {
            name: frozenset[str]()
            for name, state in states.items()
            if state.is_set_aside and not state.gone_ms and captures(str(name))
        }
        if reasons := self.tables.reads.not_done(aside):
            unread = "; ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
            raise NotDoneError(
                f"not read: {unread}",
                remedy="solve this, or leave the tables out (table.exclude.list), and start again;"
                " until then the slot holds back WAL",
            )

    @property
    def snapshotted(self) -> list[str]:
        """Return the tables whose rows the settings and the role's rights let a snapshot read."""
        wanted = (each for each in self._described if self._capture.snapshots(str(each.name)))
        is_readable = self.tables.obstacles.is_readable
        return [str(table.name) for table in wanted if is_readable(table)]

    def catch_up(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        again: Sequence[str] = (),
    ) -> Progress:
        """Create the slot and read existing rows, as far as needed. Return the progress.

        Reads tables that are asked for by name, and what a new slot's snapshot allows in its time.
        Other tables are read while streaming.
        """
        servers = self.servers
        progress, exported = servers.progress, None
        # While a snapshot is exported, the source can't vacuum or remove WAL. Keep that short.
        with ExitStack() as exporting:
            if progress is None or progress.phase is Phase.CREATING:
                servers.lease.release()
                replication = servers.lease.connect_replication()
                exporting.callback(replication.finish)
                progress, exported = start.create_slot(servers, replication)
            elif progress.phase is Phase.SNAPSHOT:  # the last start ended before it counted
                events = progress.events + self.tables.reads.rows_read(progress.position.epoch)
                progress = progress.model_copy(update={"events": events})
            servers.health.opened(progress, self.tables.states)
            at_once = exported is not None and not self.servers.settings.begins_at_standby
            if self._to_read(again, at_once=at_once):
                if exported is None:
                    exported = exporting.enter_context(self._exact_snapshot())
                self._describe_again()
                unread = self._to_read(again, at_once=at_once)
                # The stream doesn't have changes from before the snapshot, so its rows must replace
                # them.
                named = again if at_once else [str(table.name) for table in unread]
                progress = self._snapshot(backfill, observer, exported, unread, progress, named)
        return self._begin_streaming(progress)

    def _to_read(self, again: Sequence[str], *, at_once: bool) -> list[TableDescription]:
        """Return the tables that must be read before streaming begins."""
        tables = self.tables
        unread = [
            table
            for table in self._described
            if str(table.name) in again
            or tables.has_joined(table)
            or not tables.states.is_whole(table.name)
        ]
        if self._capture.snapshot_mode == "recovery":
            return [table for table in unread if str(table.name) in again]
        if at_once:
            return unread
        can_wait = self.tables.is_joinable
        return [table for table in unread if str(table.name) in again or not can_wait(table)]

    def read_again(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        wanted: Mapping[TableName, str | None],
        xid: int | None,
    ) -> int:
        """Read tables again that are streaming already. Return the number of events.

        A table can have its own SELECT. ``xid`` is the last transaction that was streamed.
        """
        captured = [CapturedTable(self.tables.states[table].oid, table) for table in wanted]
        again = Again({table: own for table, own in wanted.items() if own is not None}, xid)
        assert self.servers.progress is not None  # noqa: S101 (there is a stream)
        epoch = self.servers.progress.position.epoch
        events = self._snapshot_writer(observer, epoch).write_again(
            backfill,
            self._exact_snapshot(),
            lambda: described_tables(self.servers.sql, self._capture, captured),
            self.servers.stop,
            again,
        )
        if self.servers.stop.is_set():
            raise StoppedError
        return events

    def _exact_snapshot(self) -> AbstractContextManager[slot.ExportedSnapshot]:
        return slot.exact_snapshot(
            self.servers.settings.source,
            self._capture.slot_name,
            on_wait=self.servers.lease.wait_for_open_transactions,
        )

    def _snapshot_writer(self, observer: SnapshotObserver, epoch: int) -> SnapshotWriter:
        return SnapshotWriter(
            self._capture,
            self.servers.writers,
            self.tables,
            epoch=epoch,
            keep_alive=self.servers.lease.keep_alive,
            observer=observer,
        )

    def _publish(self, checked: Sequence[TableDescription], again: Sequence[str]) -> None:
        """Create, extend or check the publication, and find the tables that it publishes."""
        described, is_left_out = self.servers.publish(checked), self.servers.is_left_out
        self._left_out = [table for table in described if is_left_out(table)]
        self._described = [table for table in described if not is_left_out(table)]
        require_captured(again, (table.name for table in self._described))
        parts = [str(table.name) for table in self._described if table.row_filter or table.left_out]
        if parts:
            what = "the publication has only a part of some tables: row filters or column lists"
            log.info(what, tables=name_first(parts))

    def _describe_again(self) -> None:
        """Describe the tables again: only the snapshot has the changes made before it."""
        captured = [CapturedTable(table.oid, table.name) for table in self._described]
        before = _published(self._described)
        fingerprints = {table.name: table.fingerprint for table in self._described}
        # The snapshot's data can be older than the catalog's current state.
        self._described = [
            replace(table, fingerprint=fingerprints[table.name])
            for table in self.servers.describe(captured)
        ]
        if any(before[name] != now for name, now in _published(self._described).items()):
            raise UnreadTableError(
                "the publication changed before the snapshot began",
                where=self._capture.publication_name,
                remedy="start again",
            )
        self.servers.topics.ensure_data_topics(self.tables.states.values(), self._described)

    def _snapshot(
        self,
        backfill: Backfill,
        observer: SnapshotObserver,
        exported: slot.ExportedSnapshot,
        unread: Sequence[TableDescription],
        progress: Progress,
        named: Sequence[str],
    ) -> Progress:
        log.info("snapshot", tables=len(unread), consistent_point=str(exported.consistent_point))
        epoch = progress.position.epoch
        events = self._snapshot_writer(observer, epoch).write(
            backfill,
            exported,
            unread,
            self.servers.stop,
            named,
            self._capture.snapshot_transaction_max_ms / 1_000,
        )
        reach(FaultPoint.SNAPSHOT_DONE)
        return progress.model_copy(update={"events": progress.events + events})

    def _begin_streaming(self, progress: Progress) -> Progress:
        if self.servers.stop.is_set():
            return progress
        progress = progress.model_copy(update={"phase": Phase.STREAMING})
        joined = self._begin_joined(progress.position)
        if joined or progress != self.servers.progress:
            record = progress_record(self._capture.topic_prefix, progress)
            self.servers.record([*joined, record])
        self.servers.progress = progress
        return progress

    def _begin_joined(self, position: Position) -> list[Record]:
        """Begin to follow tables that are new to the log, or replace others of the same name."""
        tables, records = self.tables, list[Record]()
        is_recovery = self._capture.snapshot_mode == "recovery"
        for order, table in enumerate(filter(tables.has_joined, self._described)):
            if is_recovery and table.name not in tables.states:
                records += tables.states.begin_snapshot(table, position)
                records += tables.take_as_read(table, position)
            else:
                joined = tables.join(table, position, order, read=is_recovery)
                self.actions.perform(joined.effects)
                records += joined.records
                self.servers.lease.keep_alive()
        return records


def _published(described: Sequence[TableDescription]) -> dict[TableName, tuple[int, int]]:
    """Return the OIDs of each table and of its entry in the publication."""
    return {table.name: (table.oid, table.entry) for table in described}
