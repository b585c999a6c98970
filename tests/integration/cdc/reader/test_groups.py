"""Groups whose members are killed, join and leave, while changes keep coming."""

import signal
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.pipeline import RunningPipeline
from tests.integration.cdc.reader.members import Members

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ROWS = 40
REBALANCES = 4


@pytest.fixture
def source(database: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        yield connection


def test_members_that_join_leave_and_are_killed_lose_no_change(
    pipeline: Callable[..., RunningPipeline], source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, %s) i", [ROWS])
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}})
    daemon = made.catch_up()
    written, stop = [0], threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            written[0] += 1
            source.execute("UPDATE t SET n = %s", [written[0]])

    writer = threading.Thread(target=write)
    writer.start()
    members = Members(made, tmp_path)
    try:
        killed = members.start()
        members.wait(lambda: len(members.processed(0)) > ROWS)
        members.start()
        members.wait(lambda: len(members.processed(1)) > ROWS)  # both have partitions
        killed.send_signal(signal.SIGKILL)
        left = members.start()
        members.wait(lambda: len(members.processed(2)) > ROWS)
        left.send_signal(signal.SIGTERM)
        assert left.wait(30) == 0
        stop.set()
        writer.join()
        made.wait_until_logged(made.wal_end(), daemon)
        expected = {(row, n) for row in range(1, ROWS + 1) for n in range(written[0] + 1)}
        members.wait(lambda: members.all() == expected)
        members.processes[1].send_signal(signal.SIGTERM)
        assert members.processes[1].wait(30) == 0
    finally:
        stop.set()
        members.end()
    for number in range(3):  # a row's changes come in order, but for what comes again
        versions: dict[int, list[int]] = {}
        for row, n in members.processed(number):
            versions.setdefault(row, []).append(n)
        for numbers in versions.values():
            assert sum(later < n for n, later in pairwise(numbers)) <= REBALANCES
