"""A table's request, chunks and changed keys → the chunks done, under way, and missing.

A chunk enters the log after changes that its snapshot may not show. Those are changes of
transactions that committed after the snapshot, and of some before it, since a commit is in the WAL
for a while before it is visible. So each changed key of the table is remembered with its
transaction, until every later snapshot is sure to show it. A chunk's rows that are older than the
log's are left out.

A row is locked until its transaction is visible. So a snapshot that shows a key's last change shows
all of them.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.errors import (
    MillraceError,
    SourceSettingError,
    SourceUnreachableError,
    TableRefusedError,
)
from cdc.events.changes import ABSENT, Row
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.state import SnapshotRequest, TableState
from cdc.stream.signals import KeyTracking, StreamedRow
from cdc.wal.messages import Relation
from snapshots.chunk import AlteredError, Chunk, ChunkRange, DescribedTable, Visibility
from snapshots.leaf_reads import LeafReads
from snapshots.reader import next_range
from snapshots.windows import Job

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
_FIRST_BYTES: Final = 1 << 20
_BYTES_MIN: Final = 8192
KEYS_MAX: Final = 200_000
"""How many changed keys of a table are remembered. Beyond it, active chunks are read again."""
_NO_WATERMARK: Final = (
    "a watermark didn't come back through the stream: the publication needs INSERT and DELETE of"
    " the signal table, without a row filter"
)
_TURN_S: Final = 0.05
"""How long a chunk may hold up the stream. Chunks grow up to the size that takes this long."""


class Changes:
    """The stream's changes of one table while its chunks are being read."""

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()
        """The columns that identify a row. While they are unknown, any row may have changed."""
        self._keys: dict[int, list[bytes | None]] = {}
        self._key_count = 0
        self._last: list[bytes | None] = []
        self.forgotten = 1
        """How often the changes were discarded. Chunks from before are useless."""
        self.relation: Relation | None = None
        self.announced = 0
        """How many Relation messages came."""
        self._settled: tuple[Visibility, set[str]] | None = None

    def tell_apart_by(self, key: tuple[str, ...]) -> None:
        """Identify rows by these columns from here on."""
        if key != self.key:
            self.key = key
            self.forget()

    def of(self, xid: int) -> list[bytes | None]:
        """Return the list for a transaction's changed keys. None in it: it may be any key."""
        self._key_count += len(self._last)
        if self._key_count > KEYS_MAX:
            self.forget()
        self._last = self._keys.setdefault(xid, [])
        self._key_count -= len(self._last)
        return self._last

    def forget(self) -> None:
        """Discard all changed keys. Chunks must begin again."""
        self._keys.clear()
        self._last = []
        self._key_count = 0
        self.forgotten += 1

    def note(self, row: StreamedRow) -> None:
        """Record a change that comes decoded."""
        self.of(row.transaction.xid).extend(self._keys_of(row))

    def tracking(self, relation: Relation) -> KeyTracking | None:
        """Return how to record changed keys. None: rows must be shown."""
        names = [column.name for column in relation.columns]
        if not self.key or not set(self.key) <= set(names):
            return None
        return KeyTracking(tuple(map(names.index, self.key)), self.of)

    def announce(self, relation: Relation) -> None:
        """Record the current form of rows."""
        self.relation = relation
        self.announced += 1

    def fits(self, table: TableDescription, announced: int) -> bool:
        """Whether a chunk's table is unaltered, by the announcements since ``announced``."""
        if self.relation is None or self.announced == announced:
            return True
        if relation_signature(self.relation) == table.signature:
            return True
        names = {column.name for column in table.columns}
        streamed_names = {column.name for column in self.relation.columns}
        return bool(table.unpublished) and names - streamed_names == table.unpublished

    def stale(self, visibility: Visibility) -> frozenset[bytes] | None:
        """Return the keys that were changed since a snapshot. None: it may be all of them."""
        stale_keys: set[bytes | None] = set()
        for xid, keys in self._keys.items():
            if not visibility.shows(xid):
                stale_keys.update(keys)
        return (
            None if None in stale_keys else frozenset(key for key in stale_keys if key is not None)
        )

    def settle(self, visibility: Visibility, begun: Collection[str]) -> None:
        """Record that a chunk is done. ``begun`` are active ones, with possibly older snapshots.

        All chunks that begin later show what this chunk shows.
        """
        if self._settled is None:
            self._settled = visibility, set(begun)

    def ended(self, chunk: str) -> None:
        """Record that a chunk is no longer active."""
        if self._settled is None:
            return
        visibility, waiting = self._settled
        waiting.discard(chunk)
        if not waiting:
            self._settled = None
            kept = {x: keys for x, keys in self._keys.items() if not visibility.shows(x)}
            self._keys, self._last = kept, []
            self._key_count = sum(map(len, kept.values()))

    def _keys_of(self, row: StreamedRow) -> Iterable[bytes | None]:
        columns = [column.name for column in row.relation.columns]
        at = [columns.index(name) for name in self.key if name in columns]
        if len(at) != len(self.key) or not at or (row.old is None and row.new is None):
            return {None}
        old, new = _key(row.old, at), _key(row.new, at)
        if row.new is None:
            return {old}
        return {new if new is not None else old, old if old is not None else new}


