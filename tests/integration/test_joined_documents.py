"""Joined documents are what the source's own SQL makes of its tables, document for document."""

import json
import random
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
from sinks.search.run import run_search
from sinks.summary import RunSummary
from tests.fixtures.pipeline import RunningPipeline

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

    def expected(self) -> dict[str, dict[str, Any]]:
        rows = self.source.execute(SQL).fetchall()
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
    for transactions in (1, 3, 30, 60):
        library.live(choose, transactions)
        library.merge()
        assert library.index().exit_code in {ExitCode.OK, ExitCode.NOTHING_TO_DO}, library.said
        assert library.documents() == library.expected()
    library.source.execute("TRUNCATE review; UPDATE author SET name = 'all of them'")
    library.merge()
    library.index()
    assert library.documents() == library.expected()
    assert library.index().exit_code == ExitCode.NOTHING_TO_DO
