"""Kafka records, as the daemon hands them to the producer, and the JSON that they have."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from cdc.records.position import HEADER


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


class RecordBatch(Protocol):
    """Several records that stay bytes until the producer takes them; ``cdc.compiled`` makes them.

    ``size`` is the bytes of their keys and values.
    """

    size: int

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...


RecordOrBatch: TypeAlias = Record | RecordBatch


def each(records: Iterable[RecordOrBatch]) -> Iterator[Record]:
    """Records and batches → the records, one by one."""
    for item in records:
        if isinstance(item, Record):
            yield item
        else:
            yield from item


def count(records: Iterable[RecordOrBatch]) -> int:
    """Records and batches → the number of records."""
    return sum(1 if isinstance(item, Record) else len(item) for item in records)


def size(records: Iterable[RecordOrBatch]) -> int:
    """Records and batches → the bytes of all keys and values."""
    return sum(record_bytes(item) if isinstance(item, Record) else item.size for item in records)


def position_text(record: Record) -> str:
    """The position in the record's header, as text; empty where it has none."""
    return header_position_text(dict(record.headers).get(HEADER, b""))


def header_position_text(header: bytes) -> str:
    """The position in a header's value, as text."""
    return header.partition(b"/")[0].decode("ascii", "backslashreplace")


def record_bytes(record: Record) -> int:
    """Bytes of key and value."""
    return len(record.key or b"") + len(record.value or b"")


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, as all of Millrace's keys and values are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
