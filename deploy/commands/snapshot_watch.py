"""The log's state topics → the progress of the tables that a running daemon was asked to read."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import psycopg
import structlog
from rich.console import Console

from cdc.errors import MillraceError, NotDoneError
from cdc.kafka.admin import LogAdmin
from cdc.kafka.signal_topic import Follower
from cdc.lines import name_first
from cdc.log.state import last_progress
from cdc.postgres import slot
from cdc.postgres.checks.standby import why_unread
from cdc.postgres.connection import connect
from cdc.records.state import (
    Phase,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
    parse_state,
)
from cdc.records.state_pieces import is_piece
from cdc.records.topics import progress_topic, table_topic
from cdc.settings import Settings
from deploy.commands.console import TableBars
from deploy.status.sinks import table_states

log = structlog.get_logger()
_POLL_S: Final = 0.2
_TAKEN_CHECK_S: Final = 1.0
"""How often the daemon's progress is read, until the daemon has accepted the request."""
_PATIENCE_S: Final = 30.0
_CHECK_S: Final = 5.0


def is_captured(settings: Settings) -> bool:
    """Whether a daemon holds the slot, and so has to do the work."""
    with connect(settings.source, purpose="snapshot command") as connection:
        return slot.is_captured(connection, settings.capture.slot_name)


