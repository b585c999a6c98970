"""Readers while a first snapshot is under way, and across a new epoch."""

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

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], int] = {}

    def take(self, events: Iterable[ChangeEvent]) -> None:
        """Apply changes in their order; a partition has its own TRUNCATE."""
        for event in events:
            if event.operation == "t":
                gone = [place for place in self._rows if place[0] == event.partition]
                self._rows = {at: n for at, n in self._rows.items() if at not in gone}
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
    made: RunningPipeline, count: int, seconds: float = 60
) -> list[tuple[SourceTransaction, list[ChangeEvent]]]:
    """So many transactions at most, of those that come in time."""
    stop, read = threading.Event(), list[tuple[SourceTransaction, list[ChangeEvent]]]()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    with changes(made.settings, group="whole", transactions=True, stop=stop) as stream:
        for transaction in stream:
            read.append((transaction, list(transaction)))
            if len(read) == count:
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
    assert transactions(made, 1, 2) == []

    daemon = made.catch_up()
    run(database, "UPDATE t SET n = 1 WHERE id = 1")
    made.wait_until_logged(made.wal_end(), daemon)
    expected[1] = 1
    follow(made, copy, lambda: copy.rows == expected)
    whole, book = transactions(made, 2), Copy()
    assert [transaction.is_snapshot for transaction, _ in whole] == [True, False]
    for _, events in whole:
        book.take(events)
    assert book.rows == expected

    assert made.stop(daemon) == 0
    slot = made.settings.capture.slot_name
    run(database, f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM t WHERE id > 3")
    begun: Any = made.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr
    made.catch_up()
    expected = {1: 1, 2: 0, 3: 0}
    follow(made, copy, lambda: copy.rows == expected)
    ((snapshot, events),) = transactions(made, 1)
    assert (snapshot.epoch, snapshot.is_snapshot) == (2, True)
    book.take(events)
    assert book.rows == expected
