"""A topic of dead letters that grows, or is made again → its current dead letters."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from cdc.log import following
from cdc.log.following import DeadLetterReader


class Log:
    """A topic of dead letters, by their offsets; ``read`` notes from where it is read."""

    values: ClassVar[dict[int, bytes]] = {}
    end = 0
    starts: ClassVar[list[int]] = []

    def __init__(self, *_: object) -> None:
        """It is the only one."""

    def bounds(self) -> tuple[int, int]:
        return 0, self.end

    def read(self, start: int, stop: int) -> Iterator[Any]:
        self.starts.append(start)
        for number in range(start, stop):
            if value := self.values.get(number):
                yield _message(number, value)


def _message(offset: int, value: bytes) -> Any:
    return SimpleNamespace(
        offset=lambda: offset, value=lambda: value, key=lambda: value, timestamp=lambda: (1, 0)
    )


def test_dead_letters_are_read_once_and_then_what_was_written_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "PartitionReader", Log)
    monkeypatch.setattr(
        following, "parse_state", lambda _kind, value, _topic: SimpleNamespace(id=value)
    )
    reader = DeadLetterReader({"bootstrap.servers": "nowhere"}, "topic")
    assert reader.read() == {}
    Log.values, Log.end = {3: b"first"}, 5
    assert [*reader.read()] == [3]
    Log.values[5], Log.end = b"second", 6
    assert [*reader.read()] == [3, 5]
    assert Log.starts == [0, 3]  # from the last one on
    Log.values, Log.end = {0: b"second"}, 1
    assert [*reader.read()] == [0], "of another topic of that name nothing old is kept"
    Log.values, Log.end = {1: b"third"}, 2
    assert [*reader.read()] == [1], "nor where it has more records by then"
    assert not reader.has_read("second")
