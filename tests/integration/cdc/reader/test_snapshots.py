"""Readers during a first snapshot, and across a new epoch."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cdc.faults import VARIABLE, FaultPoint
from cdc.reader.events import ChangeEvent
from cdc.reader.transactions import SourceTransaction
from millrace import changes
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ROWS = 400
SMALL = {"snapshot.chunk.bytes": 65_536, "max.batch.size": 50}


class Copy:
    """What changes add up to."""

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._rows: dict[tuple[int, int], int] = {}

    def take(self, events: Iterable[ChangeEvent]) -> None:
        """Apply changes in their order; a partition has its own TRUNCATE, a transaction one."""
        for event in events:
            if event.operation == "t":
                left = () if self._whole else self._rows.items()
                self._rows = {at: n for at, n in left if at[0] != event.partition}
            elif event.operation == "d":
                self._rows.pop((event.partition, event.row["id"]), None)
            else:
                self._rows[event.partition, event.row["id"]] = event.row["n"]

    @property
    def rows(self) -> dict[int, int]:
        return {key: n for (_, key), n in self._rows.items()}


def follow(made: RunningPipeline, copy: Copy, is_there: Callable[[], bool]) -> None:
    """Read changes until a copy is as it is to be."""
    stop = threading.Event()
    timer = threading.Timer(60, stop.set)
    timer.start()
    with changes(made.settings, group="copy", stop=stop) as stream:
        for event in stream:
            copy.take([event])
            if is_there():
                stop.set()
    timer.cancel()
    assert is_there()


def transactions(
    made: RunningPipeline, copy: Copy, is_there: Callable[[], bool], seconds: float = 60
) -> list[SourceTransaction]:
    """The same by whole transactions, of those that come in time."""
    stop, read = threading.Event(), list[SourceTransaction]()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    with changes(made.settings, group="whole", transactions=True, stop=stop) as stream:
        for transaction in stream:
            read.append(transaction)
            copy.take(transaction)
            if is_there():
                stop.set()
    timer.cancel()
    return read


def test_a_snapshot_is_read_as_it_comes_or_whole_and_so_is_a_new_epoch(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int, pad text)")
    run(database, f"INSERT INTO t SELECT i, 0, repeat('x', 900) FROM generate_series(1, {ROWS}) i")
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}}, **SMALL)
    daemon = made.start({VARIABLE: f"{FaultPoint.SNAPSHOT_COMMITTED}:2"})
    assert daemon.wait(60) != 0
    copy, expected = Copy(), dict.fromkeys(range(1, ROWS + 1), 0)
    follow(made, copy, lambda: len(copy.rows) >= 10)
    assert copy.rows.items() < expected.items()
    book = Copy(whole=True)
    assert transactions(made, book, lambda: True, 2) == [], "a snapshot comes whole"

    daemon = made.catch_up()
    run(database, "UPDATE t SET n = 1 WHERE id = 1")
    made.wait_until_logged(made.wal_end(), daemon)
    expected[1] = 1
    follow(made, copy, lambda: copy.rows == expected)
    whole = transactions(made, book, lambda: book.rows == expected)
    assert book.rows == expected
    assert [whole[0].is_snapshot, whole[-1].is_snapshot] == [True, False]

    assert made.stop(daemon) == 0
    slot = made.settings.capture.slot_name
    run(database, f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM t WHERE id > 3")
    begun: Any = made.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr
    made.catch_up()
    expected = {1: 1, 2: 0, 3: 0}
    follow(made, copy, lambda: copy.rows == expected)
    *_, snapshot = transactions(made, book, lambda: book.rows == expected)
    assert (snapshot.epoch, snapshot.is_snapshot) == (2, True)
    assert book.rows == expected
