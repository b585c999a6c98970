"""The publication → made as configured, or its difference, with the line that corrects it."""

import pytest

from cdc.errors import PublicationError, SourcePrivilegeError
from cdc.postgres.captured import captured_tables, drop_publication, ensure_publication
from cdc.postgres.connection import query
from tests.fixtures.source import Conninfo, capture, run, session

pytestmark = pytest.mark.postgres

TWO_TABLES = ("CREATE TABLE a (id int PRIMARY KEY)", 'CREATE TABLE "B c" (id int PRIMARY KEY)')
COMPLETE = "WITH (publish_via_partition_root = true)"


def ensure(database: Conninfo, **more: str) -> bool:
    settings = capture(database, **more)
    with session(database) as opened:
        return ensure_publication(opened, settings, captured_tables(opened, settings))


def refusal(database: Conninfo) -> str:
    with pytest.raises(PublicationError) as caught:
        ensure(database)
    return str(caught.value)


def mend(database: Conninfo, text: str) -> None:
    """Run the lines that a refusal shows, as a user would."""
    lines = [line.strip() for line in text.splitlines()]
    run(database, *(line for line in lines if line.endswith(";")))


def test_it_is_made_once_and_found_again(database: Conninfo) -> None:
    run(database, *TWO_TABLES, "CREATE TABLE kid () INHERITS (a)")
    assert ensure(database, table_include_list=r"public\.a")
    assert not ensure(database, table_include_list=r"public\.a")
    with session(database) as opened:
        tables = query(opened, "SELECT tablename FROM pg_publication_tables")
        assert tables == [("a",)], "not its child"
        assert drop_publication(opened, "millrace")
        assert not drop_publication(opened, "millrace")


@pytest.mark.parametrize(
    ("existing", "words"),
    [
        (f"FOR TABLE a {COMPLETE}", ["lacks public.B c", 'ADD TABLE ONLY public."B c";']),
        (
            f'FOR TABLE a, "B c", other.d {COMPLETE}',
            ["it also publishes other.d", "DROP TABLE ONLY other.d;"],
        ),
        ('FOR TABLE a, "B c"', ["all operations", "publish_via_partition_root = true);"]),
        (
            f"FOR TABLE a, \"B c\" {COMPLETE[:-1]}, publish = 'insert')",
            ["all operations", "SET (publish = 'insert, update, delete, truncate'"],
        ),
        (f"FOR ALL TABLES {COMPLETE}", ["it also publishes other.d", "DROP PUBLICATION millrace;"]),
        pytest.param(
            f"FOR TABLES IN SCHEMA public, other {COMPLETE}",
            ["it also publishes other.d", 'SET TABLE ONLY public."B c", ONLY public.a;'],
            marks=pytest.mark.since(15, "publications of schemas"),
        ),
    ],
)
def test_another_publication_is_explained_and_the_lines_shown_mend_it(
    database: Conninfo, existing: str, words: list[str]
) -> None:
    run(database, *TWO_TABLES, "CREATE SCHEMA other", "CREATE TABLE other.d (id int PRIMARY KEY)")
    run(database, f"CREATE PUBLICATION millrace {existing}")
    with session(database) as opened:
        settings = capture(database, table_exclude_list=r"other\..*")
        tables = captured_tables(opened, settings)
        with pytest.raises(PublicationError) as caught:
            ensure_publication(opened, settings, tables)
        text = str(caught.value)
        for word in words:
            assert word in text
        mend(database, text)
        assert not ensure_publication(opened, settings, tables)


def test_a_user_without_the_right_gets_the_line_for_the_owner(database: Conninfo) -> None:
    run(database, *TWO_TABLES, "CREATE ROLE reader LOGIN PASSWORD 'reader'")
    settings = capture(database)
    try:
        with session(database, user="reader", password="reader") as opened:
            tables = captured_tables(opened, settings)
            with pytest.raises(SourcePrivilegeError) as caught:
                ensure_publication(opened, settings, tables)
        assert "publication.autocreate.mode = disabled" in str(caught.value)
        mend(database, str(caught.value))
        assert not ensure(database)
    finally:
        run(database, "DROP ROLE reader")


def test_an_own_publication_decides_what_is_captured(database: Conninfo) -> None:
    run(database, *TWO_TABLES, "CREATE PUBLICATION own FOR TABLE a WITH (publish = 'insert')")
    settings = capture(database, publication_name="own", publication_autocreate_mode="disabled")
    with session(database) as opened:
        tables = captured_tables(opened, settings)
        assert [str(table.name) for table in tables] == ["public.a"]
        assert not ensure_publication(opened, settings, tables)


def test_an_own_publication_that_is_missing_is_said(database: Conninfo) -> None:
    with pytest.raises(PublicationError, match="doesn't exist"):
        ensure(database, publication_autocreate_mode="disabled")
