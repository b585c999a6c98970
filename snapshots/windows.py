"""Requested chunks → their rows, each chunk followed by a watermark in the stream.

Each thread has its own connection, and reads one chunk at a time while streaming continues. A
watermark (watermarks.py) returns through the stream, and shows where the rows belong. Rows may be
read from a standby. Watermarks are written at the primary.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import psycopg

from cdc.errors import MillraceError
from cdc.faults import FaultPoint, reach
from cdc.postgres.checks.standby import StandbyWatch, await_replay, check_standby, replay
from cdc.postgres.connection import connect, current_wal_end
from cdc.postgres.described import CapturedTable
from cdc.postgres.failures import server_address
from cdc.postgres.running import Running, running
from cdc.records.position import Lsn
from cdc.settings import LibraryOptions, Settings
from snapshots import chunk
from snapshots.chunk import AlteredError, Chunk, ChunkRange, DescribedTable
from snapshots.pace import Pace, Probe
from snapshots.watermarks import Watermarks, now

T = TypeVar("T")


class _Sessions(threading.local):
    """A thread's connections. With a standby, ``reading`` is the one that reads rows."""

    marking: psycopg.Connection | None = None
    reading: psycopg.Connection | None = None


class Job(Generic[T]):
    """A background job. ``result`` exists before its watermark arrives."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        """The content of its watermark."""
        self.result: T | None = None
        self.behind: Lsn | None = None
        """Without a watermark: the position that the stream must reach."""
        self.due: Lsn | None = None
        """With a watermark: the position of the stream by which it must have arrived."""
        self.ended = 0.0
        """Since when (monotonic) it waits for the stream. 0: it doesn't."""
        self.future: Future[None]

    def failure(self) -> MillraceError | AlteredError | None:
        """Return why the job failed, once it has. Raise an error that is our own bug."""
        is_done = self.future.done() and not self.future.cancelled()
        error = self.future.exception() if is_done else None
        if error is None or isinstance(error, MillraceError | AlteredError):
            return error
        raise error


