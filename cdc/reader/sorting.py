"""Records in the order of their partitions → the same in the order of their positions.

A SQLite database holds them, in memory up to a limit, and then on disk. Its file has no name, so it
disappears with this process.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from cdc.errors import SpillError
from cdc.reader.envelope import headers_of, place_of

_TABLE: Final = (
    "CREATE TABLE record (position TEXT, topic TEXT, number INT, start INT, key BLOB, value BLOB,"
    " headers BLOB, ts_ms INT, PRIMARY KEY (position, topic, number, start)) WITHOUT ROWID"
)
_INSERT: Final = "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT: Final = (
    "SELECT topic, number, start, key, value, headers, ts_ms FROM record"
    " ORDER BY position, topic, number, start"
)


class SortedRecords:
    """Takes records, and returns them sorted. Must be closed."""

    def __init__(self, memory_bytes: int, folder: Path | None) -> None:
        with _disk(), tempfile.NamedTemporaryFile(dir=folder, prefix="millrace-") as file:
            # A reader may use one thread after the other (asyncio.to_thread).
            self._database = sqlite3.connect(
                file.name, isolation_level=None, check_same_thread=False
            )
            for pragma in (
                "journal_mode = OFF",
                "synchronous = OFF",
                "locking_mode = EXCLUSIVE",
                f"cache_size = -{max(1, memory_bytes >> 10)}",
            ):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.execute(_TABLE)
            self._database.execute("BEGIN")  # nothing is written that fits into memory

    def add(self, position: str, message: Message) -> None:
        """Add a record with its position's text."""
        names = [part for pair in headers_of(message).items() for part in pair]
        parts = [part.encode() if isinstance(part, str) else part for part in names]
        headers = b"".join(len(part).to_bytes(4) + part for part in parts)
        topic, number, start = place_of(message)
        row = message.key(), message.value(), headers, message.timestamp()[1]
        with _disk():
            self._database.execute(_INSERT, (position, topic, number, start, *row))

    def __iter__(self) -> Iterator[Message]:
        with _disk():
            for row in self._database.execute(_SELECT):
                yield _message(_StoredRecord(*row))

    def close(self) -> None:
        """Release memory and disk."""
        self._database.close()


class _StoredRecord(NamedTuple):
    topic: str
    number: int
    start: int
    key: bytes | None
    value: bytes | None
    headers: bytes
    ts_ms: int


def _message(row: _StoredRecord) -> Message:
    parts, at = list[bytes](), 0
    while at < len(row.headers):
        end = at + 4 + int.from_bytes(row.headers[at : at + 4])
        parts.append(row.headers[at + 4 : end])
        at = end
    made: Any = Message(
        topic=row.topic,
        partition=row.number,
        offset=row.start,
        key=row.key,
        value=row.value,
        headers=[
            (name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)
        ],
        timestamp=(1, row.ts_ms),
    )
    return made  # type: ignore[no-any-return]  # its stub has no constructor


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise SpillError(
            f"the disk can't store a backlog of transactions: {error}",
            where="spill.directory",
            remedy="free some space, or choose another folder; or read the backlog in steps, from a"
            " later start",
        ) from None
