"""The daemon's data → Kafka records for the producer, and their JSON."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from cdc.records.position import HEADER


class Record(NamedTuple):
    """A keyed record. ``partition`` None leaves the choice to the murmur2 partitioner.

    ``timestamp_ms`` is since 1970, UTC; 0: the producer uses the current time.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None = None
    timestamp_ms: int = 0


class RecordBatch(Protocol):
    """Several records that stay bytes until the producer takes them.

    ``cdc.compiled`` makes them.
    """

    size: int

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...


RecordOrBatch: TypeAlias = Record | RecordBatch


def each(records: Iterable[RecordOrBatch]) -> Iterator[Record]:
    """Yield the records of records and batches, one by one."""
    for item in records:
        if isinstance(item, Record):
            yield item
        else:
            yield from item


def count(records: Iterable[RecordOrBatch]) -> int:
    """Return the number of records in records and batches."""
    return sum(1 if isinstance(item, Record) else len(item) for item in records)


def size(records: Iterable[RecordOrBatch]) -> int:
    """Return the bytes of all keys and values in records and batches."""
    return sum(record_bytes(item) if isinstance(item, Record) else item.size for item in records)


def position_text(record: Record) -> str:
    """Return the position in the record's header, as text; empty without one."""
    return header_position_text(dict(record.headers).get(HEADER, b""))


def header_position_text(header: bytes) -> str:
    """Return the position in a header's value, as text."""
    return header.partition(b"/")[0].decode("ascii", "backslashreplace")


def record_bytes(record: Record) -> int:
    """Return the bytes of key and value."""
    return len(record.key or b"") + len(record.value or b"")


def to_json(value: Any) -> bytes:
    """Return compact JSON in UTF-8, the form of all of Millrace's keys and values."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
