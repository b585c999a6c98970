"""Another key of a table, under a real daemon → what merges make of it, before and behind.

Each way to change a key has a table of its own, so that one daemon does for all. The expected rows
are the source's own SELECT.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F

from cdc.errors import ExitCode
from cdc.log.offsets import LogReader
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
]
MakePipeline = Callable[..., RunningPipeline]
KINDS = ("current", "history", "changes")


class Case(NamedTuple):
    """How a table ``{t}`` is made and filled; phases of DDL and DML, between which it is merged."""

    made: str
    filled: str
    phases: tuple[tuple[str, ...], ...]
    key: str


NINE = "FROM generate_series(1, 9) i"
FUNCTION = """
    CREATE FUNCTION {t}_filled() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.new_id := NEW.id + 4; RETURN NEW; END $$
"""
TRIGGER = """
    CREATE TRIGGER filled BEFORE INSERT OR UPDATE ON {t}
    FOR EACH ROW EXECUTE FUNCTION {t}_filled()
"""
SWAP = """
    BEGIN;
    DROP TRIGGER filled ON {t};
    ALTER TABLE {t} DROP CONSTRAINT {t}_pkey;
    ALTER TABLE {t} ALTER id DROP NOT NULL;
    ALTER TABLE {t} ALTER new_id SET NOT NULL;
    ALTER TABLE {t} RENAME id TO old_id;
    ALTER TABLE {t} RENAME new_id TO id;
    ALTER TABLE {t} ADD CONSTRAINT {t}_pkey PRIMARY KEY USING INDEX {t}_new;
    COMMIT
