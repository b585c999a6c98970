"""A consumer's last records at a stream's end → the kept offsets, of processed records."""

import threading
from collections.abc import Iterator
from datetime import date
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from cdc.errors import ConfigError, LogAccessError, LogUnreachableError
from cdc.reader import stream
from cdc.reader.access import ReaderStoppedError
from cdc.reader.consuming import Complaints, group_name
from cdc.reader.sorting import SortedRecords
from cdc.reader.start import parse_start
from cdc.reader.stream import ChangeStream
from cdc.reader.transactions import TransactionStream, _once
from cdc.records.position import Lsn, Position

Partition = tuple[str, int]


class Message:
    """A record, or the end of a partition."""

    def __init__(self, number: int, offset: int, *, is_end: bool = False) -> None:
        self._place = "t", number, offset
        self.is_end = is_end

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def error(self) -> Any:
        return SimpleNamespace(name=lambda: "_PARTITION_EOF") if self.is_end else None


def _ended(
    monkeypatch: pytest.MonkeyPatch,
    done: dict[Partition, int],
    queue: list[Message],
    at: Partition | None = None,
) -> dict[Partition, int]:
    """The offsets of a stream that had processed some, with these messages in its queue."""
    monkeypatch.setattr(stream, "is_end", lambda message: message is not None and message.is_end)
    messages: Iterator[Message] = iter(queue)
    reader: Any = ChangeStream.__new__(ChangeStream)
    reader._done, reader._left, reader._given, reader._at = dict(done), {}, None, at
    reader._first = {}
    reader._consumer = SimpleNamespace(poll=lambda _: next(messages))
    reader._pass_marks()
    kept: dict[Partition, int] = reader._done
    return kept


def test_an_end_behind_records_that_nobody_processed_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unread = [Message(1, 10), Message(1, 11), Message(1, 12, is_end=True)]
    queue = [*unread, Message(2, 7, is_end=True), Message(0, 5, is_end=True)]
    assert _ended(monkeypatch, {("t", 0): 4}, queue) == {("t", 0): 5, ("t", 2): 7}


def test_behind_a_record_that_failed_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = [Message(1, 12, is_end=True), Message(0, 5, is_end=True)]
    done = {("t", 0): 4, ("t", 1): 10}
    assert _ended(monkeypatch, done, queue, ("t", 1)) == {("t", 0): 5, ("t", 1): 10}


def test_a_complaint_passes_no_record() -> None:
    reader: Any = ChangeStream.__new__(ChangeStream)
    reader._complaints = Complaints()
    record = Message(0, 10)

    def poll(_seconds: float) -> Message:
        reader._complaints.add(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
        return record

    reader._consumer = SimpleNamespace(poll=poll)
    assert reader._poll() is record
    with pytest.raises(LogAccessError):
        reader._poll()


def test_brokers_that_are_away_are_waited_for_once_a_reader_has_begun() -> None:
    reader: Any = TransactionStream.__new__(TransactionStream)
    waited = list[str]()
    reader._member, reader._topics, reader._records, reader._groups = None, {}, None, iter(())
    reader._access = SimpleNamespace(
        connect=lambda: waited.append("connect"),
        log_reader=lambda: None,
        stopping=SimpleNamespace(event=None),
    )
    reader._news = SimpleNamespace(wait=lambda *_: waited.append("wait"))

    def begin() -> None:
        raise LogUnreachableError("no broker answers")

    reader._begin = begin
    reader._has_begun = False
    with pytest.raises(LogUnreachableError):
        reader._next()
    reader._has_begun = True  # it begins again once it has another turn
    assert reader._next() is None
    assert waited == ["connect", "wait"]


def test_a_member_that_gets_partitions_while_brokers_are_away_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader: Any = ChangeStream.__new__(ChangeStream)
    connected = list[int]()
    stop = threading.Event()

    def end_when_stopped() -> None:
        if stop.is_set():
            raise ReaderStoppedError

    reader._access = SimpleNamespace(
        end_when_stopped=end_when_stopped, connect=lambda: connected.append(1)
    )

    def go_on(_consumer: object, _partitions: object) -> None:
        if len(connected) < 2:
            raise LogUnreachableError("no broker answers")

    reader._go_on = go_on
    reader._assigned(None, [])
    assert len(connected) == 2
    assert caplog.messages == ["waiting for the log: no broker answers"] * 2
    stop.set()
    connected.clear()
    with pytest.raises(ReaderStoppedError):
        reader._assigned(None, [])


def test_groups_of_different_logs_are_different_groups() -> None:
    def of(prefix: str, group: str) -> str:
        capture = SimpleNamespace(topic_prefix=prefix)
        settings: Any = SimpleNamespace(capture=capture)
        return group_name(settings, group)

    assert of("a", "b.c") == "millrace.a:b.c"
    assert of("a.b", "c") == "millrace.a.b:c"


def test_what_ends_rows_comes_once_for_each_table_and_bounds() -> None:
    def change(operation: str, ended: Any = None, table: str = "public.t") -> Any:
        return SimpleNamespace(table=table, operation=operation, ended=ended)

    frame = [change("t"), change("t"), change("p", "a"), change("p", "b"), change("p", "a")]
    rows = [change("r"), change("r")]
    once = [(each.operation, each.ended) for each in _once(iter([*frame, *rows]))]
    assert once == [("t", None), ("p", "a"), ("p", "b"), ("r", None), ("r", None)]


def test_nothing_is_before_the_first_position() -> None:
    first = Position(1, Lsn(0), 0)
    assert Position.parse(str(first.just_before())) == first


def test_sorted_records_may_be_read_in_another_thread() -> None:
    records, offsets = SortedRecords(0, None), list[Any]()
    for offset, position in enumerate(("b", "a")):
        message: Any = confluent_kafka.Message(
            topic="t", partition=0, offset=offset, timestamp=(1, 5_000), headers=[("h", b"1")]
        )
        records.add(position, message)

    def read() -> None:
        offsets.extend(message.offset() for message in records)
        records.close()

    reading = threading.Thread(target=read)
    reading.start()
    reading.join()
    assert offsets == [1, 0]


@pytest.mark.parametrize("start", [None, 5, date(2026, 11, 27)])
def test_what_is_no_place_to_start_at_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match="isn't a start"):
        parse_start(start)
