"""A table that is being read while streaming goes on: its chunks done, under way, and missing.

A chunk is written into the log behind changes that its snapshot may not show: those of transactions
that committed after it was taken, and of some before, since a commit is in the WAL for a while
before it is visible. So each changed key of the table is remembered with its transaction, until
every later snapshot is known to show that; a chunk's rows that are older than the log are left out.

A row is locked until its transaction is visible, so whoever shows a key's last change shows all.
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
"""Changed keys of a table that are remembered; beyond, the chunks under way are read once more."""
_NO_WATERMARK: Final = (
    "a watermark didn't come back through the stream: the publication needs INSERT and DELETE of"
    " the signal table, without a row filter"
)
_TURN_S: Final = 0.05
"""How long the stream may stand still for a chunk: chunks become as large as that takes."""


class Changes:
    """What the stream says of one table since its chunks are being read."""

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()
        """The columns that identify a row; as long as they aren't known, any may have changed."""
        self._keys: dict[int, list[bytes | None]] = {}
        self._key_count = 0
        self._last: list[bytes | None] = []
        self.forgotten = 1
        """How often what was known of changes was given up; chunks from before are of no use."""
        self.relation: Relation | None = None
        self.announced = 0
        """How often a Relation message came."""
        self._settled: tuple[Visibility, set[str]] | None = None

    def tell_apart_by(self, key: tuple[str, ...]) -> None:
        """Rows are identified by these columns from here on."""
        if key != self.key:
            self.key = key
            self.forget()

    def of(self, xid: int) -> list[bytes | None]:
        """Where a transaction's changed keys are appended; None: it may be any."""
        self._key_count += len(self._last)
        if self._key_count > KEYS_MAX:
            self.forget()
        self._last = self._keys.setdefault(xid, [])
        self._key_count -= len(self._last)
        return self._last

    def forget(self) -> None:
        """Forget all changed keys: chunks have to begin again."""
        self._keys.clear()
        self._last = []
        self._key_count = 0
        self.forgotten += 1

    def note(self, row: StreamedRow) -> None:
        """Take notice of a change that comes decoded."""
        self.of(row.transaction.xid).extend(self._keys_of(row))

    def tracking(self, relation: Relation) -> KeyTracking | None:
        """How changed keys are noted; None: rows have to be shown."""
        names = [column.name for column in relation.columns]
        if not self.key or not set(self.key) <= set(names):
            return None
        return KeyTracking(tuple(map(names.index, self.key)), self.of)

    def announce(self, relation: Relation) -> None:
        """Take notice of how rows look from here on."""
        self.relation = relation
        self.announced += 1

    def fits(self, table: TableDescription, announced: int) -> bool:
        """Whether nothing says that a chunk's table was altered since so many announcements."""
        if self.relation is None or self.announced == announced:
            return True
        if relation_signature(self.relation) == table.signature:
            return True
        names = {column.name for column in table.columns}
        streamed_names = {column.name for column in self.relation.columns}
        return bool(table.unpublished) and names - streamed_names == table.unpublished

    def stale(self, visibility: Visibility) -> frozenset[bytes] | None:
        """The keys that were changed since a snapshot; None: it may be all of them."""
        stale_keys: set[bytes | None] = set()
        for xid, keys in self._keys.items():
            if not visibility.shows(xid):
                stale_keys.update(keys)
        return (
            None if None in stale_keys else frozenset(key for key in stale_keys if key is not None)
        )

    def settle(self, visibility: Visibility, begun: Collection[str]) -> None:
        """A chunk is done; ``begun`` are those under way, whose snapshots may be older.

        What it shows is shown by all that begin from here on.
        """
        if self._settled is None:
            self._settled = visibility, set(begun)

    def ended(self, chunk: str) -> None:
        """A chunk isn't under way any more."""
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
    """A chunk that is being read, with the state of Changes, and the fence, at its beginning.

    ``begun`` is what the stream had reached then.
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
        """``reached``: what the stream has; earlier changes aren't noted."""
        self.captured = CapturedTable(state.oid, state.name)
        self.request = request
        self.fence = max(reached, state.snapshot_lsn)
        """Changes are remembered from there on, chunks have to show all before.

        It is 0 once that is known of all that begin.
        """
        is_joining = request.kind == "initial" and request.behind_xid > 0
        self.joined = state.snapshot_lsn if is_joining else Lsn(0)
        """Where the table has joined: such rows may be before its TRUNCATE, or with it."""
        self.changes = Changes()
        self.described: DescribedTable | None = None
        self.described_at: Position | None = None
        """What the stream had reached as the last description was begun."""
        self.description_job: Job[DescribedTable] | None = None
        self.marks: dict[str, Job[bool]] = {}
        self.chunks: dict[str, PendingChunk] = {}
        self.not_before = 0.0
        self.encoded: tuple[TableDescription, Encoder] | None = None
        """Kept as long as the table is as it was described: a wide one's takes a while to make."""
        self.is_end_marked = False
        """Whether the last chunk was without rows, as Debezium's last one of a table is."""
        self.delay_s = RETRY_S
        self._is_proven = False
        """Whether the last thing that was begun came to something: then more is begun at once."""
        self._forgotten = self.changes.forgotten
        self._bytes = min(_FIRST_BYTES, chunk_bytes)
        self._bytes_max = chunk_bytes
        self._reads = LeafReads((), request.read)

    def learn(self, described: DescribedTable) -> None:
        """Take in the table's description, and which columns identify its rows."""
        self.described, self.description_job = described, None
        self.changes.tell_apart_by(described.table.identifying_columns)

    def remember(self, reached: Lsn) -> None:
        """What was forgotten has to be shown by chunks that are begun from here on."""
        if self._forgotten != self.changes.forgotten:
            self._forgotten, self.fence = self.changes.forgotten, reached

    @property
    def jobs(self) -> dict[str, Job[Any]]:
        """What is being read, or was, and waits for its watermark, by its id."""
        return {**self.marks, **{number: pending.job for number, pending in self.chunks.items()}}

    def failures(self, streamed: Lsn) -> Iterable[MillraceError | AlteredError]:
        """What has come to nothing, which is forgotten by that; ``streamed``: all up to there."""
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
        """Whether the request ends with this error; else it is tried again."""
        if self.request.is_own:
            return isinstance(error, TableRefusedError)
        return self.request.kind == "incremental" and not isinstance(error, SourceUnreachableError)

    def wait(self, now: float, reason: str) -> bool:
        """Something failed: leave the source alone for a while, longer each time.

        Returns whether that is new: what was begun together fails together.
        """
        if now < self.not_before:
            return False
        self._is_proven = False
        for number, job in self.jobs.items():
            if job.future.cancel():  # no thread has begun it: it would wait for the same
                self.forget(number)
        self.request = self.request.model_copy(update={"obstacle": reason})
        self.not_before = now + self.delay_s
        self.delay_s = min(2 * self.delay_s, RETRY_S_MAX)
        self._bytes = max(self._bytes // 2, _BYTES_MIN)
        return True

    def forget(self, number: str) -> None:
        """What was begun under that number is of no use any more."""
        self.marks.pop(number, None)
        self.chunks.pop(number, None)
        self.changes.ended(number)

    def next_chunk(self, rows_max: int) -> ChunkRange | None:
        """The next range that nobody has read, nor reads, if there is one."""
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
        """A chunk is in the log."""
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
        """The keys of rows that are left out; None: nothing of the chunk can be used."""
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
        """Whether all of the table was."""
        return self.described is not None and self._leaf_reads().is_done

    def lacks_partition(self, state: TableState) -> bool:
        """Whether one is missing whose bounds were emptied to read it: another may have had rows.

        What is there when the table is described for the first time behind that was there before.
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
        """How many pages the table has, and how many were read, as far as it is described."""
        if self.described is None:
            return None
        return (reads := self._leaf_reads()).pages, reads.pages_done

    def _leaf_reads(self) -> LeafReads:
        """What the request says that was read, and what is missing of the described table."""
        leaves = self.described.table.leaves if self.described else ()
        if not self._reads.is_of(leaves, self.request.read):
            self._reads = LeafReads(leaves, self.request.read)
        return self._reads


def _key(row: Row | None, at: list[int]) -> bytes | None:
    """A row's key; None where it hasn't all of it."""
    if row is None:
        return None
    key = [value for index in at if (value := row[index]) is not ABSENT and value is not None]
    return b"\0".join(key) if len(key) == len(at) else None
