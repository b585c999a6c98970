"""Kafka records, as the daemon hands them to the producer."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from cdc.wal.fast import Rows


class Record(NamedTuple):
    """A keyed record; ``partition`` None leaves the choice to the murmur2 partitioner.

    ``timestamp_ms`` is since 1970, UTC; 0 leaves it to the producer, which takes the time of now.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None = None
    timestamp_ms: int = 0


Part: TypeAlias = "Record | Rows"
"""One record, or several that stay bytes until they are handed over."""


def each(parts: Iterable[Part]) -> Iterator[Record]:
    """The records one by one."""
    for part in parts:
        if isinstance(part, Record):
            yield part
        else:
            yield from part


def count(parts: Iterable[Part]) -> int:
    """How many records that is."""
    return sum(1 if isinstance(part, Record) else len(part) for part in parts)


def record_bytes(record: Record) -> int:
    """Bytes of key and value."""
    return len(record.key or b"") + len(record.value or b"")
