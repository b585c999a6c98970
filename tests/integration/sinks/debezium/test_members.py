"""DDL that Debezium's topics don't show → the wrong rows are known, until none is wrong."""

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ConfigError, ExitCode
from cdc.records.schema import TableName
from deploy.commands.merge import source_types
from deploy.status.sinks import lakehouse_status
from sinks.changes.derived import table_path
from sinks.debezium.described import declared_column
from sinks.run.options import RunOptions
from sinks.run.plan import goes_on
from sinks.run.wanted import CapturedTables
from tests.fixtures.debezium_lake import DebeziumLake, event
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run
from tests.integration.sinks.debezium.test_debezium_end_to_end import merge, started_as_debezium
from tests.integration.sinks.debezium.test_run import UNCHANGED, good, interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]

SIGNALS = "CREATE TABLE signal (id text PRIMARY KEY, type text, data text)"
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, a text, b text, n int)",
    "INSERT INTO item SELECT i, 'a' || i, 'b' || i, i FROM generate_series(1, 50) i",
)
EARLY = "UPDATE item SET n = -n WHERE id < 5"
LATE = "UPDATE item SET n = 7 WHERE id IN (2, 3, 49)", "DELETE FROM item WHERE id = 10"
RENAMED = ["ALTER TABLE item RENAME a TO name"]
ADDED = ["ALTER TABLE item ADD COLUMN added text DEFAULT 'so'"]
ALTERED = ["ALTER TABLE item ALTER n TYPE bigint USING n * 100"]
EXCHANGED = [
    "ALTER TABLE item RENAME a TO c",
    "ALTER TABLE item RENAME b TO a",
    "ALTER TABLE item RENAME c TO b",
]
AGAIN = ["ALTER TABLE item DROP COLUMN a", "ALTER TABLE item ADD COLUMN a text DEFAULT 'new'"]
SCHEMAS: dict[str, Any] = {}
PLAIN = {"key.schemas.enable": False, "value.schemas.enable": False}
KINDS = ("current", "history", "changes")


def doubts(made: RunningPipeline) -> dict[str, str]:
    """What `millrace status` says of tables that are doubtful."""
    found = lakehouse_status(made.settings, None, (), CapturedTables.of((), {}))
    assert found is not None
    return found.doubts


def derived(
    made: RunningPipeline, spark: "SparkSession", columns: list[str]
) -> dict[str, list[tuple[Any, ...]]]:
    """The rows by each kind of table: what is there, what is current, what events add up to."""
    lake = made.settings.lakehouse
    assert lake is not None

    def read(name: str) -> Any:
        path = f"{lake.path}/public/{name}"
        return spark.read.format("delta").load(path)

    newest = (
        read("item_changes")
        .selectExpr("id", f"struct(_millrace_position, _millrace_op, {', '.join(columns)}) AS e")
        .groupBy("id")
        .agg({"e": "max"})
        .selectExpr("`max(e)`.*")
        .where("_millrace_op <> 'd'")
    )
    frames = {
        "current": read("item"),
        "history": read("item_history").where("is_current"),
        "changes": newest,
    }
    return {kind: sorted(tuple(row) for row in frame.select(*columns).collect())
            for kind, frame in frames.items()}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize(
    ("ddl", "form"),
    [
        pytest.param([*RENAMED, *ADDED], SCHEMAS, id="renamed, and one added"),
        pytest.param(RENAMED, PLAIN, id="renamed, without schemas"),
        pytest.param(ADDED, SCHEMAS, id="added"),
        pytest.param(ALTERED, SCHEMAS, id="another type"),
        pytest.param(EXCHANGED, SCHEMAS, id="names exchanged"),
        pytest.param(AGAIN, PLAIN, id="dropped and added"),
    ],
)
def test_rows_that_no_event_has_covered_since_are_doubtful_until_debezium_has_read_them(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    ddl: list[str],
    form: dict[str, Any],
) -> None:
    sections = {
        "lakehouse": {"topics_written_by": "debezium", "kinds": list(KINDS)},
        "log": {"topic.partitions": 1},
        "format": form,
    }
    lists = {"table.include.list": "public.item", "signal.data.collection": "public.signal"}
    made = pipeline(preset="debezium", sections=sections, **lists)
    run(database, SIGNALS, *ITEM)
    daemon = started_as_debezium(made)

    def merged(*statements: str) -> None:
        run(database, *statements)
        made.wait_until_logged(made.wal_end(), daemon)
        options = RunOptions(types_of=(lambda: source_types(made.settings)) if form else None)
        assert merge(made, spark, options) == ExitCode.OK

    merged(EARLY)
    assert doubts(made) == {}
    merged(*ddl, *LATE)
    names = {"public.item", "public.item_history", "public.item_changes"}
    found = doubts(made)
    assert found.keys() == names, "each of them"
    assert "before offset" in found["public.item"]
    with psycopg.connect(make_conninfo(**database)) as connection:
        cursor = connection.execute("SELECT * FROM item")
        columns = [column.name for column in cursor.description or ()]
        rows = sorted(cursor.fetchall())
    for given in derived(made, spark, columns).values():
        covered = [row for row in given if row[0] in {2, 3, 49}]
        assert covered == [row for row in rows if row[0] in {2, 3, 49}]
        assert len(given) == len(rows)
    statement = found["public.item"].partition("INSERT INTO ")[2].partition(";")[0]
    merged(f"INSERT INTO {statement}", "UPDATE item SET n = 8 WHERE id = 4")
    deadline = 10
    while doubts(made) and deadline:
        deadline -= 1
        merged("UPDATE item SET n = n + 1 WHERE id = 5")
    assert doubts(made) == {}
    assert made.stop(daemon) == 0
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = sorted(connection.execute("SELECT * FROM item").fetchall())
    assert derived(made, spark, columns) == dict.fromkeys(KINDS, rows)


