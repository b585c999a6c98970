"""Settings → the right to a slot: a lock that represents it, the stream that reads it, and waits.

The lock is an advisory lock in a session of its own. A thread keeps that session busy, and the
server ends it after a silence (idle_session_timeout). So a stopped process, or one on a lost
machine, loses the right within seconds, whatever it was doing.
docs/decisions/0002-start-and-acknowledge.md says what is held when.
"""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import psycopg
import structlog
from psycopg.pq.abc import PGconn

from cdc.capture.health import Health, Stage
from cdc.errors import MillraceError, SlotInUseError, SourceUnreachableError
from cdc.postgres import slot
from cdc.postgres.connection import connect, connect_replication, query
from cdc.postgres.failures import server_address
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Lsn
from cdc.settings import LibraryOptions, Settings

SILENCE_S: Final = 10
"""Equals wal_sender_timeout of the replication connection, so both ends of the lease end together.
"""
_SPEAK_EVERY_S: Final = 2.0
_CLOSE_S: Final = 1.0


log = structlog.get_logger()
WAITING_LINE_S = 10
ASK_EVERY_S = 1.0
"""How often a standby tries to take over."""
DRAIN_S_MAX = 10.0
"""How long Kafka may take to answer after a stop. Supervisors kill a process later than this."""


