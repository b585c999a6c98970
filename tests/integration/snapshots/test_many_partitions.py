"""A first snapshot of many partitions: each costs what it costs among few, and is read once."""

import re
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import snapshots.bulk
import snapshots.reader
from benchmarks.visible import Reader, Volume
from cdc.faults import VARIABLE, FaultPoint
from cdc.postgres import slot
from cdc.records.state_pieces import PIECE_ENTRIES
from cdc.records.topics import table_topic
from deploy.commands.app import app
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_initial import done, reading, tables

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
MANY = 2 * PIECE_ENTRIES + 22
SMALL = {"max.batch.size": 10, "slot.retry.delay.ms": 200, "slot.max.retries": 60}
ROWS = 5
STATEMENTS_MAX = 4
"""Of a partition, besides its COPY: begin, lock, look what was locked, end."""


def make_parts(database: Conninfo, count: int) -> None:
    """A table with some rows in each partition."""
    run(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE p{number} PARTITION OF p"
            f" FOR VALUES FROM ({ROWS * number}) TO ({ROWS * (number + 1)})"
            for number in range(count)
        ),
        f"INSERT INTO p SELECT i, 'v' || i FROM generate_series(0, {ROWS * count - 1}) i",
        "ANALYZE p",
    )


@pytest.mark.parametrize("count", [5, 50])
def test_a_partition_takes_a_few_statements(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    make_parts(database, count)
    statements = 0

    def counted(query: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal statements
            statements += 1
            return query(*arguments)

        return call

    settings, captured = tables(database)
    for module in (snapshots.reader, snapshots.bulk):
        monkeypatch.setattr(module, "query", counted(module.query))
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        assert done(reading(database, exported, captured)) == {"p"}
    assert statements <= STATEMENTS_MAX * count


@pytest.fixture
def volume(pipeline: MakePipeline, database: Conninfo) -> Callable[[int], Volume]:
    """The states that a first snapshot of so many partitions writes."""

    def measured(count: int) -> Volume:
        make_parts(database, count)
        made = pipeline()
        made.stop(made.catch_up())
        reader = Reader(made.settings.kafka, table_topic(made.settings.capture.topic_prefix))
        try:
            return reader.volume()
        finally:
            reader.close()

    return measured


@pytest.mark.parametrize("count", [5, 50])
def test_states_are_written_by_transactions_and_not_by_partitions(
    volume: Callable[[int], Volume], count: int
) -> None:
    written = volume(count)
    assert written.records < 30  # one of each half a second, on a machine that is busy
    assert written.largest < 1_500 + 130 * count


def planned(made: RunningPipeline) -> str:
    """What `millrace snapshot` would read."""
    words = ["snapshot", "--dry-run", "--config", str(made.config)]
    return CliRunner().invoke(app, words).stdout


def test_one_that_is_killed_again_and_again_goes_on_where_it_was(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    make_parts(database, MANY)
    made = pipeline(**SMALL)
    read = list[int]()
    for point in (
        f"{FaultPoint.CHUNK_WRITTEN}:70",
        f"{FaultPoint.CHUNK_READ}:8",
        f"{FaultPoint.CHUNK_TAKEN}:12",
        f"{FaultPoint.BATCH_COMMITTED}:2",
    ):
        daemon = made.start({VARIABLE: point})
        assert daemon.wait(60) == -signal.SIGKILL, daemon.command.log_end()
        (state,) = made.tables()
        assert state.fingerprint is not None
        assert len(state.fingerprint.leaves) == MANY
        assert state.initial is not None
        read.append(len(state.initial.read))
    assert read == sorted(read)
    assert read[0] > 0
    assert re.search(rf"public\.p .* {MANY} ", planned(made)), planned(made)
    daemon = made.catch_up()
    assert planned(made).startswith("nothing to read: the log has all captured tables (1); name")
    (state,) = made.tables()
    assert (state.rows_sent, state.requests) == (ROWS * MANY, ())
    assert made.stop(daemon) == 0
    keys = Counter(record.key for record in made.log())
    assert len(keys) == ROWS * MANY
    # A death may come between the rows of a partition and the note that it was read.
    assert sum(keys.values()) <= ROWS * (MANY + len(read))
