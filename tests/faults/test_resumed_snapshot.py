"""A first snapshot, killed repeatedly, while rows move to pages that were read before.

An update that leaves a large value unchanged doesn't send it. The snapshot reads neither the row's
old place again nor its new one. Only completion brings the value into the log.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from tests.fixtures.few import few
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
Connection = psycopg.Connection[tuple[Any, ...]]
Ranges = list[tuple[int, int]]

ROWS = 1_200
SMALL = {
    "snapshot.chunk.bytes": 65_536,
    "incremental.snapshot.chunk.size": 50,
    "max.batch.size": 50,
    "slot.retry.delay.ms": 500,
    "slot.max.retries": 60,
}
# Four rows to a page, so 300 pages; the large value is never in them.
SCHEMA = f"""
    CREATE TABLE item (id int PRIMARY KEY, n int, pad text, big text);
    ALTER TABLE item ALTER pad SET STORAGE PLAIN, ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE item SET (autovacuum_enabled = off);
    INSERT INTO item
    SELECT i, 0, repeat('p', 1700), repeat(md5(i::text), 290) FROM generate_series(1, {ROWS}) i;
"""
_TID = "((ctid::text::point)[0]::int8 << 16 | (ctid::text::point)[1]::int8)"


def places(connection: Connection) -> dict[int, int]:
    """Key → TID, as a number."""
    return dict(connection.execute(f"SELECT id, {_TID} FROM item").fetchall())


def read_ranges(made: RunningPipeline) -> Ranges:
    """What the log says was read."""
    (state,) = (state for state in made.tables() if state.table == "item")
    assert state.initial is not None, "the snapshot was over before anything could happen to it"
    return [found for leaf in state.initial.read for found in leaf.ranges]


def is_in(number: int, ranges: Ranges) -> bool:
    return any(first <= number < end for first, end in ranges)


def move_rows(connection: Connection, ranges: Ranges, wanted: int, choose: random.Random) -> None:
    """Make holes in pages that were read, and let rows of others move there."""
    before = places(connection)
    there = [key for key, number in before.items() if is_in(number, ranges)]
    elsewhere = [key for key, number in before.items() if not is_in(number, ranges)]
    holes = choose.sample(there, min(wanted, len(there)))
    connection.execute("DELETE FROM item WHERE id = ANY (%s)", [holes])
    moved = 0
    deadline = time.monotonic() + 60
    while moved < min(wanted, len(holes)) // 2:
        assert time.monotonic() < deadline, f"{moved} rows moved"  # whose snapshot is that?
        connection.execute("VACUUM item")
        for key in choose.sample(elsewhere, min(wanted, len(elsewhere))):
            connection.execute("UPDATE item SET n = n + 1 WHERE id = %s", [key])
        after = places(connection)
        moved = sum(is_in(after[key], ranges) for key in elsewhere)


def change(connection: Connection, choose: random.Random, transactions: int, fresh: int) -> None:
    """Updates, key changes, deletes, inserts and rollbacks, by keys."""
    for number in range(transactions):
        with connection.transaction(force_rollback=number % 7 == 6):
            for _ in range(choose.choice([1, 4])):
                one = choose.randint(1, ROWS)
                fresh += 1
                large = f"repeat(md5('{fresh}'), 290)"
                statement = choose.choice(
                    [
                        f"UPDATE item SET n = n + 1 WHERE id = {one}",
                        f"UPDATE item SET big = {large} WHERE id = {one}",
                        f"UPDATE item SET id = {fresh} WHERE id = {one}",
                        f"DELETE FROM item WHERE id = {one}",
                        f"INSERT INTO item VALUES ({fresh}, 1, '', {large})",
                    ]
                )
                connection.execute(statement.encode())


def rows_of(connection: Connection) -> dict[str, Any]:
    """Key as the log's JSON text → row."""
    found = connection.execute("SELECT id, row_to_json(item) FROM item").fetchall()
    return {json.dumps({"id": key}, separators=(",", ":")): row for key, row in found}


def last_of(records: list[LogRecord]) -> dict[str, Any]:
    """What compaction leaves: each key's last record."""
    last = {
        record.key: record.value for record in sorted(records, key=lambda record: record.offset)
    }
    return {str(key): value["after"] for key, value in last.items() if value and value["after"]}


def killed(made: RunningPipeline, point: str) -> None:
    """Run the daemon until it dies there."""
    daemon = made.start({VARIABLE: point})
    assert daemon.wait(60) == -signal.SIGKILL, daemon.command.log_end()


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Keys whose rows differ; the values are too long to look at."""
    return sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))


# The first one of each in the bulk read, the others while streaming.
POINTS = {
    "reselect": (
        f"{FaultPoint.CHUNK_WRITTEN}:5",
        f"{FaultPoint.CHUNK_READ}:3",
        f"{FaultPoint.CHUNK_TAKEN}:4",
    ),
    "absent": (f"{FaultPoint.SNAPSHOT_COMMITTED}:8", f"{FaultPoint.CHUNK_MARKED}:3"),
}


@pytest.mark.parametrize("toast", few(POINTS, "reselect"))
def test_a_snapshot_that_is_killed_again_and_again_gives_the_source(
    toast: str, pipeline: MakePipeline, database: dict[str, str]
) -> None:
    made = pipeline(**SMALL, **{"toast.unavailable": toast})
    choose = random.Random(11)  # noqa: S311 (repeatable is what it has to be)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        for number, point in enumerate(POINTS[toast], 1):
            killed(made, point)
            move_rows(connection, read_ranges(made), 25, choose)
            change(connection, choose, 15, fresh=10_000 * number)
        daemon = made.start()
        change(connection, choose, 60, fresh=90_000)
        move_rows(connection, [(0, 40 << 16)], 25, choose)
        made.wait_until_logged(made.wal_end(), daemon)
        expected = rows_of(connection)
    assert made.stop(daemon) == 0
    records = made.log()
    assert differences(state_of(records), expected) == []
    if toast == "reselect":  # else what changes behind the snapshot lacks values, as always
        assert differences(last_of(records), expected) == []


@pytest.mark.proof
def test_without_completion_values_are_missing(
    pipeline: MakePipeline, database: dict[str, str]
) -> None:
    made = pipeline(**SMALL)
    choose = random.Random(12)  # noqa: S311 (repeatable is what it has to be)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        killed(made, f"{FaultPoint.SNAPSHOT_COMMITTED}:8")
        move_rows(connection, read_ranges(made), 25, choose)
        daemon = made.start_broken("tests.faults.incomplete")
        made.wait_until_logged(made.wal_end(), daemon)
        expected = rows_of(connection)
    assert made.stop(daemon) == 0
    found = state_of(made.log())
    different = differences(found, expected)
    assert different
    assert all("big" not in found[key] for key in different)
