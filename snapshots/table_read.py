"""A table that is being read while streaming goes on: its chunks done, under way, and missing."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from cdc.convert.pipeline import Encoder
from cdc.errors import (
    MillraceError,
    SourceSettingError,
    SourceUnreachableError,
    TableRefusedError,
)
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.position import Lsn
from cdc.records.state import LeafRead, SnapshotRequest
from snapshots.chunk import Chunk, ChunkRange, DescribedTable
from snapshots.overtaken import Changes
from snapshots.reader import ALL, Range, merged, next_range, pages_of
from snapshots.windows import Job

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
_FIRST_BYTES: Final = 1 << 20
_BYTES_MIN: Final = 8192
_NO_WATERMARK: Final = (
    "a watermark didn't come by the stream: the publication needs INSERT and DELETE of the signal"
    " table, and no filter of its rows"
)
_TURN_S: Final = 0.05
"""How long the stream may stand still for a chunk: chunks become as large as that takes."""


class PendingChunk(NamedTuple):
    """A chunk that is being read, with the state of Changes, and the fence, at its beginning."""

    job: Job[Chunk]
    chunk_range: ChunkRange
    forgotten: int
    announced: int
    fence: Lsn

    @property
    def result(self) -> Chunk | None:
        """What was read."""
        return self.job.result


class PageCounts(NamedTuple):
    """How many pages a table has, and how many of them were read."""

    total: int
    done: int


class TableRead:
    """The state of one request."""

    def __init__(
        self,
        captured: CapturedTable,
        request: SnapshotRequest,
        fence: Lsn,
        chunk_bytes: int,
        joined: Lsn,
    ) -> None:
        """``fence``: changes are remembered from there on, chunks have to show all before.

        It is 0 once that is known of all that begin. ``joined``: where the table has joined, if so.
        """
        self.captured = captured
        self.request = request
        self.fence = fence
        self.changes = Changes()
        self.described: DescribedTable | None = None
        self.description_job: Job[DescribedTable] | None = None
        self.marks: dict[str, Job[bool]] = {}
        self.chunks: dict[str, PendingChunk] = {}
        self.not_before = 0.0
        self.encoder: Encoder | None = None
        self.encoded_table: TableDescription | None = None
        """Kept as long as the table is as it was described: a wide one's takes a while to make."""
        self.is_end_marked = False
        """Whether the last chunk was without rows, as Debezium's last one of a table is."""
        self.delay_s = RETRY_S
        self._joined = joined
        self._is_proven = False
        """Whether the last thing that was begun came to something: then more is begun at once."""
        self._forgotten = self.changes.forgotten
        self._bytes = min(_FIRST_BYTES, chunk_bytes)
        self._bytes_max = chunk_bytes

    @property
    def new_description(self) -> DescribedTable | None:
        """A description that ``learn`` hasn't taken in yet, once it is there."""
        return self.description_job.result if self.description_job is not None else None

    def learn(self, described: DescribedTable) -> None:
        """Take in the table's description, and which columns identify its rows."""
        self.described, self.description_job = described, None
        self.changes.tell_apart_by(described.table.identifying_columns)

    def remember(self, reached: Lsn) -> None:
        """What was forgotten has to be shown by chunks that are begun from here on."""
        if self._forgotten != self.changes.forgotten:
            self._forgotten, self.fence = self.changes.forgotten, reached

    def waits_s(self, now: float) -> float:
        """How long what was read has waited for its watermark: so far the stream is behind."""
        return max((now - job.ended for job in self.jobs.values() if job.ended), default=0.0)

    def has_joined_at(self, reached: Lsn) -> bool:
        """Whether rows that get this position may be before the table's TRUNCATE, or with it."""
        return reached <= self._joined

    @property
    def jobs(self) -> dict[str, Job[Any]]:
        """What is being read, or was, and waits for its watermark, by its id."""
        return {**self.marks, **{number: pending.job for number, pending in self.chunks.items()}}

    @property
    def in_flight(self) -> int:
        """What is being read, or waits for its watermark."""
        return len(self.chunks) + len(self.marks) + (self.description_job is not None)

    def add(self, job: Job[Chunk], chunk_range: ChunkRange) -> None:
        """A chunk is being read."""
        changes = self.changes
        self.chunks[job.id] = PendingChunk(
            job, chunk_range, changes.forgotten, changes.announced, self.fence
        )

    def failures(self, streamed: Lsn) -> Iterable[Exception]:
        """What has come to nothing, which is forgotten by that; ``streamed``: all up to there."""
        for number, job in self.jobs.items():
            error = job.failure()
            if job.due is not None and job.due <= streamed:
                error = SourceSettingError(_NO_WATERMARK, where=f"table {self.captured.name}")
            if error is not None:
                self.forget(number)
                yield error
        if (
            self.description_job is not None
            and (error := self.description_job.failure()) is not None
        ):
            self.description_job = None
            yield error

    def gives_up(self, error: MillraceError) -> bool:
        """Whether the request ends with this error; else it is tried again."""
        if self.request.is_own:
            return isinstance(error, TableRefusedError)
        return self.request.kind == "incremental" and not isinstance(error, SourceUnreachableError)

    def wait(self, now: float) -> bool:
        """Something failed: leave the source alone for a while, longer each time.

        Returns whether that is new: what was begun together fails together.
        """
        if now < self.not_before:
            return False
        self._is_proven = False
        self._withdraw()
        self.not_before = now + self.delay_s
        self.delay_s = min(2 * self.delay_s, RETRY_S_MAX)
        self._bytes = max(self._bytes // 2, _BYTES_MIN)
        return True

    def _withdraw(self) -> None:
        """Take back what no thread has begun: it would wait for the same."""
        for number, job in self.jobs.items():
            if job.future.cancel():
                self.forget(number)

    def forget(self, number: str) -> None:
        """What was begun under that number is of no use any more."""
        self.marks.pop(number, None)
        self.chunks.pop(number, None)
        self.changes.ended(number)

    def next_chunk(self, rows_max: int) -> ChunkRange | None:
        """The next range that nobody has read, nor reads, if there is one."""
        if self.described is None or (self.chunks and not self._is_proven):
            return None  # one thread waits for a lock; the others have other tables
        table = self.described.table
        for leaf in table.leaves:
            ranges = (pending.chunk_range for pending in self.chunks.values())
            under_way = [taken.tids for taken in ranges if taken.leaf == leaf]
            done = self._ranges(leaf.oid)
            pages = max(1, self._bytes // table.block_bytes)
            if (tids := next_range([*done, *under_way], leaf.pages, pages)) is not None:
                request = self.request
                return ChunkRange(leaf, tids, request.condition, rows_max, request.behind_xid)
        return None

    def has_read(self, chunk: Chunk, chunk_range: ChunkRange, rows: int, took_s: float) -> None:
        """A chunk is in the log."""
        self.is_end_marked = chunk.row_count == 0
        self.delay_s = RETRY_S
        self._is_proven = True
        reads = {read.leaf: read for read in self.request.read}
        before = reads.get(chunk.leaf)
        same = before is not None and before.file == chunk.file
        ranges = merged([*(before.ranges if before and same else ()), chunk.range])
        reads[chunk.leaf] = LeafRead(leaf=chunk.leaf, file=chunk.file, ranges=ranges)
        update = {"read": tuple(reads.values()), "rows": self.request.rows + rows}
        self.request = self.request.model_copy(update=update)
        factor = 0.5 if chunk.range != chunk_range.tids else _TURN_S / max(took_s, 1e-6)
        grown = min(self._bytes * min(max(factor, 0.5), 2), self._bytes_max)
        self._bytes = max(round(grown), _BYTES_MIN)

    @property
    def is_read(self) -> bool:
        """Whether all of the table was."""
        leaves = self.described.table.leaves if self.described else None
        return leaves is not None and all(self._ranges(leaf.oid) == (ALL,) for leaf in leaves)

    @property
    def pages(self) -> PageCounts:
        """How many pages the table has, and how many were read."""
        leaves = self.described.table.leaves if self.described else ()
        done = sum(pages_of(self._ranges(leaf.oid), leaf.pages) for leaf in leaves)
        return PageCounts(sum(leaf.pages for leaf in leaves), done)

    def _ranges(self, leaf: int) -> tuple[Range, ...]:
        return next((read.ranges for read in self.request.read if read.leaf == leaf), ())
