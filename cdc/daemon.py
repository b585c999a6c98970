"""Settings → a running capture: start, snapshot where needed, stream, start over after a fault."""

import contextlib
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

import structlog

from cdc.backfill import Backfill, SnapshotObserver
from cdc.errors import MillraceError
from cdc.records.state import Progress
from cdc.session import Session, StoppedError
from cdc.settings import Settings
from cdc.streaming import Streaming

log = structlog.get_logger()
RETRY_DELAY_S = 1.0
RETRY_DELAY_S_MAX = 30.0
STEADY_S = 60.0
"""After so long without a fault the next one is a new one: back-off begins anew."""


class Observer(SnapshotObserver, Protocol):
    """Is told what the daemon does, for people to see."""

    def streaming(self, progress: Progress) -> None:
        """Tell that a batch is durable and acknowledged."""
        ...


class Daemon:
    """Captures one source through one slot into one log."""

    def __init__(self, settings: Settings, backfill: Backfill, observer: Observer) -> None:
        self._settings = settings
        self._backfill = backfill
        self._observer = observer
        self._was_capturing = False

    def run(self, stop: threading.Event) -> None:
        """Capture until stopped; raises a MillraceError that starting over doesn't mend."""
        delay_s = RETRY_DELAY_S
        while not stop.is_set():
            started = time.monotonic()
            try:
                self._capture(stop)
            except StoppedError:
                return
            except MillraceError as error:
                if not (error.retry and self._was_capturing):
                    raise
                if time.monotonic() - started >= STEADY_S:
                    delay_s = RETRY_DELAY_S
                log.warning("starting over", reason=error.what, where=error.where, delay_s=delay_s)
                stop.wait(delay_s)
                delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)
            else:
                return

    def _capture(self, stop: threading.Event) -> None:
        with ExitStack() as stack:
            session = Session(self._settings, stack, stop)
            session.open()
            self._was_capturing = True
            progress = session.catch_up(self._backfill, self._observer)
            if stop.is_set():
                return
            log.info("streaming", slot=progress.slot, position=str(progress.position))
            Streaming(
                self._settings.capture,
                session.hold_slot(),
                session.writer,
                session.tables,
                progress,
                on_commit=self._observer.streaming,
            ).run(stop)

    def snapshot(self, names: Sequence[str], stop: threading.Event) -> None:
        """Read the named tables (again), or those that were never read whole; no streaming."""
        with ExitStack() as stack, contextlib.suppress(StoppedError):
            session = Session(self._settings, stack, stop)
            session.open(names)
            session.catch_up(self._backfill, self._observer, names)