class SnapshotWatch:
    """Follows the table topic and shows the reads of some tables."""

    def __init__(self, settings: Settings, sizes: Mapping[str, int]) -> None:
        """``sizes`` are the tables' bytes."""
        self._settings = settings
        self._sizes = sizes
        self._topic = topic = table_topic(settings.capture.topic_prefix)
        end = LogAdmin(settings.kafka).committed_end(topic)  # an open transaction may end a read
        self._states = {str(state.name): state for state in table_states(settings)}
        self._follower = Follower(settings.kafka, topic, offset=end)
        (((_, self._read_until),),) = LogAdmin(settings.kafka).offsets({topic: 1}).values()
        self._bars = TableBars(Console(stderr=True))
        self.wanted: dict[str, SnapshotRequest] = {}
        """Unfinished tables, and the read shown for each."""
        self._taken: set[str] = set()
        self.signal_offset = -1
        """The offset of the signal that the daemon must process. -1: there is none."""
        self._is_passed = False
        """Whether the daemon has processed the signals up to ours."""
        self._is_gone = False
        self._is_unread = False
        self._looking = threading.Thread()
        self._paused: set[str] = set()
        self._refused: list[str] = []

    def want_under_way(self, names: Collection[str]) -> None:
        """Show active reads: of these tables, or of all.

        For a table with several, it shows the one that is served last.
        """
        for name, state in self._states.items():
            for request in sorted(state.requests, key=lambda each: each.order):
                if request.kind != "blocking" and (not names or name in names):
                    self.wanted[name] = request

    def close(self) -> None:
        """Stop the bars and the follower."""
        self._bars.stop()
        self._follower.close()

    def show(self, stop: threading.Event, names: Sequence[str]) -> bool:
        """Show the reads until all are done or ``stop`` is set. Return whether all are done."""
        if not self.wanted:
            way = (
                "call this without --resume to read these tables again"
                if names
                else "name tables to read them again"
            )
            print(f"nothing to do: no snapshot is running; {way}")
        began = checked = time.monotonic()
        for name in list(self.wanted):
            self._update_read(name)
        while self.wanted:
            for record in self._follower.take():
                if record.value is not None and not is_piece(record.key):
                    self._take(record.offset, parse_state(TableState, record.value, self._topic))
            now = time.monotonic()
            is_awaited = self.signal_offset >= 0 and not self._is_passed
            if (is_awaited or self._untaken) and now - checked >= _TAKEN_CHECK_S:
                checked = now
                self._check_taken(now - began)
            elif now - checked >= _CHECK_S and not self._looking.is_alive():
                checked = now
                # Silent servers would hold up the bars, and the end.
                self._looking = threading.Thread(target=self._look, name="look", daemon=True)
                self._looking.start()
            if self.wanted and stop.wait(_POLL_S):
                return False
        if self._refused:
            raise NotDoneError(
                "not read: " + name_first(self._refused, "; "),
                remedy="solve this, and run millrace snapshot again",
            )
        return True

    @property
    def _untaken(self) -> list[str]:
        """Return tables that the daemon hasn't accepted for reading."""
        return sorted(self.wanted.keys() - self._taken)

    def _take(self, offset: int, state: TableState) -> None:
        """Process a new record, unless it is older than the first one read."""
        previous = self._states.get(str(state.name))
        if previous is None or offset >= self._read_until or state.ts_ms >= previous.ts_ms:
            self._learn(state)

    def _learn(self, state: TableState) -> None:
        """Process every record, as a table's next one may have another read's outcome."""
        name = str(state.name)
        self._states[name] = state
        if name in self.wanted:
            self._update_read(name)

    def _update_read(self, name: str) -> None:
        state = self._states.get(name)
        if state is None:
            return
        request = _request(state, self.wanted[name])
        if request is not None:
            share = state.share_of(request)
            if name not in self._taken:
                self._taken.add(name)
                size = self._sizes.get(name, 0)
                self._bars.begin(name, size, request.rows, share)
            self._bars.move(name, request.rows, share, "paused" if request.paused else "")
            self._tell_paused(name, request)
            return
        outcome = _outcome(state, self.wanted[name])
        if outcome is not None:
            self._end(name, outcome)
        elif name in self._taken:
            self._end(name, SnapshotOutcome(signal="", status="ABORTED", reason="abandoned"))

    def _tell_paused(self, name: str, request: SnapshotRequest) -> None:
        """Report once that it is paused, but not directly after the signal that resumes it."""
        if not request.paused:
            self._paused.discard(name)
        elif name not in self._paused and (self._is_passed or self.signal_offset < 0):
            self._paused.add(name)
            log.warning("paused", table=name, remedy="continue it with: millrace snapshot --resume")

    def _end(self, name: str, outcome: SnapshotOutcome) -> None:
        del self.wanted[name]
        if name not in self._taken:
            self._bars.begin(name, self._sizes.get(name, 0))
        self._taken.add(name)
        self._bars.done(name, outcome.rows, outcome.failure)
        if outcome.failure:
            self._refused.append(f"{name} ({outcome.failure})")

    def _check_taken(self, waited_s: float) -> None:
        """Raise NotDoneError if the daemon hasn't accepted the request, or has skipped it."""
        capture = self._settings.capture
        topic = progress_topic(capture.topic_prefix)
        progress = last_progress(self._settings.kafka, topic, capture.slot_name)
        if self._is_passed and self._untaken:
            raise NotDoneError(
                f"the daemon has skipped the request: {name_first(self._untaken)}",
                remedy="a warning in its log says why",
            )
        followed = progress.signal_offset(capture.signal_topic).offset if progress else 0
        if followed > self.signal_offset:
            self._is_passed = True  # records written with it may still be on their way to us
        elif waited_s > _PATIENCE_S:
            raise NotDoneError(
                f"the daemon hasn't accepted the request within {_PATIENCE_S:.0f} s",
                remedy="the daemon carries the request out once it streams; its log and `millrace"
                " status` show what it is doing",
            )

    def _look(self) -> None:
        """Ask the servers whether reads can continue, in a separate thread."""
        try:
            self._check_daemon()
        except MillraceError as error:
            log.warning("can't check whether a daemon runs", reason=error.what)
        except psycopg.Error as error:  # the server has ended in the meantime
            log.warning("can't check whether a daemon runs", reason=str(error))

    def _check_daemon(self) -> None:
        """Report once that no daemon runs, or that the standby doesn't follow."""
        gone = not is_captured(self._settings)
        if gone and not self._is_gone:
            log.warning("no daemon runs: start one to continue the snapshot")
        self._is_gone = gone
        trouble = why_unread(self._settings)
        if trouble is not None and not self._is_unread:
            log.warning(
                "the standby can't serve reads: they continue once it has caught up",
                reason=trouble.what,
                where=trouble.where,
                remedy=trouble.remedy,
            )
        self._is_unread = trouble is not None


def _request(state: TableState, wanted: SnapshotRequest) -> SnapshotRequest | None:
    """Return the rest of a read. A signal's read may change its kind when it resets the table."""
    candidates = (
        request
        for request in state.requests
        if request.signal == wanted.signal
        if wanted.signal or (request.kind, request.order) == (wanted.kind, wanted.order)
    )
    return next(candidates, None)


def _outcome(state: TableState, wanted: SnapshotRequest) -> SnapshotOutcome | None:
    """Return how a read has ended, if the state shows it."""
    if wanted.kind == "initial" and not wanted.signal:  # no signal has asked, so the phase decides
        done = SnapshotOutcome(signal="", status="SUCCEEDED", rows=state.rows_sent)
        return done if state.phase is Phase.STREAMING else None
    outcome = state.outcome
    return outcome if outcome is not None and outcome.signal == wanted.signal else None
