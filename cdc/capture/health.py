"""What the daemon does → whether it is alive, and whether it captures, for whoever asks.

Live: the main loop turns, or waits for what it knows (a standby for the slot, a snapshot for its
rows). Ready: it streams, and what was written to the source has come round: a heartbeat's place in
the WAL was passed by a progress record that Kafka has committed. Three threads meet here: the main
loop, the slot's watch, and whoever answers.
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
"""The slot's state counts for so long; it is inspected more often."""
LIVE_S: Final = 120.0
"""The loop counts as hung after so long; all that it waits for by itself is bounded below that."""


class Observer(SnapshotObserver, Protocol):
    """Observes what the daemon does, for people to see."""

    def streaming(self, progress: Progress, states: Mapping[TableName, TableState]) -> None:
        """Tell that a batch is durable and acknowledged, and how far tables are read meanwhile."""
        ...


class Stage(StrEnum):
    """What the daemon is at."""

    STARTING = "starting"
    STANDBY = "standby"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


class Heartbeat(NamedTuple):
    """Something written to the source: its place in the WAL, and when (monotonic seconds)."""

    lsn: Lsn
    at: float


class Health:
    """The daemon's health; an observer that passes on what it observes."""

    def __init__(
        self,
        observer: Observer,
        *,
        heartbeat_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A heartbeat comes every ``heartbeat_s``, and may take ``timeout_s`` to come round."""
        self._observer = observer
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._turned = clock()
        self.stage = Stage.STARTING
        self.has_slot = False
        """Whether the slot is for us to look after; a standby leaves that to the other daemon."""
        self._since = clock()
        self._flushed = Lsn(0)
        self._awaited: Heartbeat | None = None
        self._arrived: Heartbeat | None = None
        self._tables: dict[TableName, float] = {}
        self._rows: dict[TableName, int] = {}
        self._events_max = 0
        self._fault: tuple[str, float] | None = None
        self.faults = 0
        """How many faults the daemon has started over after."""
        self.round_trip_s: float | None = None
        """How long the last heartbeat took to come round."""
        self._slot: tuple[SlotState, float] | None = None
        self.progress: Progress | None = None
        """How far the log is, as far as we have written to it."""
        self.states: Mapping[TableName, TableState] = {}
        """The tables' states, which the main loop changes."""
        self.standby_trouble: Callable[[], str] = lambda: ""
        """Why rows can't be read from [snapshot_source], for long; empty: they can, or needn't."""

    def turned(self) -> None:
        """Tell that the main loop goes on, or waits for something that it knows."""
        self._turned = self._clock()

    def entered(self, stage: Stage, flushed: Lsn = Lsn(0)) -> None:  # noqa: B008 (immutable)
        """Tell what begins; streaming begins where the log has all before ``flushed``."""
        with self._lock:
            self._turned = self._since = self._clock()
            self.stage = stage
            self._flushed = flushed
            self._awaited = self._arrived = None
            if stage is Stage.STANDBY:  # what we knew is another daemon's to tell
                self._slot, self.progress, self.states = None, None, {}

    def failed(self, reason: str) -> None:
        """Tell why the daemon starts over."""
        self._fault = reason, self._clock()
        self.faults += 1
        self.entered(Stage.STARTING)

    def opened(self, progress: Progress | None, states: Mapping[TableName, TableState]) -> None:
        """Tell what the log says of itself and of tables, as long as nothing newer is told."""
        self._rows = {}
        self.progress, self.states = progress, states

    def slot_inspected(self, state: SlotState | None) -> None:
        """Tell how the slot is at the server; None: there is none."""
        self._slot = None if state is None else (state, self._clock())

    @property
    def slot(self) -> SlotState | None:
        """The slot, if it was inspected lately."""
        state, at = self._slot or (None, 0.0)
        return state if self._clock() - at <= SLOT_STATE_S else None

    @property
    def events(self) -> int:
        """How many data records the log has, with those of a snapshot that is under way."""
        progress = self.progress
        event_count = (progress.events if progress else 0) + sum(list(self._rows.values()))
        # Rows aren't events one by one: it never shrinks.
        self._events_max = max(self._events_max, event_count)
        return self._events_max

    def written(self, heartbeat: Heartbeat) -> None:
        """Tell of something that the source has now; while one is awaited, others don't matter."""
        with self._lock:
            if self._awaited is None:
                self._awaited = heartbeat
                self._arrive()

    @property
    def is_unproven(self) -> bool:
        """Whether it streams, and nothing was written yet that could come round."""
        with self._lock:
            return self.stage is Stage.STREAMING and not (self._awaited or self._arrived)

    def streaming(self, progress: Progress) -> None:
        """Take in that a batch is durable."""
        with self._lock:
            self.stage = Stage.STREAMING  # also after a snapshot in between
            self.progress, self._rows = progress, {}
            self._flushed = progress.flush_lsn
            self._arrive()
        self._observer.streaming(progress, self.states)

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Take in that tables are about to be read."""
        self._tables = {table.name: 0.0 for table in tables}
        self._pages = {table.name: table.pages for table in tables}
        self.stage = Stage.SNAPSHOT
        self._observer.snapshot_started(tables)

    def snapshot_progress(self, progress: ReadProgress) -> None:
        """Take in how far a table is."""
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
        """Whether the process does what it should; if not, only a restart helps."""
        waits = self.stage in {Stage.STANDBY, Stage.SNAPSHOT}
        return waits or self._clock() - self._turned <= LIVE_S

    @property
    def unready(self) -> str | None:
        """Why changes may not arrive in the log now; None where they do."""
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
        """All of it, as JSON has it; times in seconds."""
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