class PendingChunk(NamedTuple):
    """An active chunk, with the state of Changes, and the fence, at its beginning.

    ``begun`` is the stream's position then.
    """

    job: Job[Chunk]
    chunk_range: ChunkRange
    forgotten: int
    announced: int
    fence: Lsn
    begun: Position


class TableRead:
    """The state of one request."""

    def __init__(
        self, state: TableState, request: SnapshotRequest, reached: Lsn, chunk_bytes: int
    ) -> None:
        """``reached``: the stream's position. Earlier changes aren't recorded."""
        self.captured = CapturedTable(state.oid, state.name)
        self.request = request
        self.fence = max(reached, state.snapshot_lsn)
        """Changes are remembered from here on. Chunks must show everything before.

        0: all new chunks are known to show it.
        """
        is_joining = request.kind == "initial" and request.behind_xid > 0
        self.joined = state.snapshot_lsn if is_joining else Lsn(0)
        """The table joined here. Rows up to here may precede its TRUNCATE, or be with it."""
        self.changes = Changes()
        self.described: DescribedTable | None = None
        self.described_at: Position | None = None
        """The stream's position when the last description began."""
        self.description_job: Job[DescribedTable] | None = None
        self.marks: dict[str, Job[bool]] = {}
        self.chunks: dict[str, PendingChunk] = {}
        self.not_before = 0.0
        self.encoded: tuple[TableDescription, Encoder] | None = None
        """Kept while the table has the same description: for a wide one it takes time to make."""
        self.is_end_marked = False
        """Whether the last chunk had no rows, like Debezium's last chunk of a table."""
        self.delay_s = RETRY_S
        self._is_proven = False
        """Whether the last step succeeded. Then several chunks begin at once."""
        self._forgotten = self.changes.forgotten
        self._bytes = min(_FIRST_BYTES, chunk_bytes)
        self._bytes_max = chunk_bytes
        self._reads = LeafReads((), request.read)

    def learn(self, described: DescribedTable) -> None:
        """Record the table's description, and the columns that identify its rows."""
        self.described, self.description_job = described, None
        self.changes.tell_apart_by(described.table.identifying_columns)

    def remember(self, reached: Lsn) -> None:
        """Move the fence after changes were discarded: later chunks must show them."""
        if self._forgotten != self.changes.forgotten:
            self._forgotten, self.fence = self.changes.forgotten, reached

    @property
    def jobs(self) -> dict[str, Job[Any]]:
        """The active jobs, and those that wait for their watermark, by id."""
        return {**self.marks, **{number: pending.job for number, pending in self.chunks.items()}}

    def failures(self, streamed: Lsn) -> Iterable[MillraceError | AlteredError]:
        """Yield failures, and discard their jobs. ``streamed``: the stream has all up to there."""
        for number, job in self.jobs.items():
            error = job.failure()
            if job.due is not None and job.due <= streamed:
                error = SourceSettingError(_NO_WATERMARK, where=f"table {self.captured.name}")
            if error is not None:
                self.forget(number)
                yield error
        error = self.description_job.failure() if self.description_job else None
        if error is not None:
            self.description_job = None
            yield error

    def gives_up(self, error: MillraceError) -> bool:
        """Whether the request ends with this error. Otherwise it is tried again."""
        if self.request.is_own:
            return isinstance(error, TableRefusedError)
        return self.request.kind == "incremental" and not isinstance(error, SourceUnreachableError)

    def wait(self, now: float, reason: str) -> bool:
        """Leave the source alone for a while after a failure, longer each time.

        Return whether the failure is new: jobs that begin together fail together.
        """
        if now < self.not_before:
            return False
        self._is_proven = False
        for number, job in self.jobs.items():
            if job.future.cancel():  # no thread has begun it, and it would wait, too
                self.forget(number)
        self.request = self.request.model_copy(update={"obstacle": reason})
        self.not_before = now + self.delay_s
        self.delay_s = min(2 * self.delay_s, RETRY_S_MAX)
        self._bytes = max(self._bytes // 2, _BYTES_MIN)
        return True

    def forget(self, number: str) -> None:
        """Discard the job with that id."""
        self.marks.pop(number, None)
        self.chunks.pop(number, None)
        self.changes.ended(number)

    def next_chunk(self, rows_max: int) -> ChunkRange | None:
        """Return the next range that isn't read, or being read. None: there is none yet."""
        if self.described is None or (self.chunks and not self._is_proven):
            return None  # one thread waits for a lock; the others have other tables
        table, reads = self.described.table, self._leaf_reads()
        for leaf in reads.missing():
            ranges = (pending.chunk_range for pending in self.chunks.values())
            under_way = [taken.tids for taken in ranges if taken.leaf == leaf]
            done = reads.ranges(leaf.oid)
            pages = max(1, self._bytes // table.block_bytes)
            if (tids := next_range([*done, *under_way], leaf.pages, pages)) is not None:
                request = self.request
                return ChunkRange(leaf, tids, request.condition, rows_max, request.behind_xid)
        return None

    def has_read(self, chunk: Chunk, chunk_range: ChunkRange, rows: int, took_s: float) -> None:
        """Record that a chunk is in the log."""
        self.is_end_marked = chunk.row_count == 0
        self.delay_s = RETRY_S
        self._is_proven = True
        reads = self._leaf_reads()
        reads.add(chunk.leaf, chunk.file, chunk.range)
        update = {"read": reads.read, "rows": self.request.rows + rows, "obstacle": ""}
        self.request = self.request.model_copy(update=update)
        factor = 0.5 if chunk.range != chunk_range.tids else _TURN_S / max(took_s, 1e-6)
        grown = min(self._bytes * min(max(factor, 0.5), 2), self._bytes_max)
        self._bytes = max(round(grown), _BYTES_MIN)

    def stale(
        self, chunk: Chunk, pending: PendingChunk, cursor: fast.Cursor
    ) -> frozenset[bytes] | None:
        """Return the keys of rows to leave out. None: the chunk is useless."""
        if (
            pending.forgotten != self.changes.forgotten
            or chunk.described.table.identifying_columns != self.changes.key
            or not self.changes.fits(chunk.described.table, pending.announced)
        ):
            return None
        if pending.fence:
            if not chunk.visibility.shows_all_before(pending.fence, cursor.committed_at):
                return None
            self.fence = Lsn(0)
        return self.changes.stale(chunk.visibility)

    @property
    def is_read(self) -> bool:
        """Whether all of the table was read."""
        return self.described is not None and self._leaf_reads().is_done

    def lacks_partition(self, state: TableState) -> bool:
        """Whether a partition is missing whose bounds were emptied to read it.

        Other partitions may have had rows there. The partitions in the table's first description
        after that existed before.
        """
        doubtful = state.doubt.leaves if state.doubt else ()
        table = self.described.table if self.described else None
        read = {each.leaf for each in self.request.read}
        fingerprint = table.fingerprint if table else None
        if self.request.kind != "initial" or self.request.reset or not read or not fingerprint:
            return False
        there = {(leaf.oid, leaf.attached) for leaf in fingerprint.leaves}
        is_first = read.isdisjoint(leaf.oid for leaf in doubtful)
        return is_first and any((leaf.oid, leaf.attached) not in there for leaf in doubtful)

    @property
    def pages(self) -> tuple[int, int] | None:
        """The number of the table's pages, and of those read. None: it isn't described yet."""
        if self.described is None:
            return None
        return (reads := self._leaf_reads()).pages, reads.pages_done

    def _leaf_reads(self) -> LeafReads:
        """Return the request's progress, over the leaves of the described table."""
        leaves = self.described.table.leaves if self.described else ()
        if not self._reads.is_of(leaves, self.request.read):
            self._reads = LeafReads(leaves, self.request.read)
        return self._reads


def _key(row: Row | None, at: list[int]) -> bytes | None:
    """Return a row's key. None if a part is missing."""
    if row is None:
        return None
    key = [value for index in at if (value := row[index]) is not ABSENT and value is not None]
    return b"\0".join(key) if len(key) == len(at) else None