def doubtful(lake: DebeziumLake) -> bool:
    """Whether the table is, by what runs have left."""
    last = lake.plans.last()
    assert last is not None
    outcome = lake.plans.outcome(last)
    topic = (goes_on(last, outcome) if outcome else last.tables)["public.t"].debezium
    return topic is not None and topic.doubt is not None


@pytest.mark.proof
def test_an_update_that_leaves_a_large_value_out_covers_no_row(
    lake: DebeziumLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.configure(types={"public.t": {"id": "int", "v": "text", "w": "text", "n": "int"}})
    lake.topic()
    lake.write(event("r", {"id": number, "v": "abcd"[number], "n": 1}) for number in range(4))
    good(lake.merge())
    assert not doubtful(lake)
    lake.write([event("u", {"id": number, "w": UNCHANGED, "n": 2}) for number in (1, 3)])
    lake.write([event("u", {"id": 2, "w": "c", "n": 2}), event("d", None, {"id": 3, "w": "d"})])
    good(lake.merge())
    lake.write([event("r", {"id": 0, "w": "a", "n": 2}), event("u", {"id": 0, "w": UNCHANGED})])
    good(lake.merge())
    assert lake.rows("public.t", "id", "w") == [(0, "a"), (1, None), (2, "c")]
    assert doubtful(lake), "of the second row"
    lake.write([event("r", {"id": number, "w": "abc"[number], "n": 3}) for number in range(3)])
    interrupted(lake, monkeypatch, after_commit=True)
    assert doubtful(lake), "nobody has looked since"
    lake.merge()
    assert not doubtful(lake)
    assert lake.rows("public.t", "id", "w") == [(0, "a"), (1, "b"), (2, "c")]


@pytest.mark.proof
def test_the_user_s_word_ends_a_doubt_without_anything_to_read(lake: DebeziumLake) -> None:
    lake.configure(types={"public.t": {"id": "int", "v": "text"}})
    lake.topic()
    lake.write([event("r", {"id": number}) for number in range(2)])
    lake.write([event("c", {"id": 2, "v": "new"})])
    good(lake.merge())
    assert doubtful(lake), "also a table that begins with both"
    with pytest.raises(ConfigError, match=r"unknown derived table: public\.u"):
        lake.merge(RunOptions(accepted_doubts=frozenset({"public.u"})))
    accepting = RunOptions(accepted_doubts=frozenset({"public.t"}))
    assert lake.merge(accepting).exit_code == ExitCode.NOTHING_TO_DO
    assert not doubtful(lake)
    lake.write([event("c", {"id": 3, "v": "new"})])
    good(lake.merge())
    assert not doubtful(lake)


def test_a_table_that_failed_or_begins_again_keeps_the_types_that_were_told(
    lake: DebeziumLake,
) -> None:
    lake.topic()
    lake.write([event("r", {"id": 1, "v": "a", "n": 1})])
    told = {f"{lake.prefix}.public.t": {"id": declared_column("id", "int")}}
    (refused,) = lake.merge(RunOptions(types_of=lambda: told)).tables
    assert refused.error is not None
    assert "what type its columns have: v, n" in refused.error.what
    assert refused.error.where == '[lakehouse.types."public.t"]'
    lake.configure(types={"public.t": {"v": "text", "n": "int"}})
    good(lake.merge())
    lake.configure()
    shutil.rmtree(table_path(str(lake.folder), TableName("public", "t")))
    good(lake.merge())
    assert lake.rows() == [(1, "a", 1)]
