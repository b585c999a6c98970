"""SIGKILL at every step between receiving and acknowledging, including large open transactions."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from cdc.records.position import Position
from tests.faults.test_killed_daemon import (
    SCHEMA,
    SMALL,
    assert_log_is_the_source,
    assert_log_is_whole,
    change,
    snapshot_lsn,
    source_rows,
)
from tests.fixtures.few import few
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

STEPS = [
    f"{FaultPoint.RECEIVED}:3",
    f"{FaultPoint.TRANSLATED}:9",
    f"{FaultPoint.BATCH_WRITTEN}:7",
    f"{FaultPoint.NEXT_WRITTEN}:7",
    f"{FaultPoint.BATCH_COMMITTED}:7",
    f"{FaultPoint.ACKNOWLEDGED}:7",
    f"{FaultPoint.BLOCK_KEPT}:2",
    f"{FaultPoint.SPILLED}:2",
    f"{FaultPoint.PART_TRANSLATED}:9",
]
LARGE = """
    BEGIN;
    INSERT INTO item SELECT {first} + i, repeat('y', 200), 0 FROM generate_series(1, 500) i;
    SAVEPOINT one; UPDATE item SET n = n + 1 WHERE id > {first}; ROLLBACK TO one;
    UPDATE item SET n = n + 1 WHERE id > {first};
    SAVEPOINT two; DELETE FROM item WHERE id > {first} AND id % 7 = 0; RELEASE two;
"""


@contextmanager
def open_transaction(database: dict[str, str], first: int) -> Iterator[psycopg.Connection]:
    """A transaction too large for the server's memory, which is committed in the end."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(LARGE.format(first=first).encode())
        yield connection
        connection.execute("COMMIT")


@pytest.mark.parametrize("steps", few([STEPS[::4], STEPS], STEPS[::4]), ids=["some", "all"])
def test_a_daemon_killed_at_any_step_loses_nothing_and_repeats_nothing(
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    topic_prefix: str,
    steps: list[str],
) -> None:
    # The least memory that a server takes: anything above it is sent while it runs.
    source = {**database, "options": "-c logical_decoding_work_mem=64kB"}
    made = pipeline(source=source, **SMALL, **{"spill.memory.bytes": 0})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start()
        daemon.wait_until(lambda: (p := made.progress()) is not None and p.phase == "streaming")
        made.stop(daemon)
        for number, step in enumerate(steps):
            daemon = made.start({VARIABLE: step})
            with open_transaction(database, first=1_000_000 * (number + 1)):
                change(connection, seed=number, transactions=8)
            assert daemon.wait(60) == -signal.SIGKILL, step
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert_log_is_the_source(made, database, topic_prefix)


def test_at_least_once_a_daemon_killed_repeats_events_and_loses_none(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline(**SMALL, sections={"log": {"delivery": "at_least_once"}})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        assert made.stop(made.catch_up()) == 0
        daemon = made.start_broken("tests.faults.unrecorded")
        change(connection, seed=1, transactions=20)
        assert daemon.wait(60) == -signal.SIGKILL
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    records = made.log()
    known: dict[tuple[Position, str | None, str, int], LogRecord] = {}
    for record in records:
        known.setdefault((record.position, record.key, record.op, record.partition), record)
    assert len(known) < len(records)
    assert_log_is_whole(list(known.values()), snapshot_lsn(made))
    with psycopg.connect(make_conninfo(**database)) as connection:
        items = [record for record in records if record.topic == f"{topic_prefix}.public.item"]
        assert state_of(items) == source_rows(connection, "item", "'id', id")
