"""Signals of a process with active readers, one after another and side by side."""

import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.errors import LogUnreachableError
from cdc.reader.access import ReaderStoppedError
from cdc.reader.lasting import LastingReader
from cdc.reader.stopping import Stopping
from cdc.records.position import Lsn, Position
from tests.unit.deploy.reading.test_lines import event


class Access:
    """What a reader asks whether it is to end."""

    def __init__(self) -> None:
        self.stopping = Stopping(None)


class Reader(LastingReader[int]):
    """Gives numbers; no broker takes its position."""

    _is_alone = True

    def __init__(self) -> None:
        access: Any = Access()
        super().__init__(access)
        self._given = 0
        self.waits_s = list[float]()

    def _open(self) -> None:
        """Nothing is to open."""

    def _settle(self) -> None:
        if self._given:
            self._process(Position(1, Lsn(self._given), 0), event("c").commit_time)

    def _next(self) -> int | None:
        self._given += 1
        return self._given

    def _hurry(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    def _write(self) -> None:
        raise LogUnreachableError("no broker answers")

    def _leave(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, Any]]:
    numbers = signal.SIGINT, signal.SIGTERM
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    yield before
    for number in numbers:
        signal.signal(number, before[number])


def handled() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def test_a_loop_left_by_break_gives_the_signals_back(handlers: dict[int, Any]) -> None:
    gc.disable()
    try:
        for number in Reader():
            assert handled() != handlers
            if number == 2:
                break
        assert handled() == handlers
    finally:
        gc.enable()


def test_readers_that_end_in_another_order_lose_no_signal(handlers: dict[int, Any]) -> None:
    caught = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _frame: caught.append(number))
    first, second = Reader(), Reader()
    assert [next(first), next(second)] == [1, 1]
    first.close()
    signal.raise_signal(signal.SIGTERM)
    assert list(second) == []  # the signal is its own
    signal.raise_signal(signal.SIGTERM)
    assert caught == [signal.SIGTERM]


def test_what_is_not_kept_at_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with Reader() as reader:
        for number in reader:
            if number == 3:
                signal.raise_signal(signal.SIGTERM)
    assert reader.waits_s == [1.0]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "the group's position can't be stored (no broker answers): changes since LSN 0/1,"
        " 2026-11-27 10:00:00.500000Z come again"
    )


def test_a_body_that_is_told_to_end_while_it_waits_ends_in_order(handlers: dict[int, Any]) -> None:
    with Reader() as reader:
        next(reader)
        raise ReaderStoppedError
    assert handled() == handlers
    with pytest.raises(ZeroDivisionError), Reader() as reader:
        raise ZeroDivisionError


def test_a_reader_that_another_thread_closes_passes_signals_on(handlers: dict[int, Any]) -> None:
    caught = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _frame: caught.append(number))
    reader = Reader()
    next(reader)
    closing = threading.Thread(target=reader.close)
    closing.start()
    closing.join()
    signal.raise_signal(signal.SIGTERM)
    assert caught == [signal.SIGTERM]


def test_a_signal_ends_a_reader_and_those_around_it() -> None:
    around, between, inner = Reader(), Reader(), Reader()
    assert [next(each) for each in (around, between, inner)] == [1, 1, 1]
    between.close()
    signal.raise_signal(signal.SIGTERM)
    assert [list(inner), list(around)] == [[], []]


def test_another_thread_may_read(handlers: dict[int, Any]) -> None:
    reader, numbers = Reader(), list[int]()
    reading = threading.Thread(target=lambda: numbers.append(next(reader)))
    reading.start()
    reading.join()
    assert numbers == [1]
    assert handled() == handlers
    reader.close()
