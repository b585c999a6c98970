"""Joined documents equal the result of the source's own SQL, document for document."""

import os
import random
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.joined.target import JoinedDocuments
from sinks.search.progress import Ledger
from tests.fixtures.library import BOOKS, CHANGES, SQL, Library, Transaction, chosen
from tests.fixtures.pipeline import RunningPipeline
from tests.integration.snapshots.test_while_streaming import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
_RENAMED: Final = "ALTER TABLE author RENAME name TO alias; ALTER TABLE author ADD name text"
FOUR_TABLES: Final = {"table.include.list": "public.book,public.review,public.tag,public.book_tag"}
EXAMPLES: Final = int(os.environ.get("SEARCH_EXAMPLES", "1"))
TRANSACTIONS_MIN: Final = 8
NUMBERS: Final = st.fixed_dictionaries(
    {
        "one": st.integers(1, 60),
        "two": st.integers(1, 150),
        "small": st.integers(1, 12),
        "other": st.integers(1, 12),
    }
)
TRANSACTIONS: Final = st.lists(
    st.builds(
        Transaction,
        st.lists(st.tuples(st.sampled_from(CHANGES), NUMBERS), min_size=1, max_size=4),
        ends_in_nothing=st.integers(0, 9).map(lambda number: number == 0),
    ),
    min_size=TRANSACTIONS_MIN,
    max_size=30,
)


