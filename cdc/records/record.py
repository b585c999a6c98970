"""Kafka records, as the daemon hands them to the producer."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cdc.records.position import HEADER

if TYPE_CHECKING:
    from cdc.compiled.fast import Rows


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


def size(parts: Iterable[Part]) -> int:
    """Bytes of keys and values."""
    return sum(record_bytes(part) if isinstance(part, Record) else part.size for part in parts)


def place_of(record: Record) -> str:
    """The position in the record's header, as text; empty where it has none."""
    return place(dict(record.headers).get(HEADER, b""))


def place(header: bytes) -> str:
    """The position in a header's value, as text."""
    return header.partition(b"/")[0].decode("ascii", "backslashreplace")


def record_bytes(record: Record) -> int:
    """Bytes of key and value."""
    return len(record.key or b"") + len(record.value or b"")
