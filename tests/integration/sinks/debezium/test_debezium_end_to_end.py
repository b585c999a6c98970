"""Topics in Debezium's form, of a source that changes → Delta tables that equal the source.

The daemon under Debezium's preset writes them; tests/golden compares it with a real Debezium record
by record. Merges know only what they would know of a real one's topics.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner, Result

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from deploy.commands.app import app
from deploy.commands.merge import run_options
from deploy.demo.proof import lakehouse_differences
from deploy.local.processes import Process
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.options import RunOptions
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.registry import SchemaRegistry
from tests.fixtures.spark import SPARK, run_once
from tests.integration.test_end_to_end import live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]

Sections = dict[str, dict[str, str | bool]]
TABLES = {"item": "item", "Odd Näme": "Odd_N_me", "loose": "loose"}
"""Name → how its topic spells it, and so the lakehouse."""
SCHEMA = """
    CREATE TABLE item (
        id int PRIMARY KEY, name text, price numeric(10, 2), weight double precision, on_sale bool,
        since date, seen timestamptz, made timestamp, tags text[], doc jsonb, raw bytea, big text);
    ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE "Odd Näme" (a int, "the key" text, v bigint, PRIMARY KEY (a, "the key"));
    CREATE TABLE loose (v int, w text, n serial); ALTER TABLE loose REPLICA IDENTITY FULL;
    INSERT INTO item SELECT
        i, 'name ' || i, i / 7.0, i * 0.1, i % 2 = 0, '2020-02-29'::date + i,
        '2024-01-01 00:00:00.123456+02'::timestamptz + i * interval '1 hour',
        '1999-12-31 23:59:59.5'::timestamp - i * interval '1 day',
        ARRAY['a' || i, 'with "quotes"'], jsonb_build_object('n', i),
        decode(lpad(to_hex(i), 8, '0'), 'hex'), repeat(md5(i::text), 100)
    FROM generate_series(1, 400) i;
    INSERT INTO "Odd Näme" SELECT i, 'k' || i, i FROM generate_series(1, 200) i;
    INSERT INTO loose (v, w) SELECT i % 7, 'same' FROM generate_series(1, 40) i;
"""
MERGES = 2
CAPTURE = {"skipped.operations": "none", "message.key.columns": "public.loose:n"}
PLAIN: Sections = {"format": {"key.schemas.enable": False, "value.schemas.enable": False}}


def assert_derived_is_source(
    made: RunningPipeline,
    spark: "SparkSession",
    connection: psycopg.Connection,
    tables: Iterable[str],
) -> None:
    """Compare each table with the source, row by row; but one with names that Avro hasn't."""
    assert made.settings.lakehouse is not None
    in_avro = made.settings.format.get("value") == "avro"
    for table in tables:
        spelled = TABLES[table]
        if in_avro and table != spelled:
            continue
        path = table_path(made.settings.lakehouse.path, TableName("public", spelled))
        name = TableName("public", table)
        rows, differences, examples = lakehouse_differences(
            spark, connection, name, path, made.folder
        )
        assert (table, differences, examples) == (table, 0, [])
        assert rows > 0


def merge(made: RunningPipeline, spark: "SparkSession", options: RunOptions) -> ExitCode:
    summary = run_once(run_lakehouse, made.settings, spark, options=options)
    assert [str(table) for table in summary.tables if table.error] == []
    return summary.exit_code


def started_as_debezium(made: RunningPipeline) -> Process:
    """Start the daemon in Debezium's place, which sinks' settings forbid it to take."""
    settings = made.config.read_text(encoding="utf-8")
    own = settings.replace('"topics_written_by" = "debezium"\n', "")
    made.config.write_text(own, encoding="utf-8")
    daemon = made.catch_up()
    made.config.write_text(settings, encoding="utf-8")
    return daemon


