"""The daemon's activity → whether it is live and ready, for probes and people.

Live: the main loop turns, or waits for a known event (a standby for the slot, a snapshot for its
rows). Ready: it streams, and a write to the source has made the round trip. That is the case when a
progress record that Kafka has committed has passed a heartbeat's LSN. Three threads meet here: the
main loop, the slot's watch, and the one that answers requests.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from cdc.capture.backfill import SnapshotObserver
from cdc.postgres.described import TableDescription
from cdc.postgres.slot import SlotState
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import Progress, TableState
from cdc.tables.reads import ReadProgress

SLOT_STATE_S: Final = 15.0
"""How long an inspected state of the slot counts. Inspections are more frequent."""
LIVE_S: Final = 120.0
"""After this time without a turn, the loop counts as hung. All its own waits are shorter."""


class Observer(SnapshotObserver, Protocol):
    """An observer of the daemon's activity, for people."""

    def streaming(self, progress: Progress, states: Mapping[TableName, TableState]) -> None:
        """Report that a batch is durable and acknowledged, and how far reads of tables are."""
        ...


class Stage(StrEnum):
    """The daemon's current activity."""

    STARTING = "starting"
    STANDBY = "standby"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


class Heartbeat(NamedTuple):
    """A write to the source: its LSN, and its time (monotonic seconds)."""

    lsn: Lsn
    at: float


