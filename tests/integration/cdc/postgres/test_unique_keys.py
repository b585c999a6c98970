"""Debezium's keys of tables, against a real catalog."""

from cdc.postgres.captured import keyed_columns, keyed_tables
from tests.fixtures.source import Conninfo, capture, described, run, session


def test_a_table_without_a_primary_key_is_keyed_by_its_first_unique_index(
    database: Conninfo,
) -> None:
    run(
        database,
        "CREATE TABLE keyed (id int PRIMARY KEY, v text UNIQUE)",
        "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, v text)",
        "CREATE TABLE none (v text)",
        "CREATE TABLE loose (a int, b text, c int)",
        "CREATE UNIQUE INDEX z_first ON loose (c)",
        "CREATE UNIQUE INDEX a_first ON loose (b, a)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("later", "none", "loose")),
    )
    with session(database) as opened:
        tables = keyed_tables(opened, described(opened, capture(database)))
        again = {
            table.name.name: keyed_columns(opened, table.oid, table.columns) for table in tables
        }
    assert {table.name.name: table.primary_key for table in tables} == {
        "keyed": ("id",),
        "later": ("id",),
        "loose": ("b", "a"),
        "none": (),
    }
    loose = next(table for table in tables if table.name.name == "loose")
    assert [(column.name, column.key, column.optional) for column in loose.columns] == [
        ("a", 2, True),
        ("b", 1, True),
        ("c", None, True),
    ]
    assert again["loose"] == loose.columns