def merged_while_it_changes(
    made: RunningPipeline,
    spark: "SparkSession",
    database: dict[str, str],
    options: Callable[[int], RunOptions],
    merges: int = MERGES,
    emptied: str = 'TRUNCATE "Odd Näme", loose',
    tables: Iterable[str] = TABLES,
) -> None:
    """Random transactions, emptied tables, merges in between; in the end, nothing differs."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = started_as_debezium(made)
        for number in range(merges):
            if number == merges - 1:
                connection.execute(emptied)
                connection.execute("INSERT INTO \"Odd Näme\" VALUES (1, 'k1', 1)")
                connection.execute("INSERT INTO loose VALUES (1, 'same'), (1, 'same')")
            live(connection, seed=number + 1, transactions=30)
            made.wait_until_logged(made.wal_end(), daemon)
            assert merge(made, spark, options(number)) == ExitCode.OK
        assert_derived_is_source(made, spark, connection, tables)
        assert merge(made, spark, options(merges)) == ExitCode.NOTHING_TO_DO
        assert made.stop(daemon) == 0


@pytest.mark.proof
def test_json_with_schemas_tells_everything(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
) -> None:
    made = pipeline(
        preset="debezium",
        sections={
            "lakehouse": {"topics_written_by": "debezium"},
            "log": {"topic.partitions": 3},  # among which a TRUNCATE is refused; others have one
        },
        **CAPTURE,
    )
    emptied = 'DELETE FROM "Odd Näme"; DELETE FROM loose'
    merged_while_it_changes(made, spark, database, lambda _: RunOptions(), emptied=emptied)


@pytest.mark.proof
@pytest.mark.parametrize(
    "tables", few([("item",), tuple(TABLES)], ("item",)), ids=["one table", "all tables"]
)
def test_types_that_records_do_not_tell_are_asked_for_once(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    tables: tuple[str, ...],
) -> None:
    sections = {"lakehouse": {"topics_written_by": "debezium"}, **PLAIN}
    capture = CAPTURE if "loose" in tables else {"table.include.list": "public.item"}
    made = pipeline(preset="debezium", sections=sections, **capture)

    def options(number: int) -> RunOptions:
        return run_options(made.settings, None, frozenset(), types_from_source=number == 0)

    merged_while_it_changes(made, spark, database, options, tables=tables)


@pytest.mark.proof
@pytest.mark.registry
def test_avro_is_read_by_the_registry(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    registry: SchemaRegistry,
    has_avro: None,
) -> None:
    avro = {"key": "avro", "value": "avro", "schema.registry.url": registry.url}
    sections = {"lakehouse": {"topics_written_by": "debezium"}, "format": avro}
    made = pipeline(preset="debezium", sections=sections, **CAPTURE)
    options = run_options(made.settings, None, frozenset(), types_from_source=False)
    # What runs go on with is no format's: test_log.py has Avro in a second one.
    merged_while_it_changes(made, spark, database, lambda _: options, merges=1)
    path = table_path(str(made.folder / "lakehouse"), TableName("public", "Odd_N_me"))
    odd = spark.read.format("delta").load(path).select("a", "the_key", "v").collect()
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = connection.execute('SELECT * FROM "Odd Näme"').fetchall()
    assert sorted(map(tuple, odd)) == sorted(rows)


@pytest.mark.usefixtures("here")
@pytest.mark.proof
def test_the_command_asks_the_source_where_it_is_told_to(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sections = {"lakehouse": {"topics_written_by": "debezium"}, "spark": SPARK, **PLAIN}
    made = pipeline(preset="debezium", sections=sections)
    # Commands join the session that is there.
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)

    def merged(*words: str) -> Result:
        return CliRunner().invoke(app, ["merge", "lakehouse", *words, "--config", str(made.config)])

    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric(5, 2))")
        connection.execute("INSERT INTO t VALUES (1, 1.5)")
        assert made.stop(started_as_debezium(made)) == 0
    refused = merged()
    assert refused.exit_code == ExitCode.CONFIG, refused.output
    assert "nothing says what type its columns have" in refused.stdout
    done = merged("--types-from-source")
    assert done.exit_code == ExitCode.OK, done.output
    assert "public.t: 1 events, 1 rows inserted" in done.stdout
    assert made.millrace("merge", "lakehouse").returncode == ExitCode.NOTHING_TO_DO
    listed = made.millrace("cuts").stdout
    assert "not known" in listed
    unordered = made.millrace("query", "--at", "0/1", "SELECT * FROM t")
    assert unordered.returncode == ExitCode.CONFIG
    assert "don't show at which instants all tables are complete" in unordered.stderr
