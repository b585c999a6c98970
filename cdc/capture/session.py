"""One start: publication, slot, tables, snapshot, up to where only streaming is left to do.

docs/decisions/0002-start-and-acknowledge.md has the order of a start and what each start finds
after a death at any point.
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
    """Reads of tables as one start finds them, on servers that are opened for it."""

    tables: Tables
    actions: Actions

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._capture = servers.settings.capture
        self._described: list[TableDescription] = []
        self._left_out: list[TableDescription] = []
        """What passes the lists, and the publication lacks it."""

    def open(self, again: Sequence[str] = (), *, tries_again: bool = False) -> None:
        """Connect to both sides, hold the slot and the log, and make sure that they fit.

        ``tries_again``: tables that were given up are read again.
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
        if not (again or self._capture.lossless):  # one gap after the other can be mended so
            whole = [state for state in states.values() if states.is_whole(state.name)]
            check_published(whole, _published(self._described))
            self.tables.check_taken(self._described)
        servers.topics.ensure_data_topics(states.values(), self._described, aside)

    def _set_aside(self, again: Sequence[str]) -> list[TableDescription]:
        """Go on without tables that can't be captured; returns those that have a topic.

        Where the stream is still to come to the obstacle, it sets the table aside there. Raises
        TableRefusedError where that isn't to be.
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
        """Set aside, or warn of, what the publication lacks."""
        obstacles, records = self.tables.obstacles, list[Record]()
        for table in self._left_out:
            if self.servers.is_first_start:
                raise obstacles.why_left_out(table)
            assert self.servers.progress is not None  # noqa: S101 (the log has begun)
            records += obstacles.leave_out(table, self.servers.progress.position)
        return records

    def _refused(self) -> list[Record]:
        """Set tables aside of which the brokers have refused a record: the log ends before that.

        Raises the refusal where its topic is no table's, where something else was written than the
        table's changes and rows, or where tables aren't to be set aside.
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
                # What the log was to get of it was refused with its rows.
                names[topic] = topics[topic].name
                records += tables.states.begin_snapshot(topics[topic], progress.position)
            name = names.get(topic)
            is_over = name is not None and tables.reads.is_over(name)
            is_in_vain = refusals.is_in_vain(topic, is_over=is_over)
            if name is None or is_in_vain or not self._capture.lossless:
                error.refused = None  # starting over leads nowhere
                raise error
            records += tables.obstacles.set_aside(name, error)
            asked = tables.states[name].requests  # what was read for them is what was refused
            records += tables.reads.end(name, asked, "SQL_EXCEPTION", error.what)
        refusals.of_writers.clear()
        refusals.of_tables.clear()
        return records

    def _check_progress(self) -> None:
        """Make sure that the stream goes on where the log ends."""
        servers = self.servers
        start.look_at_progress(servers)
        progress = servers.progress
        if progress and progress.phase is not Phase.CREATING and not servers.is_complete:
            timeline = servers.system.timeline
            servers.progress = progress.model_copy(update={"timeline": timeline})

    def check_read(self) -> None:
        """Raise NotDoneError where captured tables are set aside: without the slot none is read."""
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
        """The tables whose rows the settings and the role's rights let a snapshot read."""
        wanted = (each for each in self._described if self._capture.snapshots(str(each.name)))
        is_readable = self.tables.obstacles.is_readable
        return [str(table.name) for table in wanted if is_readable(table)]

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
        servers = self.servers
        progress, exported = servers.progress, None
        # As long as a snapshot is exported, the source can't vacuum, nor remove WAL: not for long.
        with ExitStack() as exporting:
            if progress is None or progress.phase is Phase.CREATING:
                servers.lease.release()
                replication = servers.lease.connect_replication()
                exporting.callback(replication.finish)
                progress, exported = start.create_slot(servers, replication)
            elif progress.phase is Phase.SNAPSHOT:  # it was cut off before it was counted
                events = progress.events + self.tables.reads.rows_read(progress.position.epoch)
                progress = progress.model_copy(update={"events": events})
            servers.health.opened(progress, self.tables.states)
            at_once = exported is not None and not self.servers.settings.begins_at_standby
            if self._to_read(again, at_once=at_once):
                if exported is None:
                    exported = exporting.enter_context(self._exact_snapshot())
                self._describe_again()
                unread = self._to_read(again, at_once=at_once)
                # Changes from before the snapshot aren't followed: its rows have to make up for it.
                named = again if at_once else [str(table.name) for table in unread]
                progress = self._snapshot(backfill, observer, exported, unread, progress, named)
        return self._begin_streaming(progress)

    def _to_read(self, again: Sequence[str], *, at_once: bool) -> list[TableDescription]:
        """The tables that have to be read before streaming begins."""
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
        """Read tables that are being streamed once more; returns the number of events.

        A table may have a SELECT of its own. ``xid``: the last transaction that was streamed.
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
        """Make, extend or check the publication; find the tables that it publishes."""
        described, is_left_out = self.servers.publish(checked), self.servers.is_left_out
        self._left_out = [table for table in described if is_left_out(table)]
        self._described = [table for table in described if not is_left_out(table)]
        require_captured(again, (table.name for table in self._described))
        parts = [str(table.name) for table in self._described if table.row_filter or table.left_out]
        if parts:
            what = "the publication has only a part of some tables: row filters or column lists"
            log.info(what, tables=parts[: start.SHOWN_MAX])

    def _describe_again(self) -> None:
        """Look tables up once more: what changed before the snapshot is in it, and only there."""
        captured = [CapturedTable(table.oid, table.name) for table in self._described]
        before = _published(self._described)
        fingerprints = {table.name: table.fingerprint for table in self._described}
        # What the snapshot shows may be older than what the catalog says now.
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
        """Begin to follow tables that the log doesn't know, or knows as others of that name."""
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
    """The OIDs of each table and of its entry in the publication."""
    return {table.name: (table.oid, table.entry) for table in described}
