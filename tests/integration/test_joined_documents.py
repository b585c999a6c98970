"""Joined documents are what the source's own SQL makes of its tables, document for document."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.settings import Settings
from cdc.settings.search import SearchSettings
from deploy.local.processes import Process
from sinks.delta.run import run_lakehouse
from sinks.search.client import connect
from sinks.search.joined.record import Loading
from sinks.search.joined.run import _Documents
from sinks.search.progress import Ledger
from sinks.search.run import run_search
from sinks.summary import RunSummary
from tests.fixtures.pipeline import RunningPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch("3"),
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
SCHEMA: Final = """
    CREATE TABLE country (code text PRIMARY KEY, name text);
    CREATE TABLE author (id int PRIMARY KEY, name text, country text, born date);
    CREATE TABLE book (
        id bigint PRIMARY KEY, title text, author int, price numeric(10, 2), hidden bool NOT NULL,
        summary text);
    ALTER TABLE book ALTER summary SET STORAGE EXTERNAL;
    CREATE TABLE review (
        book bigint, number int, stars int, words text, reader int, PRIMARY KEY (book, number));
    CREATE TABLE reader (id int PRIMARY KEY, name text, secret text);
    CREATE TABLE tag (id int PRIMARY KEY, name text);
    CREATE TABLE book_tag (tag int, book bigint, PRIMARY KEY (tag, book));
    INSERT INTO country SELECT 'c' || i, 'country ' || i FROM generate_series(1, 4) i;
    INSERT INTO author SELECT i, 'author ' || i, 'c' || i % 6, '1950-01-01'::date + i
        FROM generate_series(1, 12) i;
    INSERT INTO book SELECT i, 'title ' || i, i % 14, i / 4.0, i % 9 = 0, repeat('s' || i, 900)
        FROM generate_series(1, 60) i;
    INSERT INTO reader SELECT i, 'reader ' || i, 'x' FROM generate_series(1, 10) i;
    INSERT INTO review SELECT i % 60, i, i % 5, 'words ' || i, i % 12
        FROM generate_series(1, 150) i;
    INSERT INTO tag SELECT i, 'tag ' || i FROM generate_series(1, 8) i;
    INSERT INTO book_tag SELECT i % 9, i % 50 FROM generate_series(1, 100) i
        ON CONFLICT DO NOTHING;
"""
BOOKS: Final[dict[str, Any]] = {
    "name": "books",
    "table": "public.book",
    "exclude": ["hidden", "author"],
    "rename": {"title": "called"},
    "where": "NOT hidden",
    "computed": {"best": "array_max(reviews.stars)", "double": "price * 2 > 20"},
    "embed": [
        {
            "field": "writer",
            "table": "public.author",
            "on": {"id": "author"},
            "exclude": ["country"],
            "computed": {"from": "upper(home.name)"},
            "embed": [
                {"field": "home", "table": "public.country", "on": {"code": "country"}},
            ],
        },
        {
            "field": "reviews",
            "table": "public.review",
            "on": {"book": "id"},
            "many": True,
            "where": "stars > 0",
            "exclude": ["reader", "book"],
            "embed": [
                {
                    "field": "by",
                    "table": "public.reader",
                    "on": {"id": "reader"},
                    "include": ["name"],
                }
            ],
        },
        {
            "field": "tags",
            "table": "public.tag",
            "through": {"table": "public.book_tag", "on": {"book": "id"}},
            "on": {"id": "tag"},
        },
    ],
}
SQL: Final = """
    SELECT b.id::text, jsonb_strip_nulls(jsonb_build_object(
        'id', b.id, 'called', b.title, 'price', b.price::text, 'summary', b.summary,
        'double', b.price * 2 > 20,
        'best', (SELECT max(stars) FROM review r WHERE r.book = b.id AND stars > 0),
        'writer', (SELECT jsonb_build_object(
            'id', a.id, 'name', a.name, 'born', a.born, 'from', upper(c.name),
            'home', CASE WHEN c.code IS NOT NULL THEN
                jsonb_build_object('code', c.code, 'name', c.name) END)
            FROM author a LEFT JOIN country c ON c.code = a.country WHERE a.id = b.author),
        'reviews', (SELECT jsonb_agg(jsonb_build_object(
            'number', r.number, 'stars', r.stars, 'words', r.words,
            'by', (SELECT jsonb_build_object('name', p.name) FROM reader p WHERE p.id = r.reader))
            ORDER BY r.number)
            FROM review r WHERE r.book = b.id AND stars > 0),
        'tags', (SELECT jsonb_agg(jsonb_build_object('id', t.id, 'name', t.name) ORDER BY t.id)
            FROM book_tag bt JOIN tag t ON t.id = bt.tag WHERE bt.book = b.id)
    ))::text FROM book b WHERE NOT hidden
