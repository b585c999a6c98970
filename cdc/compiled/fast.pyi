from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from cdc.records.position import Lsn, Origin, Position, Transaction
from cdc.records.record import Record, RecordOrBatch
from cdc.wal.messages import Row

COMMITS_MAX: int
"""Number of transactions whose commit LSN the cursor keeps."""
SOURCES: str
"""The digest of the sources that this was built from."""

CompiledColumn: TypeAlias = tuple[
    int, int, bytes, bytes, bytes, bytes, Callable[[bytes], Any], Callable[[Any], str]
]

class _Resumed(Protocol):
    def begins(self, commit_lsn: Lsn) -> None: ...
    def ends(self, commit_lsn: Lsn, frames: int) -> None: ...

class PackedRecords:
    size: int

    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Record: ...
    def __iter__(self) -> Iterator[Record]: ...

class WrittenRecords:
    size: int
    culprit: Record | None

    def __len__(self) -> int: ...
    def add(self, record: Record) -> None: ...
    def clear(self) -> None: ...
    def position(self, topic: str, key: bytes | None, size: int) -> bytes: ...
    def span(self) -> tuple[bytes, bytes]: ...

def produce(
    send: Callable[..., None],
    records: list[RecordOrBatch],
    start: int,
    end: int,
    written: WrittenRecords,
) -> int: ...
def last_copy_data(data: bytearray, start: int, end: int) -> tuple[int, int]: ...
def plain_messages(
    data: bytearray,
    start: int,
    end: int,
    xid: int | None,
    after_message: bool,
    shortened: Callable[[bytes, int], bytes | None] | None,
) -> tuple[int, bytes, list[tuple[int, int, bool]], list[tuple[int, int]], bool]: ...

class Cursor:
    reached: Position
    cut: Position
    cut_ts_us: int
    flush_lsn: Lsn
    transaction: Transaction | None
    latest: Transaction | None
    last_commit: Lsn

    def __init__(
        self, reached: Position, cut: Position, flush_lsn: Lsn, cut_ts_us: int = 0
    ) -> None: ...
    def begin(self, xid: int, commit_lsn: Lsn, commit_ts_us: int) -> Transaction: ...
    def came_from(self, origin: Origin) -> None: ...
    @property
    def position(self) -> Position: ...
    @property
    def is_ended(self) -> bool: ...
    def message_at(self, lsn: Lsn) -> Position | None: ...
    def next(self) -> Position | None: ...
    def commit(self, commit_lsn: Lsn, end_lsn: Lsn) -> Transaction: ...
    def committed_at(self, xid: int) -> Lsn: ...
    def idle_at(self, wal_end: Lsn) -> None: ...

class Table:
    reselects: bool
    bytes_max: int
    claimed: Mapping[bytes, object] | None

    def __init__(
        self,
        topic: str,
        columns: Sequence[CompiledColumn],
        key: Sequence[int],
        source: tuple[bytes, bytes, bytes],
        flags: tuple[bool, bool, bool, bool],
        version: bytes,
        around: tuple[bytes, ...] = ...,
        headers: tuple[tuple[str, bytes], ...] = ...,
    ) -> None: ...
    def track_changes(
        self, identity: Sequence[int], watch: Callable[[int], list[bytes | None]]
    ) -> None: ...

class Writing:
    made_records: int
    made_bytes: int

    def feed(
        self,
        data: bytearray,
        start: int,
        end: int,
        clock_ns: int,
        records_max: int,
        bytes_max: int,
    ) -> int: ...

class Translator(Writing):
    received: int
    resumed: _Resumed | None

    def __init__(
        self,
        cursor: Cursor,
        records: list[RecordOrBatch],
        table: Callable[[int, Position], Table | bool | None] | None,
        slow: Callable[[bytes], bool],
    ) -> None: ...
    def forget(self, oid: int) -> None: ...
    def update(
        self,
        table: Table,
        transaction: Transaction,
        position: Position,
        lsn: Lsn,
        old: Row | None,
        old_is_key: bool,
        new: Row,
        filled: bytes,
        clock_ns: int,
    ) -> bool: ...

class Copier(Writing):
    row_count: int
    stale: Container[bytes]

    def __init__(
        self,
        records: list[RecordOrBatch],
        slow: Callable[[bytes], bool],
        table: Table | None,
        source: bytes,
        position: bytes,
        key: tuple[int, ...],
        extra: int,
    ) -> None: ...
