"""Rebuilt lakehouse tables → joined documents continue, and have the corrected rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.options import RunOptions
from tests.fixtures.library import Library
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(600),
]


def test_only_documents_of_rows_that_were_wrong_are_written_again(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    library = Library(pipeline(search=True), spark, database)
    library.merge()
    book = table_path(str(library.made.folder / "lakehouse"), TableName("public", "book"))
    spark.sql(f"UPDATE delta.`{book}` SET title = 'somebody wrote this' WHERE id IN (1, 2)")
    library.source.execute("UPDATE book SET price = price + 1 WHERE id = 3")
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    expected = library.expected()
    wrong = {key for key, found in library.documents().items() if found != expected[key]}
    assert wrong, "it has taken what somebody wrote"

    rebuilt = RunOptions(rebuilds_all=True)
    done = run_once(run_lakehouse, library.settings, spark, print, rebuilt)
    assert done.exit_code == ExitCode.OK, done.line()
    indexes = library.indexes()
    (documents,) = library.index().tables
    assert library.documents() == expected
    assert (documents.updated, documents.inserted, documents.deleted) == (len(wrong), 0, 0)
    assert library.indexes() == indexes, "no other index was loaded"

    done = run_once(run_lakehouse, library.settings, spark, print, rebuilt)
    assert done.exit_code == ExitCode.OK, done.line()
    again = library.index()
    assert sum(table.events for table in again.tables) == 0, "rows are the same as before"
    library.source.execute("UPDATE book SET price = price + 1 WHERE id = 4")
    library.merge()
    library.index()
    assert library.documents() == library.expected()
