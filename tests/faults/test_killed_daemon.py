"""SIGKILL at every fault point: the next start continues, and the log lacks and repeats nothing."""

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from cdc.records.position import INDEX_MAX, Lsn, Position
from tests.fixtures.few import few
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
SMALL = {
    "snapshot.chunk.bytes": 8192,
    "max.batch.size": 50,
    "slot.retry.delay.ms": 500,
    "slot.max.retries": 60,
}
"""Many chunks and many Kafka transactions, also inside of one source transaction."""
SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, v text, n int);
    CREATE TABLE pair (a int, b text, v int, PRIMARY KEY (a, b));
    CREATE TABLE loose (v int); ALTER TABLE loose REPLICA IDENTITY FULL;
    INSERT INTO item SELECT i, repeat('x', 100), 0 FROM generate_series(1, 600) i;
    INSERT INTO pair SELECT i, 'b' || i, 0 FROM generate_series(1, 300) i;
    INSERT INTO loose SELECT i FROM generate_series(1, 50) i;
"""


def change(connection: psycopg.Connection, seed: int, transactions: int) -> None:
    """Random transactions: inserts, updates, deletes, key changes, a large one, a rollback."""
    choose = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    fresh = 10_000 * (seed + 1)
    for number in range(transactions):
        with connection.transaction(force_rollback=number % 10 == 9):
            for _ in range(choose.choice([1, 3, 120])):
                one = choose.randint(1, 600)
                fresh += 1
                statement = choose.choice(
                    [
                        f"UPDATE item SET n = n + 1 WHERE id = {one}",
                        f"DELETE FROM item WHERE id = {one}",
                        f"INSERT INTO item VALUES ({fresh}, 'new', 1)",
                        f"UPDATE item SET id = {fresh} WHERE id = {one}",
                        f"UPDATE pair SET v = v + 1 WHERE a = {one % 300}",
                        f"UPDATE pair SET b = 'c{fresh}' WHERE a = {one % 300}",
                        f"INSERT INTO loose VALUES ({fresh})",
                    ]
                )
                connection.execute(statement)


def source_rows(connection: psycopg.Connection, table: str, key: str) -> dict[str, object]:
    """Key as the log's JSON text → row."""
    query = f"SELECT json_build_object({key})::text, row_to_json(t) FROM {table} t"
    return {
        json.dumps(json.loads(text), separators=(",", ":")): row
        for text, row in connection.execute(query).fetchall()
    }


def snapshot_lsn(pipeline: RunningPipeline) -> Lsn:
    """Where the last snapshot stands: it stands for what a table's stream had before it."""
    return max(state.snapshot_lsn for state in pipeline.tables())


def assert_log_is_whole(records: list[LogRecord], since: int = 0) -> None:
    """No frame of a streamed transaction is there twice, and since that LSN none is missing."""
    streamed = [record for record in records if record.position.index > 0]
    seen = Counter((r.position, r.key, r.op, r.topic, r.partition) for r in streamed)
    assert [record for record, count in seen.items() if count > 1] == []
    indexes: dict[tuple[int, int], set[int]] = {}
    for record in streamed:
        epoch, place, index = record.position
        if place >= since:
            indexes.setdefault((epoch, place), set()).add(index)
    for (_, lsn), found in indexes.items():
        assert found == set(range(1, max(found) + 1)), f"transaction {lsn:x} has gaps"


def assert_in_commit_order(records: list[LogRecord]) -> None:
    """Within a partition, streamed records come by position."""
    last: dict[tuple[str, int], Position] = {}
    for record in records:
        if 0 < record.position.index < INDEX_MAX:
            place = (record.topic, record.partition)
            assert record.position >= last.get(place, record.position)
            last[place] = record.position


def assert_log_is_the_source(
    pipeline: RunningPipeline, database: Mapping[str, str], prefix: str
) -> None:
    """What the log adds up to is what SELECT says."""
    records = pipeline.log()
    assert_log_is_whole(records, snapshot_lsn(pipeline))
    assert_in_commit_order(records)

    def topic(table: str) -> list[LogRecord]:
        return [record for record in records if record.topic == f"{prefix}.public.{table}"]

    with psycopg.connect(make_conninfo(**database)) as connection:
        assert state_of(topic("item")) == source_rows(connection, "item", "'id', id")
        assert state_of(topic("pair")) == source_rows(connection, "pair", "'a', a, 'b', b")
        loose = sorted(row[0] for row in connection.execute("SELECT v FROM loose"))
        assert sorted(rows_of_bag(topic("loose"))) == loose


def rows_of_bag(records: list[LogRecord]) -> list[int]:
    """What a topic without keys adds up to, of rows that are never changed."""
    truncated = max((r.position for r in records if r.op == "t"), default=Position(0, Lsn(0), 0))
    newer = [record for record in records if record.position > truncated]
    return [record.value["after"]["v"] for record in newer if record.value is not None]


# Which time a point is passed matters where it is passed often: early, and in the middle.
POINTS = [
    FaultPoint.CREATING_RECORDED,
    FaultPoint.SLOT_CREATED,
    FaultPoint.SNAPSHOT_RECORDED,
    f"{FaultPoint.CHUNK_WRITTEN}:5",
    f"{FaultPoint.SNAPSHOT_COMMITTED}:4",
    FaultPoint.SNAPSHOT_DONE,
]


@pytest.mark.parametrize("point", few(POINTS, FaultPoint.SNAPSHOT_DONE))
def test_a_daemon_killed_anywhere_loses_nothing_and_repeats_nothing(
    point: str, pipeline: MakePipeline, database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline(**SMALL)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start({VARIABLE: point})
        assert daemon.wait(60) == -signal.SIGKILL
        change(connection, seed=2, transactions=20)
        daemon = made.start()
        change(connection, seed=3, transactions=20)
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert_log_is_the_source(made, database, topic_prefix)