class SlotLock:
    """The lock on a slot, held or wanted. Its connection opens at once."""

    def __init__(self, source: LibraryOptions, name: str) -> None:
        self._name = name
        pinned = {"idle_session_timeout": f"{SILENCE_S}s"}
        self._connection = connect(source, purpose="lock", pinned=pinned)
        self._closing = threading.Event()
        self._failure: MillraceError | None = None
        self._thread = threading.Thread(target=self._speak, name="slot lock", daemon=True)

    def take(self) -> bool:
        """Try to take the lock, and return whether it is ours."""
        if not slot.lock(self._connection, self._name):
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Raise SourceUnreachableError if the right to the slot is lost."""
        if self._failure is not None:
            raise SourceUnreachableError(
                f"the daemon lost its lock on slot {self._name}: {self._failure.what}",
                where=self._failure.where,
                remedy="none, if the daemon gets it again: it starts over",
            ) from self._failure

    def close(self) -> None:
        """Release the lock."""
        self._closing.set()
        if not self._thread.is_alive():
            self._connection.close()
            return
        fd = self._connection.fileno()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as own:
            own.shutdown(socket.SHUT_RDWR)  # wakes the thread, which may wait for an answer
        self._thread.join(_CLOSE_S)

    def _speak(self) -> None:
        try:
            while not self._closing.wait(_SPEAK_EVERY_S):
                query(self._connection, "SELECT 1")
        except MillraceError as failure:
            self._failure = failure
        self._connection.close()


class StoppedError(Exception):
    """The daemon was stopped while it waited. No error for users."""


class SlotLease:
    """One start's lease of the slot. The stack releases it."""

    def __init__(
        self,
        settings: Settings,
        sql: psycopg.Connection,
        stack: ExitStack,
        stop: threading.Event,
        health: Health,
        *,
        in_progress: bool,
        on_wait: Callable[[], None],
    ) -> None:
        """``in_progress``: PostgreSQL sends large transactions before they end.

        ``on_wait`` is called when another daemon has the slot and this start waits for it.
        """
        self._source = settings.source
        self._sql = sql
        self._capture = settings.capture
        self._stack = stack
        self._stop = stop
        self._health = health
        self._in_progress = in_progress
        self._on_wait = on_wait
        self._lock: SlotLock | None = None
        self._stream: ReplicationStream | None = None
        self._drain_until: float | None = None
        self.begin = Lsn(0)
        """Where the stream begins. It has every commit from there on."""

    def lock(self) -> None:
        """Take the right to the slot while the server hears from us. Waits as configured."""
        name = self._capture.slot_name
        lock = SlotLock(self._source, name)
        self._stack.callback(lock.close)

        def attempt() -> SlotInUseError | None:
            if lock.take():
                return None
            return SlotInUseError(
                "another daemon captures with this slot",
                where=f"slot {name}",
                remedy="stop the other daemon, or set slot.max.retries = -1: `millrace run` then"
                " waits as a standby",
            )

        self._health.has_slot = False
        self._patiently(attempt)
        self._health.has_slot = True
        self._lock = lock

    def stream(self) -> ReplicationStream:
        """Start replication if this session hasn't yet. No data arrives before a read."""
        if self._stream is None:
            self._patiently(self._start_stream)
        assert self._stream is not None  # noqa: S101 (_patiently raises otherwise)
        return self._stream

    @property
    def is_streaming(self) -> bool:
        """Whether this session has started replication."""
        return self._stream is not None

    def await_unread(self) -> None:
        """Wait as configured until no session reads the slot. Doesn't read it."""
        name = self._capture.slot_name
        self._patiently(lambda: self._in_use(slot.inspect(self._sql, name)))

    def release(self) -> None:
        """End the stream if there is one, and keep the right to the slot."""
        if self._stream is not None:
            self._stream.close()  # a second close, when the stack unwinds, does nothing
            self._stream = None

    def keep_alive(self) -> None:
        """Answer PostgreSQL when an answer is due, during any other wait.

        Raise SourceUnreachableError if the right to the slot is lost. Raise StoppedError, once, if
        the daemon was stopped and Kafka doesn't answer.
        """
        self._health.turned()
        if self._lock is not None:
            self._lock.check()
        if self._stream is not None:
            self._stream.keep_alive()
        if not self._stop.is_set():
            return
        if self._drain_until is None:
            self._drain_until = time.monotonic() + DRAIN_S_MAX
        elif time.monotonic() > self._drain_until:
            self._drain_until = math.inf
            log.warning(
                "stopped without finishing: Kafka doesn't answer; the next start sends the rest"
            )
            raise StoppedError

    def wait_for_open_transactions(self, waited_s: float) -> None:
        """Answer PostgreSQL while a new slot waits for transactions that are already open."""
        self.keep_alive()
        if self._stop.is_set():
            raise StoppedError
        if int(waited_s) % WAITING_LINE_S == 1:
            log.info(
                "the new slot waits for open transactions of the source", seconds=int(waited_s)
            )

    def connect_replication(self) -> PGconn:
        """Open a replication connection to the server that the session uses."""
        connection = connect_replication(self._source)
        ours, other = server_address(self._sql.pgconn), server_address(connection)
        if ours != other:
            connection.finish()
            raise SourceUnreachableError(
                f"one connection reaches {ours}, another {other}",
                where="[source]",
                remedy="set target_session_attrs = read-write: all connections then find the"
                " primary",
            )
        return connection

    def _in_use(self, state: slot.SlotState | None) -> SlotInUseError | None:
        if state is None or not state.active:
            return None
        return slot.in_use(state.name, state.active_pid, server_address(self._sql.pgconn))

    def _start_stream(self) -> SlotInUseError | None:
        name = self._capture.slot_name
        state = slot.inspect(self._sql, name)
        if (in_use := self._in_use(state)) is not None:  # known without a second connection
            return in_use
        connection = self.connect_replication()
        try:
            if state is not None and self._capture.slot_failover:
                slot.let_fail_over(connection, state)
            self._stream = ReplicationStream.start(
                connection,
                name,
                self._capture.publication_name,
                status_interval_ms=self._capture.status_update_interval_ms,
                in_progress=self._in_progress,
            )
        except SlotInUseError as refusal:
            connection.finish()
            return refusal
        except BaseException:
            connection.finish()
            raise
        self._stack.callback(self._stream.close)
        # Inspect the slot only now: its last holder may have moved it until we got it.
        state = slot.inspect(self._sql, name)
        if state is None:  # the stream has ended, and another session has dropped the slot
            raise SourceUnreachableError(
                f"slot {name} was dropped while the daemon took it",
                where=server_address(self._sql.pgconn),
            )
        self.begin = state.confirmed_flush_lsn
        return None

    def _patiently(self, attempt: Callable[[], SlotInUseError | None]) -> None:
        """Retry every second until it works, for slot.max.retries times slot.retry.delay.ms.

        Raise the last SlotInUseError.
        """
        retries, delay_s = self._capture.slot_max_retries, self._capture.slot_retry_delay_ms / 1_000
        patience_s = retries * delay_s if retries >= 0 else math.inf
        began, next_line_s = time.monotonic(), 0.0
        while (refusal := attempt()) is not None:
            waited_s = time.monotonic() - began
            if waited_s >= patience_s:
                raise refusal
            if waited_s >= next_line_s:
                log.info("waiting", reason=refusal.what, seconds=int(waited_s))
                next_line_s += max(delay_s, ASK_EVERY_S)
            self._health.entered(Stage.STANDBY)
            self._on_wait()
            if self._stop.wait(min(delay_s, ASK_EVERY_S)):
                raise StoppedError
            if self._lock is not None:
                self._lock.check()
        self._health.entered(Stage.STARTING)
