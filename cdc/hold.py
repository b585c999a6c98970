"""The right to a slot: the lock that stands for it, then the stream that reads it, and waiting.

docs/decisions/0002-start-and-acknowledge.md says what is held when.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
import structlog

from cdc.errors import SlotInUseError
from cdc.postgres import slot
from cdc.postgres.connection import connect_replication
from cdc.postgres.stream import ReplicationStream
from cdc.settings import Settings

log = structlog.get_logger()
WAITING_LINE_S = 10
DRAIN_S_MAX = 10.0
"""How long Kafka may take to answer after we were told to stop; supervisors kill after longer."""


class StoppedError(Exception):
    """The daemon was told to stop while it waited for something; not an error to anybody."""


class Hold:
    """One start's hold on the slot; the stack lets go of it."""

    def __init__(self, settings: Settings, stack: ExitStack, stop: threading.Event) -> None:
        self._source = settings.source
        self._capture = settings.capture
        self._stack = stack
        self._stop = stop
        self._stream: ReplicationStream | None = None
        self._drain_until: float | None = None

    def lock(self, sql: psycopg.Connection) -> None:
        """Take the right to the slot, for as long as this session lives; waits as configured."""
        name = self._capture.slot_name

        def attempt() -> SlotInUseError | None:
            if slot.lock(sql, name):
                return None
            return SlotInUseError(
                "another daemon captures through this slot",
                where=f"slot {name}",
                remedy="stop the other daemon, or raise slot.max.retries to stand by for longer",
            )

        self._patiently(attempt)

    def stream(self) -> ReplicationStream:
        """Start replication, unless this session has; it gives nothing until it is read."""
        if self._stream is None:
            self._patiently(self._start_stream)
        assert self._stream is not None  # noqa: S101 (_patiently raises otherwise)
        return self._stream

    def release(self) -> None:
        """End the stream, where there is one; the right to the slot is kept."""
        if self._stream is not None:
            self._stream.close()  # closing once more, when the stack unwinds, does nothing
            self._stream = None

    def keep_alive(self) -> None:
        """Answer PostgreSQL when it is time to, whatever else is being waited for.

        Raises StoppedError, once, where we were told to stop and wait for Kafka in vain.
        """
        if self._stream is not None:
            self._stream.keep_alive()
        if not self._stop.is_set():
            return
        if self._drain_until is None:
            self._drain_until = time.monotonic() + DRAIN_S_MAX
        elif time.monotonic() > self._drain_until:
            self._drain_until = math.inf
            log.warning(
                "stopped without draining: Kafka doesn't answer; the next start sends what is left"
            )
            raise StoppedError

    def wait_for_open_transactions(self, waited_s: float) -> None:
        """Stay in touch while a new slot waits for the transactions that were open before it."""
        self.keep_alive()
        if self._stop.is_set():
            raise StoppedError
        if int(waited_s) % WAITING_LINE_S == 1:
            log.info("a new slot waits for open transactions of the source", seconds=int(waited_s))

    def _start_stream(self) -> SlotInUseError | None:
        connection = connect_replication(self._source)
        try:
            self._stream = ReplicationStream.start(
                connection,
                self._capture.slot_name,
                self._capture.publication_name,
                status_interval_ms=self._capture.status_update_interval_ms,
            )
        except SlotInUseError as refusal:
            connection.finish()
            return refusal
        except BaseException:
            connection.finish()
            raise
        self._stack.callback(self._stream.close)
        return None

    def _patiently(self, attempt: Callable[[], SlotInUseError | None]) -> None:
        """Try until it works, slot.max.retries times; raises the last SlotInUseError."""
        retries = 0
        while (refusal := attempt()) is not None:
            if retries == self._capture.slot_max_retries:
                raise refusal
            retries += 1
            log.info("waiting", reason=refusal.what, retry=retries)
            if self._stop.wait(self._capture.slot_retry_delay_ms / 1_000):
                raise StoppedError
