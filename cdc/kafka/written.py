"""Records → the client, and as much of them as is needed to name one that is refused later.

The client's reports come without headers, so what says where in the source a record comes from is
noted here until its transaction ends. cdc/compiled/rows.pxi has the same, compiled.
"""

from collections.abc import Callable
from typing import NamedTuple

from cdc.compiled.extension import fast
from cdc.records.position import HEADER
from cdc.records.record import Record, RecordOrBatch, each, record_bytes


class Note(NamedTuple):
    """What a report says of a record: ``size`` is key and value bytes."""

    topic: str
    key: bytes | None
    size: int


class PureWrittenRecords:
    """The open transaction's records; ``size`` is the bytes of their keys and values.

    ``culprit`` is a record that the client didn't take, for another reason than a full queue.
    """

    def __init__(self) -> None:
        self.size = 0
        self.culprit: Record | None = None
        self._notes: list[tuple[Note, bytes]] = []

    def __len__(self) -> int:
        return len(self._notes)

    def clear(self) -> None:
        """Forget them."""
        self.size = 0
        self._notes.clear()

    def add(self, record: Record) -> None:
        """Note a record that the client has taken."""
        size = record_bytes(record)
        self.size += size
        position = dict(record.headers).get(HEADER, b"")
        self._notes.append((Note(record.topic, record.key, size), position))

    def position(self, topic: str, key: bytes | None, size: int) -> bytes:
        """The position header of such a record; empty where there is none."""
        sought = Note(topic, key, size)
        return next((position for note, position in self._notes if note == sought), b"")

    def span(self) -> tuple[bytes, bytes]:
        """The position headers of the first and the last record that has one."""
        headers = [position for _, position in self._notes if position] or [b""]
        return headers[0], headers[-1]


def pure_produce(
    send: Callable[..., None],
    records: list[RecordOrBatch],
    start: int,
    end: int,
    written: "fast.WrittenRecords | PureWrittenRecords",
) -> int:
    """Hand a range of the records to the client; returns where its queue was full, or the end."""
    for number, record in enumerate(each(records[start:end]), start):
        topic, key, value, headers, partition, timestamp_ms = record
        partition_number = -1 if partition is None else partition
        try:
            send(topic, value, key, partition_number, None, None, timestamp_ms, headers)
        except BufferError:
            return number
        except BaseException:
            written.culprit = record
            raise
        written.add(record)
    return end


WrittenRecords = PureWrittenRecords if fast is None else fast.WrittenRecords
produce: Callable[..., int] = pure_produce if fast is None else fast.produce
