"""The source's latency, and a limit → how many rows may be read now.

A probe measures the source's latency while rows are read. It is a thread with its own session.
"""

import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from statistics import fmean
from typing import Final

import psycopg

from cdc.errors import MillraceError
from cdc.postgres.connection import connect, query
from cdc.settings import LibraryOptions

BURST_S: Final = 0.25
"""How long unused room is kept."""
_PIECE_S: Final = 0.01
"""The least wait: a wait for each row would cost more than the rows."""
JUDGE_S: Final = 1.0
"""How long latencies are gathered before they are judged."""
SLOW: Final = 3.0
"""A source is slow if its latency is more than this many times its baseline, ..."""
SLOW_S_MIN: Final = 0.000_5
"""... and exceeds the baseline by more than this."""
_RECENT: Final = 300
"""The baseline is the least of this many means."""
_STEP: Final = 1 / 32
_LEAST: Final = 1 / 64
"""Shares of the highest rate so far: the growth at each step, and the minimum."""
_UNLIMITED: Final = 1 << 40


_PAUSE_S: Final = 0.1
_AGAIN_S: Final = 5.0
_PATIENCE_S: Final = 10.0
_FIRST: Final = 10
_FIRST_PAUSE_S: Final = 0.005
_OTHERS_PER_S: Final = 20.0
"""Transactions of others. Autovacuum, monitoring and Millrace itself make fewer."""
_OWN_PER_CHUNK: Final = 2
_COUNT: Final = "SELECT coalesce(sum(pg_stat_get_db_xact_commit(oid)), 0)::int8 FROM pg_database"
_COUNT_S: Final = 1.0
_SO_TIMESTAMPNS: Final = 35
"""Linux: https://docs.kernel.org/networking/timestamping.html"""
_STAMP: Final = struct.Struct("@qq")


class Pace:
    """The pace of all reads. Another thread may call ``felt``."""

    def __init__(
        self,
        rows_per_second_max: int = 0,
        *,
        adaptive: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``rows_per_second_max`` 0: no limit."""
        self.limit = rows_per_second_max or math.inf
        self.adaptive = adaptive
        self._bearable = math.inf
        """The rate that the source can bear."""
        self._clock = clock
        self._filled_at = clock()
        self._left = self._burst
        self._judged_at = clock()
        self._felt: list[float] = []
        self._means: deque[float] = deque(maxlen=_RECENT)
        self._taken = 0
        self._highest = 0.0

    @property
    def rate(self) -> float:
        """The number of rows a second that may be read now."""
        return min(self.limit, self._bearable)

    def room(self) -> int:
        """Return how many rows may be taken at once. 0: none yet."""
        if math.isinf(self.rate):
            return _UNLIMITED
        self._fill()
        return max(0, math.floor(self._left))

    def plan(self, rows: int) -> None:
        """Pay for rows that will be taken, even for more than there is room for."""
        if math.isfinite(self.rate):
            self._fill()
            self._left -= rows

    def took(self, rows: int, planned: int = 0) -> None:
        """Record rows, and pay for those beyond the plan. Refund planned rows that didn't come."""
        self._taken += rows
        self.plan(rows - planned)

    def wait_s(self) -> float:
        """Return the time until it is worth continuing."""
        if math.isinf(self.rate):
            return 0.0
        self._fill()
        return max(0.0, max(1.0, self.rate * _PIECE_S) - self._left) / self.rate

    def rows_at_once(self, rows_max: int) -> int:
        """Return how many rows a statement may ask for: at most ``rows_max``, and at least one."""
        return rows_max if math.isinf(self.rate) else max(1, min(rows_max, int(self._burst)))

    def felt(self, latency_s: float, *, is_shared: bool) -> None:
        """Record the latency of a trivial statement. ``is_shared``: others use the source."""
        self._felt.append(latency_s)
        now = self._clock()
        elapsed = now - self._judged_at
        if elapsed < JUDGE_S:
            return
        taken, self._taken = self._taken / elapsed, 0
        self._judged_at = now
        self._highest = max(self._highest, taken)
        self.calibrate(self._felt)
        latency, base = self._means[-1], min(self._means)
        self._felt = []
        if taken > 0 and is_shared and latency > max(SLOW * base, base + SLOW_S_MIN):
            self._fill()
            least = max(self._highest * _LEAST, 1.0)
            self._bearable = max(min(self._bearable, taken) / 2, least)
            self._left = min(self._left, self._burst)
        elif math.isfinite(self._bearable):
            self._fill()
            self._bearable += self._highest * _STEP
            if self._bearable > self._highest:
                self._bearable = math.inf  # it doesn't limit the reads

    def calibrate(self, latencies_s: list[float]) -> None:
        """Record latencies for the baseline only, as nothing is being read."""
        # Leave out the longest one: a single hiccup says nothing.
        self._means.append(fmean(sorted(latencies_s)[:-1] or latencies_s))

    @property
    def _burst(self) -> float:
        return max(1.0, self.rate * BURST_S)

    def _fill(self) -> None:
        now = self._clock()
        if math.isinf(self._left):  # there was no limit
            self._left = self._burst
        else:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self.rate)
        self._filled_at = now


class Probe:
    """Reports the source's latency to a pace while it is ``measuring``."""

    def __init__(self, source: LibraryOptions, pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self.chunks = 0
        """How many chunks were begun: their transactions are ours."""
        self._calibrated = threading.Event()
        self._stop: threading.Event | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure during the block. Wait for the first values, as they are the baseline."""
        self.begin()
        try:
            if self._stop is not None:
                self._calibrated.wait(_AGAIN_S)
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Begin to measure, if the pace is adaptive."""
        if self._stop is None and self._pace.adaptive:
            stop = self._stop = threading.Event()
            name = "snapshot-pace"
            threading.Thread(target=self._run, name=name, args=[stop], daemon=True).start()

    def end(self) -> None:
        """Stop measuring. Doesn't wait."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            # The readers of rows report what is wrong with the source.
            with (
                suppress(MillraceError, psycopg.Error, OSError),
                closing(connect(self._source, purpose="pace")) as connection,
            ):
                self._measure(connection, stop)
            self._calibrated.set()
            stop.wait(_AGAIN_S)

    def _measure(self, connection: psycopg.Connection, stop: threading.Event) -> None:
        with socket.socket(fileno=os.dup(connection.fileno())) as way:
            way.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            first = []
            for _ in range(_FIRST):
                first.append(latency_s(connection, way))
                time.sleep(_FIRST_PAUSE_S)
            self._pace.calibrate(first)
            self._calibrated.set()
            count_taken_at, count, is_shared = time.monotonic(), self._count(connection), False
            while not stop.wait(_PAUSE_S):
                now = time.monotonic()
                if now - count_taken_at >= _COUNT_S:
                    before, count = count, self._count(connection)
                    is_shared = count - before > _OTHERS_PER_S * (now - count_taken_at)
                    count_taken_at = now
                self._pace.felt(latency_s(connection, way), is_shared=is_shared)

    def _count(self, connection: psycopg.Connection) -> int:
        """Return the number of committed transactions, without ours, since an arbitrary time."""
        ((count,),) = query(connection, _COUNT)
        return int(count) - _OWN_PER_CHUNK * self.chunks


def latency_s(connection: psycopg.Connection, way: socket.socket) -> float:
    """Return how long a trivial statement takes. ``way`` is the connection's socket."""
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