class Health:
    """The daemon's health, and an observer that passes its reports on."""

    def __init__(
        self,
        observer: Observer,
        *,
        heartbeat_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expect a heartbeat every ``heartbeat_s``, which may take ``timeout_s`` to return."""
        self._observer = observer
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._turned = clock()
        self.stage = Stage.STARTING
        self.has_slot = False
        """Whether this daemon looks after the slot. A standby leaves it to the other daemon."""
        self._since = clock()
        self._flushed = Lsn(0)
        self._awaited: Heartbeat | None = None
        self._arrived: Heartbeat | None = None
        self._tables: dict[TableName, float] = {}
        self._rows: dict[TableName, int] = {}
        self._events_max = 0
        self._fault: tuple[str, float] | None = None
        self.faults = 0
        """Number of restarts after a fault."""
        self.round_trip_s: float | None = None
        """Duration of the last heartbeat's round trip."""
        self._slot: tuple[SlotState, float] | None = None
        self.progress: Progress | None = None
        """The progress that this daemon has written to the log."""
        self.states: Mapping[TableName, TableState] = {}
        """The tables' states, which the main loop changes."""
        self.standby_trouble: Callable[[], str] = lambda: ""
        """Why rows can't be read from [snapshot_source] for a long time. Empty: they can."""

    def turned(self) -> None:
        """Report that the main loop continues, or waits for a known event."""
        self._turned = self._clock()

    def entered(self, stage: Stage, flushed: Lsn = Lsn(0)) -> None:  # noqa: B008 (immutable)
        """Report a new stage. Streaming begins where the log has everything before ``flushed``."""
        with self._lock:
            self._turned = self._since = self._clock()
            self.stage = stage
            self._flushed = flushed
            self._awaited = self._arrived = None
            if stage is Stage.STANDBY:  # the other daemon reports this from now on
                self._slot, self.progress, self.states = None, None, {}

    def failed(self, reason: str) -> None:
        """Report why the daemon starts over."""
        self._fault = reason, self._clock()
        self.faults += 1
        self.entered(Stage.STARTING)

    def opened(self, progress: Progress | None, states: Mapping[TableName, TableState]) -> None:
        """Report the log's progress and the tables' states, until newer ones come."""
        self._rows = {}
        self.progress, self.states = progress, states

    def slot_inspected(self, state: SlotState | None) -> None:
        """Report the slot's state at the server. None: the slot doesn't exist."""
        self._slot = None if state is None else (state, self._clock())

    @property
    def slot(self) -> SlotState | None:
        """The slot's state, if a recent inspection has it."""
        state, at = self._slot or (None, 0.0)
        return state if self._clock() - at <= SLOT_STATE_S else None

    @property
    def events(self) -> int:
        """The number of data records in the log, including those of a running snapshot."""
        progress = self.progress
        event_count = (progress.events if progress else 0) + sum(list(self._rows.values()))
        # Rows don't match events one by one, so keep the number from shrinking.
        self._events_max = max(self._events_max, event_count)
        return self._events_max

    def written(self, heartbeat: Heartbeat) -> None:
        """Report a write to the source. Ignored while an earlier one hasn't returned."""
        with self._lock:
            if self._awaited is None:
                self._awaited = heartbeat
                self._arrive()

    @property
    def is_unproven(self) -> bool:
        """Whether it streams, and hasn't written anything yet that can make the round trip."""
        with self._lock:
            return self.stage is Stage.STREAMING and not (self._awaited or self._arrived)

    def streaming(self, progress: Progress) -> None:
        """Record that a batch is durable."""
        with self._lock:
            self.stage = Stage.STREAMING  # also after a snapshot in between
            self.progress, self._rows = progress, {}
            self._flushed = progress.flush_lsn
            self._arrive()
        self._observer.streaming(progress, self.states)

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Record that the reading of tables begins."""
        self._tables = {table.name: 0.0 for table in tables}
        self._pages = {table.name: table.pages for table in tables}
        self.stage = Stage.SNAPSHOT
        self._observer.snapshot_started(tables)

    def snapshot_progress(self, progress: ReadProgress) -> None:
        """Record the progress of a table."""
        self._rows[progress.table] = progress.rows
        if progress.read is not None:
            share = progress.pages_done / max(1, self._pages[progress.table])
            self._tables[progress.table] = 1.0 if progress.is_done else share
        self._observer.snapshot_progress(progress)

    def _arrive(self) -> None:
        if self._awaited is not None and self._flushed >= self._awaited.lsn:
            self.round_trip_s = self._clock() - self._awaited.at
            self._arrived, self._awaited = self._awaited, None

    @property
    def is_live(self) -> bool:
        """Whether the process works. If it doesn't, only a restart helps."""
        waits = self.stage in {Stage.STANDBY, Stage.SNAPSHOT}
        return waits or self._clock() - self._turned <= LIVE_S

    @property
    def unready(self) -> str | None:
        """Why changes may fail to reach the log now. None: they reach it."""
        with self._lock:
            if self.stage is not Stage.STREAMING:
                return f"not streaming: {self.stage}"
            if self._awaited is not None:
                due = self._awaited.at
            elif self._arrived is not None:
                due = self._arrived.at + self._heartbeat_s
            else:
                due = self._since
            overdue_s = self._clock() - due
            if overdue_s > self._timeout_s:
                return f"nothing written to the source has come back for {overdue_s:.0f} s"
            if self._arrived is None:
                return "nothing written to the source has come back yet"
            return None

    def report(self) -> dict[str, Any]:
        """Return the health as JSON's values. Times are in seconds."""
        now, unready, arrived, slot = self._clock(), self.unready, self._arrived, self.slot
        report: dict[str, Any] = {
            "ready": unready is None,
            "live": self.is_live,
            "phase": self.stage,
            "reason": unready,
            "turned_s_ago": round(now - self._turned, 1),
        }
        if self.stage is Stage.SNAPSHOT and self._tables:
            done = sum(list(self._tables.values())) / len(self._tables)
            report["snapshot_percent"] = round(100 * done, 1)
        aside = {
            str(state.name): state.doubt.reason
            for state in list(self.states.values())
            if state.doubt is not None and state.doubt.set_aside
        }
        trouble = self.standby_trouble()
        report["degraded"] = bool(aside or trouble)
        if aside:
            report["set_aside"] = aside
        if trouble:
            report["standby"] = trouble
        if arrived is not None and self.round_trip_s is not None:
            report["round_trip"] = {
                "sent_s_ago": round(now - arrived.at, 1),
                "took_s": round(self.round_trip_s, 3),
            }
        if slot is not None:
            report["slot"] = {
                "lag_bytes": slot.lag_bytes,
                "retained_bytes": slot.retained_bytes,
                "wal_status": slot.wal_status,
                "safe_wal_size": slot.safe_wal_size,
            }
        if self._fault is not None:
            reason, at = self._fault
            report["fault"] = {"reason": reason, "s_ago": round(now - at, 1)}
        return report
