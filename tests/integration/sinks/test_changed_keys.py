"""Another key of a table, under a real daemon → the rows of merges before and after it.

Each way to change a key has its own table, so one daemon serves all. The expected rows are the
source's own SELECT.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F

from cdc.errors import ExitCode
from cdc.records.schema import TableName, TableSchema
from cdc.records.topics import schema_topic
from sinks.changes.derived import table_path
from sinks.changes.names import IS_CURRENT, POSITION
from sinks.job import run_lakehouse
from sinks.run.plan import ready
from sinks.search.client import connect
from sinks.search.documents import index_name
from sinks.search.run import run_search
from tests.ddl_chaos.replay import OWN, Versions, replayed
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.rekeyed import CASES, NINE
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.snapshots.test_while_streaming import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.timeout(580),
]
MakePipeline = Callable[..., RunningPipeline]
KINDS = ("current", "history", "changes")
PHASES_MAX = 3
DOCUMENTS = (
    {
        "name": "children",
        "table": "public.child",
        "embed": [{"field": "parent", "table": "public.swapped", "on": {"id": "ref"}}],
    },
    {
        "name": "parents",
        "table": "public.swapped",
        "embed": [
            {"field": "children", "table": "public.child", "on": {"ref": "id"}, "many": True}
        ],
    },
)
EXPECTED = {
    "children": "SELECT to_jsonb(c) || jsonb_build_object('parent',"
    " (SELECT to_jsonb(p) FROM swapped p WHERE p.id = c.ref)) FROM child c",
    "parents": "SELECT to_jsonb(p) || jsonb_build_object('children',"
    " (SELECT jsonb_agg(c ORDER BY c.id) FROM child c WHERE p.id = c.ref)) FROM swapped p",
}


class Stand:
    """The source, its daemon, and all that is derived."""

    def __init__(
        self,
        make: MakePipeline,
        database: Conninfo,
        spark: "SparkSession",
        tables: Iterable[str],
        documents: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.cases = {name: CASES[name] for name in tables}
        self.database, self.spark = database, spark
        for name, case in self.cases.items():
            columns = case.filled.split(" FROM")[0].count(", ")  # the others have defaults
            names = [word.split()[0] for word in case.made.split(";")[0].split(", ")][: columns + 1]
            self.run(
                f"CREATE TABLE {{t}} ({case.made.replace(';', ');', 1)}"
                + ")" * (";" not in case.made),
                f"INSERT INTO {{t}} ({', '.join(names)}) {case.filled}",
                table=name,
            )
        sections = {"lakehouse": {"kinds": [*KINDS]}, "search": {"documents": [*documents]}}
        self.pipeline = make(search=True, sections=sections)

    def run(self, *statements: str, table: str) -> None:
        """Do it, each statement by itself."""
        run(self.database, *(text.replace("{t}", table) for text in statements))

    def change(self, phase: int) -> None:
        """Do a phase of each table's change."""
        for table, case in self.cases.items():
            if phase < len(case.phases):
                self.run(*case.phases[phase], table=table)

    def is_ready(self) -> bool:
        """Whether the log has all of each table, and no doubt."""
        progress = self.pipeline.progress()
        tables = [table for table in self.pipeline.tables() if table.table in self.cases]
        if progress is None or progress.flush_lsn < self.end or len(tables) < len(self.cases):
            return False
        return all(
            ready(table, progress.cut) and not table.doubt and not table.requests
            for table in tables
        )

    def settle(self) -> None:
        """Wait for that, once the catalog was checked."""
        self.end = self.pipeline.wal_end()
        wait_for(lambda: all(map(self.has_key, self.cases)) and self.is_ready())

    def versions(self, table: str) -> list[TableSchema]:
        topic = schema_topic(self.pipeline.settings.capture.topic_prefix)
        every = self.pipeline.states.read_all(topic, TableSchema)
        own = (schema for schema in every if schema.table == table)
        return sorted(own, key=lambda schema: schema.version)

    def has_key(self, table: str) -> bool:
        """Whether the log's newest schema of a table has the source's key, and columns."""
        newest = self.versions(table)[-1]
        columns = self.ask(
            "SELECT attname, atttypid::int FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
            f" AND attrelid = '{table}'::regclass ORDER BY attnum"
        )
        key = self.ask(
            "SELECT attname FROM pg_index i, unnest(indkey) WITH ORDINALITY k (number, place)"
            " JOIN pg_attribute ON attnum = number WHERE attrelid = i.indrelid AND i.indrelid ="
            f" '{table}'::regclass AND (indisprimary OR indisreplident) ORDER BY place"
        )
        is_same = [column.name for column in newest.key] == [name for (name,) in key]
        return is_same and [(c.name, c.type_oid) for c in newest.columns] == columns

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(make_conninfo(**self.database)) as source:
            return source.execute(query.encode()).fetchall()

    def merge(self) -> None:
        """Both sinks, without a complaint."""
        for sink in (run_lakehouse, run_search):
            said: list[str] = []
            code = run_once(sink, self.pipeline.settings, self.spark, said.append).exit_code
            assert code in {ExitCode.OK, ExitCode.NOTHING_TO_DO}, said

    def compare(self) -> None:
        """All that is derived has what the source has."""
        log = self.pipeline.log()
        for table, case in self.cases.items():
            rows = self.ask(f"SELECT to_jsonb(t) FROM {table} t")
            expected = _sorted(row for (row,) in rows)
            derived = {kind: self.derived(table, kind) for kind in ("current", "history", "index")}
            columns = [column.name for column in self.versions(table)[-1].columns]
            archived = replayed(
                self.delta(table, "changes", OWN), case.key.split(", "), columns,
                Versions(self.versions(table)),
            )  # fmt: skip
            derived["changes"] = archived
            topic = next(state.topic for state in self.pipeline.tables() if state.table == table)
            of_table = [record for record in log if record.topic == topic]
            derived["log"] = [  # where a column goes, records of before still have it
                {name: row[name] for name in columns if name in row}
                for row in state_of(of_table).values()
            ]
            for kind, found in derived.items():
                assert _sorted(found) == expected, f"{table}: {kind}"

    def derived(self, table: str, kind: str) -> list[dict[str, Any]]:
        if kind != "index":
            return self.delta(table, kind)
        search = self.pipeline.settings.require_search()
        return self.documents(index_name(search.index_prefix, TableName("public", table)))

    def documents(self, name: str) -> list[dict[str, Any]]:
        """An index's documents; joined ones without their prefix."""
        search = self.pipeline.settings.require_search()
        alias = name if name.startswith(search.index_prefix) else f"{search.index_prefix}{name}"
        hits = connect(search).search(index=alias, body={"size": 100})["hits"]["hits"]
        rows = (hit["_source"] for hit in hits)
        return [{name: row[name] for name in row if name != POSITION} for row in rows]

    def delta(self, table: str, kind: str, own: Iterable[str] = ()) -> list[dict[str, Any]]:
        name = table if kind == "current" else f"{table}_{kind}"
        path = table_path(str(self.pipeline.folder / "lakehouse"), TableName("public", name))
        rows = self.spark.read.format("delta").load(path)
        if kind == "history":
            rows = rows.where(F.col(IS_CURRENT))
        columns = [column.name for column in self.versions(table)[-1].columns]
        return [row.asDict() for row in rows.select(*columns, *own).collect()]

    def forget(self) -> None:
        """Remove all Delta tables, so that the next merge makes them of the log."""
        for name in self.cases:
            for kind in ("", "_history", "_changes"):
                path = table_path(
                    str(self.pipeline.folder / "lakehouse"), TableName("public", name + kind)
                )
                shutil.rmtree(path)


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows as text, without nulls, which documents leave out."""
    return sorted(json.dumps(_without_nulls(row), sort_keys=True) for row in rows)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(of) for name, of in value.items() if of not in (None, [])}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def changed_while_streaming(stand: Stand) -> None:
    daemon = stand.pipeline.catch_up()
    stand.merge()
    for phase in range(PHASES_MAX):
        stand.change(phase)
        stand.merge()  # whatever the log has by now
        stand.settle()
        stand.merge()
        stand.compare()
    assert stand.pipeline.stop(daemon) == 0
    stand.forget()
    stand.merge()
    stand.compare()


@pytest.mark.proof
def test_the_zero_downtime_migration_of_a_key_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    stand = Stand(pipeline, database, spark, ["swapped"])
    daemon = stand.pipeline.catch_up()
    stand.merge()
    for phase in range(PHASES_MAX - 1):
        stand.change(phase)
    stand.settle()
    stand.merge()
    stand.compare()
    assert stand.pipeline.stop(daemon) == 0


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_key_that_changes_in_any_way_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    changed_while_streaming(Stand(pipeline, database, spark, CASES))


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_key_that_changes_while_the_daemon_is_down_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    """Several generations come between two merges."""
    stand = Stand(pipeline, database, spark, CASES)
    daemon = stand.pipeline.catch_up()
    stand.merge()
    for phase in range(PHASES_MAX):
        assert stand.pipeline.stop(daemon) == 0
        stand.change(phase)
        daemon = stand.pipeline.start()
        stand.settle()
    stand.merge()
    stand.compare()
    assert stand.pipeline.stop(daemon) == 0
    stand.forget()
    stand.merge()
    stand.compare()


@pytest.mark.proof
def test_joined_documents_follow_a_key_of_another_table(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    stand = Stand(pipeline, database, spark, ["swapped"], documents=DOCUMENTS)
    run(
        database,
        "CREATE TABLE child (id int PRIMARY KEY, ref bigint)",
        f"INSERT INTO child SELECT i, 1 + i % 4 {NINE}",
    )
    daemon = stand.pipeline.catch_up()
    for phase in range(PHASES_MAX + 1):
        stand.merge()
        for name, sql in EXPECTED.items():
            expected = _sorted(row for (row,) in stand.ask(sql))
            assert _sorted(stand.documents(name)) == expected, f"{name}, phase {phase}"
        stand.change(phase)
        run(database, f"UPDATE child SET ref = ref + {4 * (phase == 1)} WHERE id < 7")
        stand.settle()
    assert stand.pipeline.stop(daemon) == 0
