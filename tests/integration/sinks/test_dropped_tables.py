"""Tables dropped and renamed under a real daemon → the rows that merges keep."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.options import RunOptions
from sinks.search.client import connect
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.snapshots.test_while_streaming import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),  # the pipeline asks for it later than groups are made
    pytest.mark.spark,
    pytest.mark.proof,
]
AT_ONCE: dict[str, Any] = {"table.drop.policy": "delete", "table.drop.delay.ms": 0}
TABLES = ("item", "second", "third", "fourth")


def left(made: RunningPipeline, *tables: str) -> list[tuple[list[int], list[int]]]:
    """The keys that the lakehouse and the indexes have."""
    assert made.settings.search is not None
    client, keys = connect(made.settings.search), []
    for table in tables:
        path = table_path(str(made.folder / "lakehouse"), TableName("public", table))
        alias = f"{made.settings.search.index_prefix}public.{table}"
        hits = client.search(index=alias)["hits"]["hits"]
        rows, documents = query_builder(path), [hit["_source"] for hit in hits]
        keys.append((sorted(row["id"] for row in rows), sorted(one["id"] for one in documents)))
    return keys


def test_rows_of_dropped_and_renamed_tables_go_unless_too_many_are_missing(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    for table in TABLES:
        made_of = f"CREATE TABLE {table} (id int PRIMARY KEY)"
        run(database, made_of, f"INSERT INTO {table} VALUES (1), (2)")
    made = pipeline(search=True, sections={"lakehouse": AT_ONCE, "search": AT_ONCE})
    daemon, both = made.catch_up(), ([1, 2], [1, 2])
    none: tuple[list[int], list[int]] = ([], [])

    def merge(*accepted: str) -> list[str]:
        """What both sinks say of a run."""
        said, options = list[str](), RunOptions(accepted_drops=frozenset(accepted))
        for sink in (run_lakehouse, run_search):
            run_once(sink, made.settings, spark, said.append, options)
        return said

    def change(statement: str, *gone: str) -> None:
        """Run it, and wait until the log says that all of these are gone, and has the rest."""
        run(database, statement)

        def is_seen() -> bool:
            since = {state.table: state.gone_ms for state in made.tables() if state.gone_ms}
            progress = made.progress()
            assert progress is not None
            return since.keys() == set(gone) and progress.ts_ms >= max(since.values())

        wait_for(is_seen)
        wait_for(lambda: "thing" in {state.table for state in made.tables()} or len(gone) == 1)
        made.wait_until_logged(made.wal_end(), daemon)

    merge()
    assert left(made, *TABLES) == [both] * 4

    change("DROP TABLE item", "item")
    assert sum("its 2 rows are deleted" in line for line in merge()) == 2
    assert left(made, "item") == [none]
    assert merge() == []

    change("ALTER TABLE second RENAME TO thing", "item", "second")
    assert sum("was renamed to public.thing" in line for line in merge()) == 2
    assert left(made, "second", "thing") == [none, both]

    change("DROP TABLE third, fourth, thing", "item", "second", "third", "fourth", "thing")
    words = " ".join(f"--accept-drop public.{table}" for table in ("fourth", "thing", "third"))
    told = [line for line in merge() if words in line]
    assert ["millrace merge lakehouse" in told[0], "millrace merge search" in told[1]] == [True] * 2
    assert left(made, "third", "thing") == [both, both]
    shown = " ".join(made.millrace("status").stdout.split())
    assert (
        "search, public.third: public.third no longer exists at the source; its rows are deleted"
        in shown
    )

    merge("public.third")
    assert left(made, "third", "fourth") == [none, both]
    assert made.stop(daemon) == 0