class WindowReader:
    """Reads chunks in the background, at a pace."""

    def __init__(
        self,
        settings: Settings,
        watermarks: Watermarks,
        pace: Pace,
        standby_watch: StandbyWatch | None = None,
    ) -> None:
        """``standby_watch`` gets the positions that are waited for."""
        self._standby_watch = standby_watch or StandbyWatch()
        self._source = settings.source
        self._standby = settings.standby
        self._settings = settings.capture
        self._watermarks = watermarks
        self._probe = Probe(settings.standby or settings.source, pace)
        self.pace = pace
        self.threads = self._settings.snapshot_max_threads
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="snapshot-window")
        self._own = _Sessions()
        self._connections: set[psycopg.Connection] = set()
        self._closing = threading.Event()

    @property
    def rows_max(self) -> int:
        """How many rows the next chunk may have. 0: no chunk may begin yet."""
        if not self.pace.room():
            return 0
        return self.pace.rows_at_once(self._settings.incremental_snapshot_chunk_size)

    def measure(self, *, is_busy: bool) -> None:
        """Measure the source's latency while reads are active. Doesn't wait."""
        (self._probe.begin if is_busy else self._probe.end)()

    def describe(self, table: CapturedTable, streamed: Lsn) -> Job[DescribedTable]:
        """Describe a table as it is at the streamed position, or later."""

        def act(connection: psycopg.Connection) -> DescribedTable:
            # The primary may have shown it to us before the stream has reached it.
            made = current_wal_end(self._marking()) if self._standby else streamed
            self._await(connection, max(streamed, made))
            return chunk.describe(connection, self._settings, table)

        return self._start(act)

    def read(self, described: DescribedTable, chunk_range: ChunkRange, streamed: Lsn) -> Job[Chunk]:
        """Read a chunk that shows everything streamed, and write its watermark."""
        if self._standby is None:  # those have ended before the read begins
            chunk_range = chunk_range._replace(behind_xid=0)
        self.pace.plan(chunk_range.rows_max)
        self._probe.chunks += 1

        def act(connection: psycopg.Connection) -> Chunk:
            self._await(connection, streamed)
            return chunk.read(connection, self._settings, described, chunk_range)

        return self._start(act, marked=True)

    def ask(self, question: Callable[[psycopg.Connection], T]) -> Job[T]:
        """Ask the primary a question."""
        return self._start(question, of_primary=True)

    def running(self, tables: Collection[int]) -> Job[Running]:
        """Ask which transactions are open for new reads, and which of them wrote to tables."""
        if self._standby is None:
            return self._start(partial(running, tables=tables))

        def act(connection: psycopg.Connection) -> Running:
            # The order matters: a replay up to that position shows the ends of those transactions.
            at_primary = running(self._marking(), tables).oldest
            needed, where = current_wal_end(self._marking()), server_address(connection.pgconn)
            self._standby_watch.note(where, replay(connection), needed)
            return running(connection, tables)._replace(oldest_at_primary=at_primary)

        return self._start(act)

    def mark(self) -> Job[bool]:
        """Write a watermark, which comes after everything streamed."""
        return self._start(self._watermarks.step, marked=True, of_primary=True)

    def tell_end(self) -> None:
        """End with an empty window, as Debezium does, if watermarks are rows that others see."""
        if self._settings.watermarks_in_table:
            self.mark()

    def close(self) -> None:
        """Abandon active reads."""
        self._closing.set()
        self._probe.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for connection in list(self._connections):
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=2)
        self._pool.shutdown()
        for connection in list(self._connections):
            connection.close()

    def _start(
        self,
        act: Callable[[psycopg.Connection], T],
        *,
        marked: bool = False,
        of_primary: bool = False,
    ) -> Job[T]:
        job = Job[T]()
        job.future = self._pool.submit(self._do, job, act, marked, of_primary)
        return job

    def _do(
        self,
        job: Job[T],
        act: Callable[[psycopg.Connection], T],
        marked: bool,
        of_primary: bool,
    ) -> None:
        try:
            marking = self._marking()
            reading = marking if of_primary else self._reading()
            opened = now()
            if marked:
                self._watermarks.open(marking, job.id, opened)
            job.result = act(reading)
            if marked:
                reach(FaultPoint.CHUNK_READ)
                end = self._watermarks.close(marking, job.id, opened)
                if self._watermarks.is_read_only:
                    job.behind = end
                else:
                    job.due = end
                reach(FaultPoint.CHUNK_MARKED)
                job.ended = time.monotonic()
        except BaseException:
            for connection in filter(None, (self._own.marking, self._own.reading)):
                self._connections.discard(connection)
                connection.close()
            self._own.marking = self._own.reading = None
            raise

    def _await(self, connection: psycopg.Connection, streamed: Lsn) -> None:
        if self._standby is not None:
            note = partial(self._standby_watch.note, server_address(connection.pgconn))
            stop = self._closing.wait
            await_replay(connection, streamed, stop, lambda now: note(now, streamed))

    def _marking(self) -> psycopg.Connection:
        """Return the thread's session at the primary."""
        if self._own.marking is None:
            self._own.marking = self._connect(self._source)
            if self._standby is None:  # a standby shows everything replayed, without waits
                self._watermarks.settle(self._own.marking)
        return self._own.marking

    def _reading(self) -> psycopg.Connection:
        """Return the thread's session that reads rows."""
        if self._standby is None:
            return self._marking()
        if self._own.reading is None:
            marking = self._marking()
            try:
                self._own.reading = self._connect(self._standby)
                check_standby(self._own.reading, marking)
            except MillraceError as error:
                self._standby_watch.failed(error)
                raise
        return self._own.reading

    def _connect(self, source: LibraryOptions) -> psycopg.Connection:
        connection = connect(source, purpose="incremental snapshot")
        self._connections.add(connection)
        return connection