"""
CHANGES: Final = [
    "UPDATE country SET name = name || '!' WHERE code = 'c{small}'",
    "DELETE FROM country WHERE code = 'c{small}'",
    "INSERT INTO country VALUES ('c{small}', 'new') ON CONFLICT DO NOTHING",
    "UPDATE author SET name = name || '!' WHERE id = {small}",
    "UPDATE author SET country = 'c{other}' WHERE id = {small}",
    "UPDATE author SET id = {fresh} WHERE id = {small}",
    "UPDATE book SET author = {small} WHERE id = {one}",
    "UPDATE book SET hidden = NOT hidden WHERE id = {one}",
    "UPDATE book SET price = price + 1 WHERE id = {one}",
    "UPDATE book SET summary = repeat('t{fresh}', 800) WHERE id = {one}",
    "UPDATE book SET id = {fresh} WHERE id = {one}",
    "DELETE FROM book WHERE id = {one}",
    "INSERT INTO book VALUES ({one}, 'again', {small}, 1, false, NULL) ON CONFLICT DO NOTHING",
    "UPDATE review SET words = NULL, stars = {other} % 6 WHERE book = {one}",
    "UPDATE review SET book = {one} WHERE number = {two}",
    "DELETE FROM review WHERE number BETWEEN {two} AND {two} + 3",
    "INSERT INTO review VALUES ({one}, {fresh}, 5, 'fresh', {small})",
    "UPDATE reader SET name = name || '!' WHERE id = {small}",
    "UPDATE reader SET secret = secret || '!' WHERE id = {small}",
    "DELETE FROM tag WHERE id = {small}",
    "INSERT INTO tag VALUES ({small}, 'back') ON CONFLICT (id) DO UPDATE SET name = 'once more'",
    "DELETE FROM book_tag WHERE book = {one}",
    "INSERT INTO book_tag VALUES ({small}, {one}) ON CONFLICT DO NOTHING",
    "INSERT INTO review VALUES ({one}, {fresh}, 1, 'gone', 1); DELETE FROM review WHERE stars = 1",
]


class Library:
    """The source, its lakehouse, and the index of its books."""

    def __init__(
        self,
        made: RunningPipeline,
        spark: "SparkSession",
        database: Mapping[str, str],
        **more: Any,
    ) -> None:
        self.made = made
        self.spark = spark
        self.said: list[str] = []
        self.source = psycopg.connect(make_conninfo(**database), autocommit=True)
        self.source.execute(SCHEMA)
        self.daemon: Process = made.catch_up()
        self.define(BOOKS | more)

    def define(self, *documents: Mapping[str, Any]) -> None:
        search = self.made.settings.search
        assert search is not None
        told = search.model_dump(by_alias=True) | {"tables": [], "documents": documents}
        self.search = SearchSettings.model_validate(told)
        self.settings: Settings = self.made.settings.model_copy(update={"search": self.search})
        self.client = connect(self.search)

    def merge(self) -> None:
        """The log, and then the lakehouse, have all that the source has."""
        self.made.wait_until_logged(self.made.wal_end(), self.daemon)
        run_lakehouse(self.settings, lambda _records=0: self.spark, print)

    def index(self) -> RunSummary:
        return run_search(self.settings, lambda _records=0: self.spark, self.said.append)

    def documents(self, name: str = "books") -> dict[str, dict[str, Any]]:
        alias = f"{self.search.index_prefix}{name}"
        answer = self.client.search(index=alias, body={"size": 1_000})
        hits = {hit["_id"]: dict(hit["_source"]) for hit in answer["hits"]["hits"]}
        for one in hits.values():
            one.pop("_millrace_position")
        return hits

    def indexes(self, name: str = "books") -> list[str]:
        return list(self.client.indices.get_alias(name=f"{self.search.index_prefix}{name}"))

    def expected(self, sql: str = SQL) -> dict[str, dict[str, Any]]:
        rows = self.source.execute(sql.encode()).fetchall()
        return {key: json.loads(text) for key, text in rows}

    def live(self, choose: random.Random, transactions: int) -> None:
        """Random changes, some in transactions that end in nothing."""
        for _ in range(transactions):
            with self.source.transaction(force_rollback=choose.random() < 0.1):
                for _ in range(choose.randint(1, 3)):
                    statement = choose.choice(CHANGES).format(
                        one=choose.randint(1, 60),
                        two=choose.randint(1, 150),
                        small=choose.randint(1, 12),
                        other=choose.randint(1, 12),
                        fresh=choose.randint(1_000, 10**9),
                    )
                    self.source.execute(statement.encode())


@pytest.fixture
def library(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> Library:
    return Library(pipeline(search=True), spark, database)


def test_documents_are_what_the_sources_sql_says_whatever_changes(library: Library) -> None:
    choose = random.Random(4)  # noqa: S311 (repeatable is what it has to be)
    library.merge()
    first = library.index()
    assert first.exit_code == ExitCode.OK, library.said
    assert library.documents() == library.expected()
    library.live(choose, 60)
    library.merge()
    assert library.index().exit_code == ExitCode.OK, library.said
    assert library.documents() == library.expected()
    library.source.execute("TRUNCATE review; UPDATE author SET name = 'all of them'")
    library.merge()
    library.index()
    assert library.documents() == library.expected()
    assert library.index().exit_code == ExitCode.NOTHING_TO_DO


def test_a_run_that_died_is_finished_before_the_next_cut(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came by the first cut and is gone by the second one is told by neither alone."""
    library.merge()
    library.index()
    insert = "INSERT INTO review VALUES (%s, %s, 5, 'for a moment', 1)"
    places = [
        "sinks.search.indexes.TableIndex.refresh",
        "sinks.search.progress.Ledger.write",
    ]
    for number, place in enumerate(places, 1):
        library.source.execute(insert, [number, 9_000 + number])
        library.merge()
        with monkeypatch.context() as patch:
            _dies(patch, place)
            with pytest.raises(ZeroDivisionError):
                library.index()
        library.source.execute("DELETE FROM review WHERE number = %s", [9_000 + number])
        library.merge()
        library.index()
        assert library.documents() == library.expected()


