"""Settings → a running capture: start, snapshot where needed, stream, restart after a fault."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from uuid import uuid4

import structlog

from cdc.capture import start
from cdc.capture.backfill import Backfill
from cdc.capture.crash_guard import CrashGuard
from cdc.capture.health import Health, Observer, Stage
from cdc.capture.servers import Servers
from cdc.capture.session import Session
from cdc.capture.slot_lease import StoppedError
from cdc.capture.streaming import Streaming
from cdc.capture.watch import INSPECT_S, SlotWatch
from cdc.dead_letters.guard import Refusals
from cdc.errors import (
    ConfigError,
    GapError,
    MillraceError,
    NotDoneError,
    RecordRefusedError,
    SlotInUseError,
    SourceUnreachableError,
    SpillError,
    UnclearMessagesError,
    UndecodableError,
)
from cdc.lines import name_first
from cdc.log.reports import ReportWriter
from cdc.records.position import Lsn, Position
from cdc.records.reports import DaemonReport
from cdc.records.state import Progress, SignalOffset
from cdc.settings import Settings
from cdc.stream.in_progress import check_spill, spill_directory
from cdc.stream.signals import Signals
from cdc.tables.tables import Tables

log = structlog.get_logger()
OpenChannel = Callable[[Settings, Tables, SignalOffset], Signals]
RETRY_DELAY_S = 1.0
RETRY_DELAY_S_MAX = 30.0
STEADY_S = 60.0
"""A fault after this time without one is a new fault, and back-off begins again."""
SENT_WHOLE = UnclearMessagesError, SpillError
"""After these errors PostgreSQL keeps large transactions itself, until another error occurs."""


class Daemon:
    """Captures one source through one slot into one log."""

    def __init__(
        self,
        settings: Settings,
        backfill: Backfill,
        observer: Observer,
        open_channel: OpenChannel,
    ) -> None:
        self._settings = settings
        self._backfill = backfill
        timeout_s = settings.health.ready_timeout_ms / 1_000
        beats_s = settings.capture.heartbeat_source_interval_ms / 1_000
        if not 0 < beats_s <= timeout_s:
            beats_s = INSPECT_S  # heartbeats are too rare; health compares with the WAL's end
        self.health = Health(observer, heartbeat_s=beats_s, timeout_s=timeout_s)
        self._open_channel = open_channel
        self._was_capturing = False
        self._has_waited = False
        self._may_begin_anew = settings.capture.snapshot_mode == "when_needed"
        self.refusals = Refusals(records_max=2 * settings.capture.max_batch_size)
        """Records that the brokers have refused since this process began."""
        self._crashes = CrashGuard()
        self._reports: ReportWriter | None = None
        self._has_reported = True
        """Whether the log may name a fault of this daemon or of an earlier one."""
        self._in_progress = True
        """Whether PostgreSQL may send large transactions before they end."""

    def run(self, stop: threading.Event) -> None:
        """Capture until stopped. Raise a MillraceError that a restart doesn't solve."""
        with (
            SlotWatch(self._settings, self.health, stop),
            ReportWriter(self._settings, log.warning) as self._reports,
        ):
            try:
                self._run(stop)
            except MillraceError as error:
                self._report(error)
                raise

    def _run(self, stop: threading.Event) -> None:
        delay_s = RETRY_DELAY_S
        while not stop.is_set():
            started = time.monotonic()
            try:
                self._capture(stop)
            except StoppedError:
                return
            except GapError as error:
                self._begin_anew(error, stop)
            except RecordRefusedError as error:
                if not self.refusals.learn(error):
                    raise
                log.warning("starting over without one record", reason=error.what)
            except MillraceError as error:
                self._check_lasting(error)
                if time.monotonic() - started >= STEADY_S:
                    delay_s = RETRY_DELAY_S
                self._note_fault(error, delay_s)
                # Jitter: many daemons that lost the same server don't reconnect at once.
                stop.wait(delay_s * random.uniform(0.5, 1.0))  # noqa: S311
                delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)
            else:
                return

    def _begin_anew(self, gap: GapError, stop: threading.Event) -> None:
        """With snapshot.mode = when_needed, begin a new epoch; otherwise raise the error."""
        if not self._may_begin_anew:
            raise gap
        self._may_begin_anew = False
        log.warning(
            "the log can't continue from here: snapshot.mode = when_needed begins a new epoch",
            reason=gap.what,
            where=gap.where,
        )
        self.begin_epoch(stop)

    def _check_lasting(self, error: MillraceError) -> None:
        """Raise the error unless a restart can solve it."""
        # A daemon that never had the slot gives up after slot.max.retries attempts.
        lasting = (
            self._was_capturing
            or self._crashes.is_suspicious  # the next start must show whether it crashes again
            or (self._has_waited and not isinstance(error, SlotInUseError))
        )
        if not (error.retry and lasting):
            raise error

    def _note_fault(self, error: MillraceError, delay_s: float) -> None:
        self.health.failed(error.what)
        self._report(error)
        self._in_progress = not isinstance(error, SENT_WHOLE)
        log.warning(
            "starting over",
            reason=error.what,
            where=error.where,
            remedy=error.remedy,
            delay_s=delay_s,
        )

    def _report(self, error: MillraceError | None = None) -> None:
        """Write to the log what is wrong with the daemon, or that nothing is."""
        if self._reports is None or (error is None and not self._has_reported):
            return
        self._has_reported = error is not None
        now_ms = time.time_ns() // 1_000_000
        slot = self._settings.capture.slot_name
        report = DaemonReport(slot=slot, ts_ms=now_ms)
        if error is not None:
            fault = {"fault": error.what, "remedy": error.remedy, "since_ms": now_ms}
            report = report.model_copy(update=fault)
        self._reports.put(report)

    def _capture(self, stop: threading.Event) -> None:
        with self._session(stop) as (session, stack):
            try:
                self._capture_by(session, stack, stop)
            except SourceUnreachableError as error:
                self._look_for_crash(session.servers, error)
                raise

    def _look_for_crash(self, servers: Servers, error: SourceUnreachableError) -> None:
        """Record a crash of the server.

        A crash during a snapshot decodes no WAL, so it doesn't count.
        """
        if self.health.stage is Stage.SNAPSHOT or not servers.has_crashed:
            return
        state, progress = servers.slot, self.health.progress
        slot_lsn = state.confirmed_flush_lsn if state else Lsn(0)
        self._crashes.note_crash(error, progress.flush_lsn if progress else slot_lsn)

    def _capture_by(self, session: Session, stack: ExitStack, stop: threading.Event) -> None:
        mode = self._settings.capture.snapshot_mode
        if not self._was_capturing:  # a first start raises at once; others when they need it
            check_spill(spill_directory(self._settings.capture.spill_directory))
        try:
            session.open(tries_again=not self._was_capturing)
        finally:
            self._has_waited |= session.servers.has_waited
        if session.servers.is_complete:
            log.info("nothing to do: snapshot.mode is initial_only, and the snapshot is complete")
            return
        again = session.snapshotted if mode == "always" and not self._was_capturing else ()
        self._was_capturing = True
        progress = session.catch_up(self._backfill, self.health, again)
        if stop.is_set():
            return
        if mode != "initial_only":
            self._stream(session, stack, progress, stop)
            return
        reads, obstacles = session.tables.reads, session.tables.obstacles
        if not reads.is_all_shown(progress.cut):
            # A caller that waits for the end (cron) gets the obstacle as an error.
            def is_done(cut: Position) -> bool:
                return reads.is_all_shown(cut, obstacles.lasting)

            self._stream(session, stack, progress, stop, is_done)
        if not stop.is_set():
            session.check_read()
            session.servers.end_slot()
            log.info("done: snapshot.mode is initial_only")

    def _stream(
        self,
        session: Session,
        stack: ExitStack,
        progress: Progress,
        stop: threading.Event,
        until: Callable[[Position], bool] = lambda _: False,
    ) -> None:
        offset = progress.signal_offset(self._settings.capture.signal_topic)
        signals = self._open_channel(self._settings, session.tables, offset)
        stack.callback(signals.close)
        log.info("streaming", slot=progress.slot, position=str(progress.position))
        streaming = Streaming(
            self._settings.capture,
            session.servers,
            session.tables,
            session.actions,
            progress,
            on_commit=self._committed,
            signals=signals,
            read_now=partial(session.read_again, self._backfill, self.health),
        )
        self.health.entered(Stage.STREAMING, progress.flush_lsn)
        self._crashes.note_progress(progress)
        self._may_begin_anew = self._settings.capture.snapshot_mode == "when_needed"
        streaming.run(stop, until)

    def _committed(self, progress: Progress) -> None:
        self._crashes.note_progress(progress)
        self.health.streaming(progress)
        self._report()

    @contextmanager
    def _session(self, stop: threading.Event) -> Iterator[tuple[Session, ExitStack]]:
        """Yield a session, and the stack that closes everything opened for it."""
        with ExitStack() as stack:
            servers = Servers(
                self._settings,
                stack,
                stop,
                self.health,
                refusals=self.refusals,
                in_progress=self._in_progress,
            )
            try:
                yield Session(servers), stack
            except UndecodableError as error:
                raise servers.explained(error) from error

    def find_gap(self, stop: threading.Event) -> str:
        """Return why `run` would refuse to continue, or an empty text. Changes nothing."""
        with ExitStack() as stack:
            return start.find_gap(self._servers_at_once(stack, stop))

    def begin_epoch(self, stop: threading.Event) -> int:
        """Let the log continue from the source as it is now, and return the new epoch."""
        with ExitStack() as stack:
            return start.begin_epoch(self._servers_at_once(stack, stop))

    def _servers_at_once(self, stack: ExitStack, stop: threading.Event) -> Servers:
        """Return servers that never wait: a standby would begin an epoch at a random time."""
        once = {"slot_max_retries": 1, "slot_retry_delay_ms": 1_000}
        capture = self._settings.capture.model_copy(update=once)
        settings = self._settings.model_copy(update={"capture": capture})
        refusals = self.refusals
        return Servers(settings, stack, stop, self.health, refusals=refusals, in_progress=True)

    def snapshot(self, names: Sequence[str], condition: str | None, stop: threading.Event) -> None:
        """Read the named tables (again) and all unfinished ones, while streaming.

        With a condition (SQL), read only the rows that meet it. Raise NotDoneError if tables were
        not read completely.
        """
        with self._session(stop) as (session, stack):
            session.open(names)
            _require_slot(session)
            again = names if condition is None else ()
            progress = session.catch_up(self._backfill, self.health, again)
            if condition is not None:
                asked = {name: condition for name in session.tables.states if str(name) in names}
                session.servers.record(session.tables.reads.ask(asked, str(uuid4())))
            self._read_rest(session, stack, progress, stop, names)
            left = [str(name) for name in session.tables.states.requested if str(name) in names]
            if left and not stop.is_set():
                raise NotDoneError(
                    f"not read: {name_first(sorted(left))}: snapshots that were paused earlier"
                    " come first",
                    remedy="the request stays in the log: continue with millrace snapshot --resume",
                )

    def resume(self, names: Sequence[str], stop: threading.Event) -> None:
        """Resume paused reads of the named tables, or of all; otherwise as `snapshot`."""
        with self._session(stop) as (session, stack):
            session.open()
            _require_slot(session)
            progress = session.catch_up(self._backfill, self.health)
            if resumed := session.tables.reads.resume(names):
                session.servers.record(resumed)
            self._read_rest(session, stack, progress, stop)

    def _read_rest(
        self,
        session: Session,
        stack: ExitStack,
        progress: Progress,
        stop: threading.Event,
        names: Sequence[str] = (),
    ) -> None:
        """Stream until every read that isn't paused is complete.

        Waiting doesn't end a paused read.
        """
        states, reads = session.tables.states, session.tables.reads
        signals = {
            name: {request.signal for request in states[name].requests} for name in states.requested
        }
        aside = (name for name in states if str(name) in names and states.is_set_aside(name))
        signals |= {name: set[str]() for name in (*states.waiting, *aside)}

        def is_done(cut: Position) -> bool:
            return not reads.is_to_read and reads.is_shown(names, cut)

        if not (stop.is_set() or is_done(progress.cut)):
            self._stream(session, stack, progress, stop, is_done)
        if stop.is_set():
            return
        if reasons := reads.not_done(signals):
            each = (f"{name} ({reason})" for name, reason in sorted(reasons.items()))
            unread = name_first(each, "; ")
            remedy = "solve this, and run millrace snapshot again"
            raise NotDoneError(f"not read: {unread}", remedy=remedy)
        if states.requested:
            paused = name_first(sorted(states.requested))
            remedy = "continue them with: millrace snapshot --resume"
            log.warning("the snapshots of tables stay paused", tables=paused, remedy=remedy)


def _require_slot(session: Session) -> None:
    """Raise ConfigError if the stream has ended: rows read now would never become visible."""
    if session.servers.is_complete:
        raise ConfigError(
            "snapshot.mode is initial_only, the snapshot is complete, and its slot is removed",
            remedy="to read all tables again: millrace new-epoch --yes, then millrace run",
        )