"""
CASES = {
    "swapped": Case(
        "id int PRIMARY KEY, v text",
        f"SELECT i, 'v' || i {NINE}",
        (
            (
                "ALTER TABLE {t} ADD COLUMN new_id bigint",
                FUNCTION,
                TRIGGER,
                "INSERT INTO {t} VALUES (10, 'while it is filled')",
                "UPDATE {t} SET new_id = id + 4 WHERE id < 5",
            ),
            (
                "DELETE FROM {t} WHERE id = 2",
                "UPDATE {t} SET new_id = id + 4 WHERE id >= 5",
                "CREATE UNIQUE INDEX CONCURRENTLY {t}_new ON {t} (new_id)",
                "UPDATE {t} SET v = 'right before' WHERE id = 3",
                SWAP,
                "UPDATE {t} SET v = 'right behind' WHERE id = 5",
                "DELETE FROM {t} WHERE id = 8",
                "INSERT INTO {t} (id, v) VALUES (3, 'new')",
            ),
            ("UPDATE {t} SET v = 'later' WHERE id < 9", "ALTER TABLE {t} DROP COLUMN old_id"),
        ),
        "id",
    ),
    "moved": Case(
        "id int PRIMARY KEY, code text NOT NULL, v text",
        f"SELECT i, 'c' || 20 - i, 'v' || i {NINE}",
        (
            (
                "UPDATE {t} SET v = 'before' WHERE id = 1",
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (code)",
                "UPDATE {t} SET v = 'behind' WHERE id < 3",
                "INSERT INTO {t} VALUES (1, 'c1', 'of an id that was the key')",
                "DELETE FROM {t} WHERE id = 4",
            ),
            ("UPDATE {t} SET code = 'other' WHERE id = 5",),
        ),
        "code",
    ),
    "more": Case(
        "id int PRIMARY KEY, part int NOT NULL DEFAULT 1, v text",
        f"SELECT i, i % 2, 'v' || i {NINE}",
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, part)",
                "INSERT INTO {t} VALUES (1, 7, 'another part'), (2, 7, 'another part')",
                "DELETE FROM {t} WHERE id = 3",
            ),
            ("DELETE FROM {t} WHERE id = 2 AND part = 7", "UPDATE {t} SET part = 9 WHERE id = 4"),
        ),
        "id, part",
    ),
    "fewer": Case(
        "id int, part int, v text, PRIMARY KEY (id, part)",
        f"SELECT i, i % 2, 'v' || i {NINE}",
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id)",
                "UPDATE {t} SET part = 5 WHERE id = 1",
                "DELETE FROM {t} WHERE id = 3",
            ),
            ("UPDATE {t} SET part = 9 WHERE id = 4", "ALTER TABLE {t} DROP COLUMN part"),
        ),
        "id",
    ),
    "to_text": Case(
        "id int PRIMARY KEY, v text",
        f"SELECT i, 'v' || i {NINE}",
        (
            (
                "DELETE FROM {t} WHERE id = 3",
                "ALTER TABLE {t} ALTER id TYPE text",
                "INSERT INTO {t} VALUES ('eleven', 'text')",
                "DELETE FROM {t} WHERE id = '4'",
            ),
            ("UPDATE {t} SET v = 'later' WHERE id = '5'",),
        ),
        "id",
    ),
    "to_uuid": Case(
        "id int PRIMARY KEY, v text, u uuid NOT NULL DEFAULT gen_random_uuid()",
        f"SELECT i, 'v' || i {NINE}",
        (
            (
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (u)",
                "ALTER TABLE {t} DROP COLUMN id",
                "ALTER TABLE {t} RENAME u TO id",
                "DELETE FROM {t} WHERE v = 'v4'",
            ),
            ("UPDATE {t} SET v = 'later' WHERE v = 'v5'",),
        ),
        "id",
    ),
    "widened": Case(
        "id int PRIMARY KEY, v text",
        f"SELECT i, 'v' || i {NINE}",
        (
            (
                "DELETE FROM {t} WHERE id = 3",
                "ALTER TABLE {t} ALTER id TYPE bigint",
                "INSERT INTO {t} VALUES (1234567890123, 'large')",
            ),
            ("UPDATE {t} SET v = 'later' WHERE id < 6",),
        ),
        "id",
    ),
    "by_index": Case(
        "id int NOT NULL CONSTRAINT {t}_id UNIQUE, code text NOT NULL CONSTRAINT {t}_code UNIQUE,"
        " v text; ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_id",
        f"SELECT i, 'c' || 20 - i, 'v' || i {NINE}",
        (
            (
                "DELETE FROM {t} WHERE id = 3",
                "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
                "UPDATE {t} SET id = id + 100 WHERE id = 4",
            ),
            ("UPDATE {t} SET code = 'later' WHERE id = 5",),
        ),
        "code",
    ),
    "whole": Case(
        "id int PRIMARY KEY, code int NOT NULL, v text; ALTER TABLE {t} REPLICA IDENTITY FULL",
        f"SELECT i, 10 - i, 'v' || i {NINE}",
        (
            (
                "DELETE FROM {t} WHERE id = 3",
                "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (code)",
                "UPDATE {t} SET id = 1 WHERE id = 4",
            ),
            ("UPDATE {t} SET code = code + 100 WHERE id = 5",),
        ),
        "code",
    ),
}


class Stand:
    """The source, its daemon, and all that is derived."""

    def __init__(
        self, make: MakePipeline, database: Conninfo, spark: "SparkSession", tables: Iterable[str]
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
        self.pipeline = make(search=True, sections={"lakehouse": {"kinds": [*KINDS]}})

    def run(self, *statements: str, table: str) -> None:
        """Do it, each statement by itself."""
        run(self.database, *(text.replace("{t}", table) for text in statements))

    def is_ready(self) -> bool:
        """Whether the log has all of each table, and no doubt."""
        settings = self.pipeline.settings
        state = LogReader(settings.kafka).state(settings.capture.topic_prefix, "millrace", print)
        assert state is not None
        tables = [state.tables[f"public.{name}"] for name in self.cases]
        is_settled = all(
            ready(table, state.progress.cut) and not table.doubt and not table.requests
            for table in tables
        )
        return is_settled and state.progress.flush_lsn >= self.end

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
            derived["log"] = [*state_of(of_table).values()]
            for kind, found in derived.items():
                assert _sorted(found) == expected, f"{table}: {kind}"

    def derived(self, table: str, kind: str) -> list[dict[str, Any]]:
        if kind != "index":
            return self.delta(table, kind)
        search = self.pipeline.settings.require_search()
        alias = index_name(search.index_prefix, TableName("public", table))
        hits = connect(search).search(index=alias, body={"size": 100})["hits"]["hits"]
        return [
            {name: hit["_source"][name] for name in hit["_source"] if name != POSITION}
            for hit in hits
        ]

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
    kept = ({name: row[name] for name in sorted(row) if row[name] is not None} for row in rows)
    return sorted(json.dumps(row) for row in kept)


def changed_while_streaming(stand: Stand) -> None:
    daemon = stand.pipeline.catch_up()
    stand.merge()
    for phase in range(3):
        for table, case in stand.cases.items():
            if phase < len(case.phases):
                stand.run(*case.phases[phase], table=table)
        stand.merge()  # whatever the log has by now
        stand.settle()
        stand.merge()
        stand.compare()
    assert stand.pipeline.stop(daemon) == 0
    stand.forget()
    stand.merge()
    stand.compare()


def test_the_zero_downtime_migration_of_a_key_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    changed_while_streaming(Stand(pipeline, database, spark, ["swapped"]))


@pytest.mark.proof
def test_a_key_that_changes_in_any_way_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    changed_while_streaming(Stand(pipeline, database, spark, CASES.keys() - {"swapped"}))


@pytest.mark.proof
def test_a_key_that_changes_while_the_daemon_is_down_is_followed(
    pipeline: MakePipeline, database: Conninfo, spark: "SparkSession"
) -> None:
    """Several generations come between two merges."""
    stand = Stand(pipeline, database, spark, CASES)
    daemon = stand.pipeline.catch_up()
    stand.merge()
    for phase in range(3):
        assert stand.pipeline.stop(daemon) == 0
        for table, case in stand.cases.items():
            if phase < len(case.phases):
                stand.run(*case.phases[phase], table=table)
        daemon = stand.pipeline.start()
        stand.settle()
    stand.merge()
    stand.compare()
    assert stand.pipeline.stop(daemon) == 0
    stand.forget()
    stand.merge()
    stand.compare()