@pytest.fixture
def library(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> Library:
    return Library(pipeline(search=True), spark, database)


def test_documents_are_what_the_sources_sql_says(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many rows, and of many through a table: without authors and readers, in one slice."""
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    library = Library(pipeline(search=True, **FOUR_TABLES), spark, database)
    _, reviews, tags = BOOKS["embed"]
    without_readers = {name: reviews[name] for name in reviews if name != "embed"}
    library.define(BOOKS | {"embed": [without_readers, tags]})

    def expected() -> dict[str, dict[str, Any]]:
        rows = library.expected()
        for row in rows.values():
            row.pop("writer", None)
            for review in row.get("reviews", []):
                review.pop("by", None)
        return rows

    for transactions in ([], chosen(random.Random(1), 20)):  # noqa: S311 (repeatable)
        library.live(transactions)
        library.merge()
        assert library.index().exit_code == ExitCode.OK, library.said
        assert library.documents() == expected()
    assert library.index().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_documents_are_what_the_sources_sql_says_whatever_changes(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where tables are so large that only some of their files are read, and in slices."""
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    monkeypatch.setattr("sinks.search.joined.target.SLICE_ROWS", 30)
    library.merge()
    first = library.index()
    assert first.exit_code == ExitCode.OK, library.said
    assert library.documents() == library.expected()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],  # the source goes on from example to example
        suppress_health_check=list(HealthCheck),
    )
    @given(TRANSACTIONS)
    def changed(transactions: list[Transaction]) -> None:
        assume(len(transactions) > TRANSACTIONS_MIN)  # the first is the simplest: it shows little
        library.live(transactions)
        library.merge()
        summary = library.index()
        assert summary.exit_code in {ExitCode.OK, ExitCode.NOTHING_TO_DO}, library.said
        assert library.documents() == library.expected()

    changed()
    assert library.index().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_what_empties_a_table_or_changes_all_of_it_is_in_all_documents(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    monkeypatch.setattr("sinks.search.joined.target.SLICE_ROWS", 30)
    library.merge()
    library.index()
    library.source.execute("TRUNCATE review; UPDATE author SET name = 'all of them'")
    library.merge()
    library.index()
    assert library.documents() == library.expected()


@pytest.mark.proof
def test_what_is_written_before_a_snapshot_and_committed_behind_it_is_shown(
    library: Library, database: dict[str, str]
) -> None:
    """The row's LSN is lower than that of the rows that didn't show it."""
    library.index_also("public.author")
    with psycopg.connect(make_conninfo(**database)) as older:
        older.execute("UPDATE author SET name = 'written first, committed last' WHERE id = 1")
        again = library.made.millrace("snapshot", "public.author")
        assert again.returncode == ExitCode.OK, again.stderr
        library.merge()
        assert library.index().exit_code == ExitCode.OK, library.said
        assert library.documents() == library.expected()
        older.commit()
    library.merge()
    library.index()
    assert library.documents() == library.expected()
    assert library.documents("public.author")["1"]["name"] == "written first, committed last"


@pytest.mark.proof
def test_a_run_that_died_is_finished_before_the_next_cut(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came by the first cut and is gone by the second one is told by neither alone."""
    library.merge()
    library.index()
    insert = "INSERT INTO review VALUES (%s, %s, 5, 'for a moment', 1)"
    functions = [
        "sinks.search.indexes.TableIndex.refresh",
        "sinks.search.progress.Ledger.write",
    ]
    for number, function in enumerate(functions, 1):
        library.source.execute(insert, [number, 9_000 + number])
        library.merge()
        with monkeypatch.context() as patch:
            _dies(patch, function)
            with pytest.raises(ZeroDivisionError):
                library.index()
        library.source.execute("DELETE FROM review WHERE number = %s", [9_000 + number])
        library.merge()
        library.index()
        assert library.documents() == library.expected()


def _dies(patch: pytest.MonkeyPatch, function: str) -> None:
    """Let a run die where it is about to do something; of the progress, when it is done."""
    if function != "sinks.search.progress.Ledger.write":
        patch.setattr(function, lambda *_, **__: 1 / 0)
        return
    write = Ledger.write

    def last(self: Ledger, document: str, record: Any, *rest: Any) -> Any:
        if document.startswith("document/") and record.to is None:
            raise ZeroDivisionError
        return write(self, document, record, *rest)

    patch.setattr(function, last)


@pytest.mark.proof
def test_a_new_definition_is_a_new_index_beside_the_one_that_serves(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.merge()
    library.index()
    (before,) = library.indexes()
    assert library.documents() == library.expected()
    monkeypatch.setattr("sinks.search.joined.target.SLICE_ROWS", 30)
    load, slices = JoinedDocuments.load, 0

    def loaded(self: JoinedDocuments, *rest: Any) -> None:
        """A slice, before which the source has changed, and the lakehouse, too."""
        nonlocal slices
        slices += 1
        assert library.indexes() == [before], "it serves until the new one is complete"
        assert library.documents() == library.expected(), "and keeps up"
        if slices == 2:
            raise ZeroDivisionError
        library.source.execute("UPDATE author SET name = name || '+'")
        library.source.execute("UPDATE book SET id = id + 10000 WHERE id %% 7 = %s", [slices])
        library.source.execute("DELETE FROM book WHERE id %% 10 = %s", [slices])
        library.merge()
        load(self, *rest)

    library.define(BOOKS | {"mapping": {"called": {"type": "keyword"}}})
    with monkeypatch.context() as patch:
        patch.setattr(JoinedDocuments, "load", loaded)
        with pytest.raises(ZeroDivisionError):
            library.index()
        _dies(patch, "sinks.search.dead_letters.DocumentDeadLetters.forget")
        with pytest.raises(ZeroDivisionError):
            library.index()
    assert slices == 3
    (after,) = library.indexes()
    library.index()
    assert library.indexes() == [after], "what serves already isn't loaded again"
    assert after != before
    assert library.documents() == library.expected()
    properties = library.client.indices.get_mapping(index=after)[after]["mappings"]["properties"]
    assert properties["called"] == {"type": "keyword"}
    assert properties["reviews"]["type"] == "nested"
    assert properties["writer"]["properties"]["born"]["type"] == "date"
    assert library.client.indices.exists(index=before) is False


@pytest.mark.proof
def test_columns_that_come_change_and_go(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one joins the index; where one doesn't fit any more, another index takes its place."""
    library.merge()
    library.index()
    (first,) = library.indexes()
    for statement, is_same in (
        ("ALTER TABLE author ADD COLUMN mail text DEFAULT 'a@b'; UPDATE author SET born = NULL", 1),
        ("ALTER TABLE review ALTER stars TYPE bigint; UPDATE review SET stars = 7000000000", 0),
        ("ALTER TABLE book DROP COLUMN summary; DELETE FROM book WHERE id = 1", 0),
        (_RENAMED, 0),
    ):
        library.source.execute(statement.encode())
        if statement is _RENAMED:  # without a row, by which the log would tell at once
            wait_for(lambda: "alias" in library.made.columns("public.author"))
        library.merge()
        library.merge()  # rows that the change of a column has changed are read again
        assert library.index().exit_code == ExitCode.OK
        (index,) = library.indexes()
        assert (index == first) is bool(is_same), library.said
        first = index
    sql = SQL.replace("'summary', b.summary,", "").replace("a.name,", "a.name, 'alias', a.alias,")
    expected = library.expected(sql)
    for document in expected.values():
        if "writer" in document:
            document["writer"]["mail"] = "a@b"
    assert library.documents() == expected

    # A lakehouse that was made anew has other versions of everything.
    shutil.rmtree(library.made.folder / "lakehouse")
    library.source.execute("DELETE FROM book WHERE id < 10")
    library.merge()
    with monkeypatch.context() as patch:
        _dies(patch, "sinks.search.indexes.TableIndex.make")
        with pytest.raises(ZeroDivisionError):
            library.index()
    assert library.index().exit_code == ExitCode.OK
    assert any("written again" in line for line in library.said)
    assert len(library.documents()) == len(library.expected(SQL.replace("b.summary", "NULL")))


@pytest.mark.proof
def test_values_of_a_dropped_column_stay_where_that_is_wanted(library: Library) -> None:
    """And what the definition says of it stops nothing."""
    mapping = {"summary": {"type": "keyword"}}
    library.define(BOOKS | {"column.drop.policy": "keep", "mapping": mapping})
    library.merge()
    library.index()
    first = library.indexes()
    library.source.execute("ALTER TABLE book DROP summary; UPDATE book SET price = 1 WHERE id = 2")
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    assert library.indexes() == first
    documents = library.documents()
    assert {key for key in documents if "summary" not in documents[key]} == {"2"}
    library.source.execute("ALTER TABLE book ADD summary text")
    wait_for(lambda: "summary" in library.made.columns("public.book"))
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    assert library.indexes() != first
    assert library.documents() == library.expected()


@pytest.mark.proof
def test_a_definition_that_fails_some_day_is_mended_by_another_one(library: Library) -> None:
    library.define(BOOKS | {"computed": {"x": "1 / (price - 1000)"}})
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    library.source.execute("UPDATE book SET price = 1000 WHERE id = 5")
    library.merge()
    assert "correct the expression" in str(library.index().tables[0].error)
    library.define(BOOKS)
    assert library.index().exit_code == ExitCode.OK
    assert library.documents() == library.expected()


@pytest.mark.proof
def test_what_a_definition_asks_for_in_vain_is_said(library: Library) -> None:
    writer = BOOKS["embed"][0]
    for change, said in (
        ({"table": "public.nothing"}, "no cut of the lakehouse has all of"),
        ({"include": ["colour"], "exclude": []}, "public.book has no column colour"),
        ({"embed": [writer | {"on": {"id": "writer"}}]}, "public.book has no column writer"),
        (
            {"embed": [writer | {"field": "title"}]},
            "title: public.book already has a column with this name",
        ),
        ({"computed": {"x": "price +"}}, "Spark can't compute the documents"),
        ({"where": "colour = 1"}, "Spark can't compute the documents"),
        ({"mapping": {"writer.colour": {"type": "keyword"}}}, "no field writer.colour"),
        ({"mapping": {"called": {"type": "colour"}}}, "No handler for type [colour]"),
        ({"computed": {"x": "1 / (id - 5)"}}, "correct the expression"),
    ):
        library.define(BOOKS | {"computed": {}, "where": None} | change)
        library.merge()
        summary = library.index()
        assert summary.exit_code not in {ExitCode.OK, ExitCode.NOTHING_TO_DO}
        assert said in str(summary.tables[0].error), str(summary.tables[0].error)
    library.define(BOOKS)
    assert library.index().exit_code == ExitCode.OK
    assert library.documents() == library.expected()


@pytest.mark.proof
def test_documents_that_are_refused_are_made_again_as_they_are_by_then(library: Library) -> None:
    strict = {"called": {"type": "integer"}}
    library.define(BOOKS | {"mapping": strict})
    library.source.execute("UPDATE book SET title = id WHERE id > 3")
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    refused = {"1", "2", "3"}
    assert library.documents().keys() == library.expected().keys() - refused
    (index,) = library.indexes()
    dead_letters = DocumentDeadLetters(library.client, library.search.index_prefix, None, index)
    assert dead_letters.by_document().keys() == refused
    library.source.execute("DELETE FROM book WHERE id = 1; UPDATE book SET title = 5 WHERE id = 2")
    library.merge()
    library.index()
    assert dead_letters.by_document().keys() == {"3"}
    mended = {"called": {"type": "integer", "ignore_malformed": True}}
    library.client.indices.put_mapping(index=index, body={"properties": mended})
    again = library.index(replayed=frozenset({"books"}))
    assert [(result.events, result.updated) for result in again.tables] == [(1, 1)]
    assert dead_letters.by_document() == {}
    assert library.documents() == library.expected()