def _dies(patch: pytest.MonkeyPatch, place: str) -> None:
    """Let a run die where it is about to do something; of the progress, when it is done."""
    if place != "sinks.search.progress.Ledger.write":
        patch.setattr(place, lambda *_, **__: 1 / 0)
        return
    write = Ledger.write

    def last(self: Ledger, document: str, record: Any, *rest: Any) -> Any:
        if document.startswith("document/") and record.to is None:
            raise ZeroDivisionError
        return write(self, document, record, *rest)

    patch.setattr(place, last)


def test_a_new_definition_is_a_new_index_beside_the_one_that_serves(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.merge()
    library.index()
    (before,) = library.indexes()
    assert library.documents() == library.expected()
    monkeypatch.setattr("sinks.search.joined.run.PART_ROWS", 30)
    load, parts = _Documents._load, 0

    def loaded(self: _Documents, loading: Loading) -> Any:
        """A part, before which the source has changed, and the lakehouse, too."""
        nonlocal parts
        parts += 1
        assert library.indexes() == [before], "it serves until the new one is complete"
        assert library.documents() == library.expected(), "and keeps up"
        if parts == 2:
            raise ZeroDivisionError
        library.source.execute("UPDATE author SET name = name || '+'")
        library.source.execute("UPDATE book SET id = id + 10000 WHERE id %% 7 = %s", [parts])
        library.source.execute("DELETE FROM book WHERE id %% 10 = %s", [parts])
        library.merge()
        return load(self, loading)

    monkeypatch.setattr(_Documents, "_load", loaded)
    library.define(BOOKS | {"mapping": {"called": {"type": "keyword"}}})
    with pytest.raises(ZeroDivisionError):
        library.index()
    library.index()
    assert parts == 3
    (after,) = library.indexes()
    assert after != before
    assert library.documents() == library.expected()
    found = library.client.indices.get_mapping(index=after)[after]["mappings"]["properties"]
    assert found["called"] == {"type": "keyword"}
    assert found["reviews"]["type"] == "nested"
    assert found["writer"]["properties"]["born"]["type"] == "date"
    assert library.client.indices.exists(index=before) is False


def test_columns_that_come_change_and_go(library: Library) -> None:
    """A new one joins the index; where one doesn't fit any more, another index takes its place."""
    library.merge()
    library.index()
    (first,) = library.indexes()
    for statement, is_same in (
        ("ALTER TABLE author ADD COLUMN mail text DEFAULT 'a@b'; UPDATE author SET born = NULL", 1),
        ("ALTER TABLE review ALTER stars TYPE bigint; UPDATE review SET stars = 7000000000", 0),
        ("ALTER TABLE book DROP COLUMN summary; DELETE FROM book WHERE id = 1", 0),
    ):
        library.source.execute(statement.encode())
        library.merge()
        library.merge()  # rows that the change of a column has changed are read again
        assert library.index().exit_code == ExitCode.OK
        (index,) = library.indexes()
        assert (index == first) is bool(is_same), library.said
        first = index
    expected = library.expected(SQL.replace("'summary', b.summary,", ""))
    for one in expected.values():
        if "writer" in one:
            one["writer"]["mail"] = "a@b"
    assert library.documents() == expected

    # A lakehouse that was made anew has other versions of everything.
    shutil.rmtree(library.made.folder / "lakehouse")
    library.source.execute("DELETE FROM book WHERE id < 10")
    library.merge()
    assert library.index().exit_code == ExitCode.OK
    assert any("made anew" in line for line in library.said)
    assert len(library.documents()) == len(library.expected(SQL.replace("b.summary", "NULL")))


def test_what_a_definition_asks_for_in_vain_is_said(library: Library) -> None:
    writer = BOOKS["embed"][0]
    for change, said in (
        ({"table": "public.nothing"}, "no cut of the lakehouse has all of"),
        ({"include": ["colour"], "exclude": []}, "public.book has no column colour"),
        ({"embed": [writer | {"on": {"id": "writer"}}]}, "public.book has no column writer"),
        ({"embed": [writer | {"field": "title"}]}, "title: public.book has a column of that name"),
        ({"computed": {"x": "price +"}}, "Spark can't make the documents"),
        ({"where": "colour = 1"}, "Spark can't make the documents"),
        ({"mapping": {"writer.colour": {"type": "keyword"}}}, "no field writer.colour"),
        ({"mapping": {"called": {"type": "colour"}}}, "No handler for type [colour]"),
        ({"computed": {"x": "1 / (id - 5)"}}, "a value that an expression doesn't take"),
    ):
        library.define(BOOKS | {"computed": {}, "where": None} | change)
        library.merge()
        summary = library.index()
        assert summary.exit_code not in {ExitCode.OK, ExitCode.NOTHING_TO_DO}
        assert said in str(summary.tables[0].error), str(summary.tables[0].error)
    library.define(BOOKS)
    assert library.index().exit_code == ExitCode.OK
    assert library.documents() == library.expected()
