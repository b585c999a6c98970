"""A publication on a real server → whether Millrace made it."""

import pytest
from structlog.testing import capture_logs

from cdc.postgres.captured import captured_tables, drop_publication, ensure_publication
from cdc.postgres.ownership import is_own
from cdc.postgres.publishing import add, addable
from cdc.records.sql_names import RESERVED_WORDS
from tests.fixtures.source import Conninfo, capture, run, session

pytestmark = pytest.mark.postgres


def test_only_what_this_capture_has_made_is_its_own(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    settings, other = capture(database), capture(database, topic_prefix="another")
    name = settings.publication_name
    with session(database) as opened:
        assert not is_own(opened, settings)
        assert ensure_publication(opened, settings, captured_tables(opened, settings))
        assert is_own(opened, settings)
        assert not is_own(opened, other)
        drop_publication(opened, name)
        run(database, f"CREATE PUBLICATION {name} FOR TABLE t")
        assert not is_own(opened, settings)


def test_another_slot_leaves_it_its_own(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    settings, other = capture(database), capture(database, slot_name="another")
    with session(database) as opened:
        ensure_publication(opened, settings, captured_tables(opened, settings))
        run(database, "CREATE TABLE new (id int PRIMARY KEY)")
        tables = captured_tables(opened, other)
        assert [table.name.name for table in addable(opened, other, tables)] == ["new"]


def test_why_a_table_cant_be_added_is_told_once_with_the_line_that_adds_it(
    database: Conninfo,
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    settings = capture(database)
    with session(database) as opened, session(database) as other, capture_logs() as lines:
        ensure_publication(opened, settings, captured_tables(opened, settings))
        run(database, "CREATE TABLE new (id int PRIMARY KEY)")
        new = addable(opened, settings, captured_tables(opened, settings))
        told: dict[int, str] = {}
        with other.transaction():
            other.execute("LOCK TABLE public.new IN SHARE MODE")
            for _ in range(3):
                assert add(opened, settings, new, told) == {new[0].oid}
        assert add(opened, settings, new, told) == set()
        assert told == {}
    (line,) = [each for each in lines if "can't add" in each["event"]]
    assert f"ALTER PUBLICATION {settings.publication_name} ADD TABLE" in line["remedy"]


def test_reserved_words_are_names_as_any_other(database: Conninfo) -> None:
    """The list is ours: each server has its own, which grows from release to release."""
    settings = capture(database, **{"publication.name": "order"})
    run(database, 'CREATE SCHEMA "user"', 'CREATE TABLE "user"."select" (id int PRIMARY KEY)')
    with session(database) as opened:
        reserved = "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')"
        assert {word for (word,) in opened.execute(reserved)} <= RESERVED_WORDS
        assert ensure_publication(opened, settings, captured_tables(opened, settings))
        run(database, 'CREATE TABLE "user"."table" (id int PRIMARY KEY)')
        new = addable(opened, settings, captured_tables(opened, settings))
        assert [table.name.name for table in new] == ["table"]
        assert add(opened, settings, new, {}) == set()
