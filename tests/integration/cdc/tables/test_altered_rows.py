"""DDL that gives rows values that aren't in the stream: they are read again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_while_streaming import PAGES, of, state, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
rare = partial(pytest.param, marks=pytest.mark.proof)
ROWS = 500
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, v varchar(9), n int, d numeric(10, 2))",
    f"INSERT INTO item SELECT i, i::text, i, i FROM generate_series(1, {ROWS}) i",
)
PARTITIONED = (
    f"{ITEM[0]} PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF item FOR VALUES FROM (0) TO (200)",
    "CREATE TABLE high PARTITION OF item DEFAULT",
    ITEM[1],
)
CHANGE = "UPDATE item SET v = '9' WHERE id = 3"
CONSTANT = "ALTER TABLE item ADD COLUMN added text DEFAULT 'so'"
VOLATILE = "ALTER TABLE item ADD COLUMN added uuid DEFAULT gen_random_uuid()"
DROPPED = "ALTER TABLE item ALTER COLUMN added DROP DEFAULT"
LATER = "ALTER TABLE item ALTER COLUMN added SET DEFAULT 'later'"
OVERRIDES = "snapshot.select.statement.overrides"
SELECT = {
    OVERRIDES: "public.item",
    f"{OVERRIDES}.public.item": "SELECT * FROM public.item WHERE id <= 250",
}


def source_rows(source: Conninfo) -> list[dict[str, Any]]:
    with psycopg.connect(make_conninfo(**source)) as connection:
        # A numeric is text in the log.
        row = "to_jsonb(item) || jsonb_build_object('d', d::text)"
        found = connection.execute(f"SELECT {row} FROM item ORDER BY id").fetchall()
    return [row for (row,) in found]


def log_rows(made: RunningPipeline) -> list[dict[str, Any]]:
    return sorted(state_of(of(made, "item")).values(), key=lambda row: int(row["id"]))


def times_read(made: RunningPipeline) -> float:
    return sum(one.op == "r" for one in of(made, "item")) / ROWS


def is_read(made: RunningPipeline) -> bool:
    found = state(made, "item")
    return found is not None and not found.requests and found.doubt is None


@pytest.mark.parametrize(
    ("table", "ddl"),
    [
        rare(ITEM, [CONSTANT]),
        rare(ITEM, [CONSTANT, DROPPED]),
        rare(PARTITIONED, [CONSTANT, DROPPED]),
        rare(ITEM, [VOLATILE]),
        rare(ITEM, ["ALTER TABLE item ADD COLUMN added int GENERATED ALWAYS AS IDENTITY"]),
        rare(ITEM, [VOLATILE, DROPPED]),
        (ITEM, [CONSTANT, DROPPED, "VACUUM FULL item"]),
        rare(ITEM, ["ALTER TABLE item ALTER COLUMN v TYPE int USING length(v)"]),
        rare(ITEM, ["ALTER TABLE item ALTER COLUMN v TYPE varchar(2) USING left(v, 2)"]),
        rare(ITEM, ["ALTER TABLE item ALTER COLUMN n TYPE int[] USING ARRAY[n]"]),
    ],
    ids=[
        "default",
        "none any more",
        "partitions",
        "volatile",
        "identity",
        "volatile, and none any more",
        "written anew",
        "another type",
        "less room",
        "an array",
    ],
)
def test_rows_that_were_altered_are_read_again(
    pipeline: MakePipeline, database: Conninfo, table: list[str], ddl: list[str]
) -> None:
    run(database, *table)
    made = pipeline()
    daemon = made.catch_up()
    run(database, *ddl, CHANGE)
    made.wait_until_logged(made.wal_end(), daemon)
    wait_for(lambda: is_read(made))
    assert made.stop(daemon) == 0
    assert log_rows(made) == source_rows(database)
    assert times_read(made) == 2


@pytest.mark.proof
@pytest.mark.parametrize(
    ("more", "ddl"),
    [
        ({}, ["ALTER TABLE item ADD COLUMN added text"]),
        ({}, ["ALTER TABLE item ADD COLUMN added text", LATER]),
        ({}, ["ALTER TABLE item ADD COLUMN added text", "UPDATE item SET added = 'new'"]),
        ({}, ["ALTER TABLE item RENAME COLUMN n TO m"]),
        ({}, ["ALTER TABLE item ALTER COLUMN v TYPE text"]),
        ({}, ["ALTER TABLE item ALTER COLUMN d TYPE numeric(12, 2)"]),
        ({"snapshot.mode": "no_data"}, [CONSTANT]),
        ({"column.exclude.list": "public.item.added"}, [CONSTANT]),
        (SELECT, [CONSTANT]),
    ],
    ids=[
        "null",
        "later",
        "written",
        "renamed",
        "longer",
        "larger",
        "no data",
        "left out",
        "SELECT",
    ],
)
def test_rows_that_are_as_they_were_are_not(
    pipeline: MakePipeline, database: Conninfo, more: dict[str, str], ddl: list[str]
) -> None:
    run(database, *ITEM)
    made = pipeline(**more)
    daemon = made.catch_up()
    before = times_read(made)
    run(database, *ddl, CHANGE)
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert is_read(made)
    assert times_read(made) == before


@pytest.mark.proof
def test_a_read_that_is_under_way_begins_anew_for_the_next_columns(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, ITEM[0], ITEM[1].replace(str(ROWS), "20000"))
    made = pipeline(**PAGES, **{"snapshot.rows.per.second.max": 20_000})
    daemon = made.catch_up()
    for name in "abc":
        run(database, f"ALTER TABLE item ADD COLUMN {name} int DEFAULT 7", CHANGE)
        made.wait_until_logged(made.wal_end(), daemon)
        found = state(made, "item")
        assert found is not None
        assert len(found.requests) <= 1
    wait_for(lambda: is_read(made))
    assert made.stop(daemon) == 0
    assert log_rows(made) == source_rows(database)


@pytest.mark.proof
def test_initial_only_ends_once_altered_rows_are_read(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, ITEM[0], ITEM[1].replace(str(ROWS), "20000"))
    made = pipeline(**PAGES, **{"snapshot.mode": "initial_only"})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"}).wait(60) != 0
    run(database, CONSTANT, CHANGE)
    assert made.start().wait(60) == 0
    assert log_rows(made) == source_rows(database)


@pytest.mark.proof
def test_reading_again_goes_on_where_it_was_killed(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """Also behind a first read that the DDL has caught half way."""
    run(database, ITEM[0], ITEM[1].replace(str(ROWS), "20000"))
    made = pipeline(**PAGES)
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"}).wait(60) != 0
    run(database, CONSTANT, CHANGE)
    for times in (2, 4):
        assert made.start({VARIABLE: f"{FaultPoint.CHUNK_TAKEN}:{times}"}).wait(60) != 0
        run(database, CHANGE)
    daemon = made.catch_up()
    wait_for(lambda: is_read(made))
    assert made.stop(daemon) == 0
    assert log_rows(made) == source_rows(database)
