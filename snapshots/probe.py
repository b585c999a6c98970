"""The source's latency → a pace, while rows are read: a thread with a session of its own.

The session is called "millrace pace". A statement's way is measured up to when the kernel has the
answer: our own threads may be late to see it. Transactions that aren't ours, by the server's
statistics, say whether there is anybody else to be careful of.
https://www.postgresql.org/docs/current/monitoring-stats.html (pg_stat_database)
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from cdc.errors import MillraceError
from cdc.postgres.connection import connect, query
from cdc.settings import LibraryOptions
from snapshots.pace import Pace

_PAUSE_S: Final = 0.1
_AGAIN_S: Final = 5.0
_PATIENCE_S: Final = 10.0
_FIRST: Final = 10
_FIRST_PAUSE_S: Final = 0.005
_OTHERS_PER_S: Final = 20.0
"""Transactions of others; fewer come from autovacuum, monitoring and ourselves."""
_OWN_PER_CHUNK: Final = 2
_COUNT: Final = "SELECT coalesce(sum(pg_stat_get_db_xact_commit(oid)), 0)::int8 FROM pg_database"
_COUNT_S: Final = 1.0
_SO_TIMESTAMPNS: Final = 35
"""Linux: https://docs.kernel.org/networking/timestamping.html"""
_STAMP: Final = struct.Struct("@qq")


class Probe:
    """Tells a pace how the source feels, while it is ``at`` work."""

    def __init__(self, source: LibraryOptions, pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self._chunks = 0
        self._calibrated = threading.Event()
        self._closing: threading.Event | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Measure meanwhile; what comes first is the baseline, so it is waited for."""
        self.begin()
        try:
            if self._closing is not None:
                self._calibrated.wait(_AGAIN_S)
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Measure from now on, if the pace wants to know."""
        if self._closing is None and self._pace.adaptive:
            closing = self._closing = threading.Event()
            thread = threading.Thread(target=self._run, args=[closing], daemon=True)
            thread.name = "snapshot-pace"
            thread.start()

    def end(self) -> None:
        """Measure no more; doesn't wait."""
        if self._closing is not None:
            self._closing.set()
            self._closing = None

    def chunk(self) -> None:
        """Take notice of a chunk that is begun: its transactions are ours."""
        self._chunks += 1

    def _run(self, closing: threading.Event) -> None:
        while not closing.is_set():
            # What is wrong with the source is told by those who read rows.
            with suppress(MillraceError, psycopg.Error, OSError), self._connected() as connection:
                self._measure(connection, closing)
            self._calibrated.set()
            closing.wait(_AGAIN_S)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        connection = connect(self._source, purpose="pace")
        try:
            yield connection
        finally:
            connection.close()

    def _measure(self, connection: psycopg.Connection, closing: threading.Event) -> None:
        with socket.socket(fileno=os.dup(connection.fileno())) as way:
            way.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            first = []
            for _ in range(_FIRST):
                first.append(latency_s(connection, way))
                time.sleep(_FIRST_PAUSE_S)
            self._pace.calibrate(first)
            self._calibrated.set()
            counted_at, count, is_shared = time.monotonic(), self._count(connection), False
            while not closing.wait(_PAUSE_S):
                now = time.monotonic()
                if now - counted_at >= _COUNT_S:
                    before, count = count, self._count(connection)
                    is_shared = count - before > _OTHERS_PER_S * (now - counted_at)
                    counted_at = now
                self._pace.felt(latency_s(connection, way), is_shared=is_shared)

    def _count(self, connection: psycopg.Connection) -> int:
        """How many transactions were committed that aren't ours, since whenever."""
        ((count,),) = query(connection, _COUNT)
        return int(count) - _OWN_PER_CHUNK * self._chunks


def latency_s(connection: psycopg.Connection, way: socket.socket) -> float:
    """How long a trivial statement takes; ``way`` is the connection's socket."""
    pgconn = connection.pgconn
    sent_ns = time.time_ns()
    pgconn.send_query(b"SELECT 1")
    poller = select.poll()
    poller.register(way, select.POLLIN)
    if not poller.poll(_PATIENCE_S * 1_000):
        raise TimeoutError
    _, more, _, _ = way.recvmsg(1, 64, socket.MSG_PEEK)
    came_ns = time.time_ns()
    for level, kind, data in more:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _STAMP.unpack(data[: _STAMP.size])
            came_ns = seconds * 1_000_000_000 + nanoseconds
    while pgconn.get_result() is not None:
        pass
    return max(0.0, (came_ns - sent_ns) / 1e9)
