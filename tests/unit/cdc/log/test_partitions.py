"""The answers of a broker behind its leader → no end of the requested range."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import LogUnreachableError
from cdc.log import partitions, tails
from cdc.log.partitions import PartitionReader
from cdc.log.tails import Tails


class Message:
    """A record, or the end of a partition at a broker."""

    def __init__(self, offset: int, *, is_end: bool = False) -> None:
        self._offset = offset
        self._is_end = is_end

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"{}"

    def timestamp(self) -> tuple[int, int]:
        return 1, self._offset

    def error(self) -> Any:
        return SimpleNamespace(name=lambda: "_PARTITION_EOF") if self._is_end else None


class Follower:
    """A consumer of a broker that comes by records late; in the end nothing comes any more."""

    def __init__(self, messages: list[Message | None]) -> None:
        self._messages: Iterator[Message | None] = iter(messages)

    def poll(self, _seconds: float) -> Message | None:
        return next(self._messages, None)

    def assign(self, _partitions: Any) -> None:
        """Nothing is fetched."""

    def unassign(self) -> None:
        """Nothing was fetched."""


def behind() -> list[Message | None]:
    """Three records, of which the broker has one at first; a marker is behind them."""
    return [
        Message(0),
        Message(1, is_end=True),
        None,
        Message(1),
        Message(2),
        Message(4, is_end=True),
    ]


def reader(messages: list[Message | None]) -> PartitionReader:
    client: Any = SimpleNamespace(
        consumer=Follower(messages),
        complaints=[],
        has_connected=True,
        while_waiting=lambda: None,
    )
    return PartitionReader(client, "t")


def test_an_end_before_the_wanted_one_is_waited_out() -> None:
    assert [message.offset() for message in reader(behind()).read(0, 4)] == [0, 1, 2]
    assert [message.offset() for message in reader(behind()).read(0, 2)] == [0, 1]
    assert list(reader([Message(7, is_end=True)]).read(0, 4)) == []  # compaction took them all


def test_an_end_that_never_comes_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_S", 0.05)
    read = reader([Message(0), Message(1, is_end=True)]).read(0, 4)
    assert next(read).offset() == 0
    with pytest.raises(LogUnreachableError, match="a broker has it up to offset 1 of 4") as raised:
        next(read)
    assert "client.rack" in raised.value.remedy


def test_a_reader_gives_up_in_time_while_records_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "ATTEMPT_S", 0)
    read: Any = reader([Message(offset) for offset in range(9)])

    def give_up() -> None:
        raise LogUnreachableError("the time is over")

    read._client.while_waiting = give_up
    with pytest.raises(LogUnreachableError, match="the time is over"):
        list(read.read(0, 8))


def test_the_last_record_of_a_partition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_ATTEMPT_S", 0)
    reading: Any = Tails.__new__(Tails)
    reading._consumer, reading._while_waiting = Follower(behind()), lambda: None
    assert reading._read({("t", 0): 0}, {("t", 0): 4})["t", 0].offset == 2
