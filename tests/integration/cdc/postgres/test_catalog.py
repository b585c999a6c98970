"""The catalog → types resolved, keys, identities, partitions, as in Relation messages."""

from typing import Any

import psycopg
import pytest

from cdc.postgres import catalog, connection
from cdc.postgres.catalog import describe_relation, relation_signature
from cdc.postgres.described import TableDescription
from cdc.records.schema import Column
from cdc.values import codec
from cdc.wal.messages import Commit, Relation
from tests.fixtures.source import (
    Conninfo,
    capture,
    described,
    messages,
    run,
    session,
    streaming,
)

pytestmark = pytest.mark.postgres

TABLES = (
    "CREATE TYPE mood AS ENUM ('fine', 'so-so')",
    "CREATE DOMAIN money2 AS numeric(10,2)",
    "CREATE DOMAIN price AS money2 CHECK (VALUE >= 0)",
    "CREATE DOMAIN tags AS text[]",
    """CREATE TABLE "Odd ""T.x é" ("A b.c" int PRIMARY KEY, "ü'" varchar(5))""",
    """CREATE TABLE typed (b int, a int, p price, ps money2[], m mood, ms mood[] NOT NULL,
       t tags, v int2vector, n numeric(9,3), g int GENERATED ALWAYS AS (1) STORED,
       dropped text, PRIMARY KEY (a, b))""",
    "ALTER TABLE typed DROP COLUMN dropped",
    "CREATE TABLE full_ (id int PRIMARY KEY, v text)",
    "ALTER TABLE full_ REPLICA IDENTITY FULL",
    "CREATE TABLE indexed (id int PRIMARY KEY, k int NOT NULL, v text)",
    "CREATE UNIQUE INDEX indexed_k ON indexed (k) INCLUDE (v)",
    "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_k",
    "CREATE TABLE parted (id int, k int, v text, PRIMARY KEY (k, id)) PARTITION BY LIST (k)",
    "CREATE TABLE parted_2 (v text, k int NOT NULL, id int NOT NULL)",
    "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES IN (2)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1_rest PARTITION OF parted_1 DEFAULT",
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (PRIMARY KEY (id), extra text) INHERITS (parent)",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
)
ROWS = (
    """INSERT INTO "Odd ""T.x é" VALUES (1, 'x')""",
    "INSERT INTO typed (a, b, ms) VALUES (1, 2, '{}')",
    "INSERT INTO full_ VALUES (1)",
    "INSERT INTO indexed VALUES (1, 1)",
    "INSERT INTO parted VALUES (1, 2), (1, 1)",
    "INSERT INTO parent VALUES (1)",
    "INSERT INTO child VALUES (2)",
)
PUBLICATION = "millrace"
"""What it is called where the settings don't say."""
NAMES = ['Odd "T.x é', "child", "full_", "indexed", "parent", "parted", "typed"]


def by_name(tables: list[TableDescription]) -> dict[str, TableDescription]:
    return {table.name.name: table for table in tables}


def columns(table: TableDescription) -> dict[str, Column]:
    return {column.name: column for column in table.columns}


def relations(database: Conninfo) -> list[Relation]:
    settings = capture(database)
    with streaming(database, settings) as stream:
        with session(database) as opened, opened.transaction():
            opened.execute("SET LOCAL search_path = public")
            for row in ROWS:
                opened.execute(row.encode())
        found = messages(stream, lambda message: isinstance(message, Commit))
    return [message for message in found if isinstance(message, Relation)]


def test_tables_are_described(database: Conninfo) -> None:
    run(database, *TABLES)
    with session(database) as opened:
        tables = by_name(described(opened, capture(database)))
    assert sorted(tables) == NAMES
    typed = columns(tables["typed"])
    assert list(typed) == ["b", "a", "p", "ps", "m", "ms", "t", "v", "n"]
    assert {name: (c.type, c.array) for name, c in typed.items()} == {
        "b": ("int4", False),
        "a": ("int4", False),
        "p": ("numeric", False),
        "ps": ("numeric", True),
        "m": ("enum", False),
        "ms": ("enum", True),
        "t": ("text", True),
        "v": ("int2vector", False),
        "n": ("numeric", False),
    }
    assert typed["p"].precision_scale == typed["ps"].precision_scale == (10, 2)
    assert (typed["a"].key, typed["b"].key, typed["p"].key) == (1, 2, None)
    assert [name for name, c in typed.items() if not c.optional] == ["b", "a", "ms"]
    assert typed["n"].declared == "numeric(9,3)"
    assert tables["typed"].primary_key == ("a", "b")
    assert tables["indexed"].identity == {"k"}
    assert tables["full_"].identity == {"id", "v"}
    assert columns(tables['Odd "T.x é'])["ü'"].declared == "character varying(5)"


def test_types_are_described_as_far_as_codecs_and_schemas_need_them(database: Conninfo) -> None:
    run(
        database,
        "CREATE TYPE e AS ENUM ('b', 'a')",
        "ALTER TYPE e ADD VALUE 'c' BEFORE 'a'",
        "CREATE TYPE row_of AS (a int)",
        "CREATE DOMAIN d AS numeric(5,2)",
        "CREATE DOMAIN ds AS d[]",
        "CREATE TABLE x (k int PRIMARY KEY, e e DEFAULT 'a', r row_of, d d DEFAULT 1, da d[],"
        " ds ds, b box[], g int GENERATED ALWAYS AS (k + 1) STORED,"
        " t timestamptz DEFAULT '2020-01-01+02')",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
    found = columns(table)
    assert found["e"].labels == ("b", "c", "a")
    assert (found["e"].typtype, found["r"].typtype, found["d"].typtype) == ("e", "c", "b")
    flags = {name: (c.domain, c.domain_elements, c.array) for name, c in found.items()}
    assert flags["d"] == (True, False, False)
    assert flags["da"] == (False, True, True)
    assert flags["ds"] == (True, True, True)
    assert flags["k"] == (False, False, False)
    assert found["da"].precision_scale == found["ds"].precision_scale == (5, 2)
    assert (found["b"].delimiter, found["da"].delimiter) == (";", ",")
    assert {name: c.default for name, c in found.items() if c.default} == {
        "e": "'a'::public.e",
        "d": "1",
        "t": "'2019-12-31 22:00:00+00'::timestamp with time zone",
    }


def test_a_column_stored_by_an_older_daemon_is_still_read() -> None:
    stored = '{"name": "c", "type": "int4", "type_oid": 23, "declared": "integer"}'
    column = Column.model_validate_json(stored)
    assert (column.default, column.labels, column.typtype) == (None, (), "b")
    assert column.number is None
    assert codec(column) is not None


def test_a_deferrable_primary_key_is_no_key(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE d (id int PRIMARY KEY DEFERRABLE, v text)",
        "ALTER TABLE d REPLICA IDENTITY FULL",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
    assert table.primary_key == ()
    assert columns(table)["id"].key is None


def test_without_a_primary_key_the_replica_identity_s_index_is_the_key(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE i (code text NOT NULL, sub int NOT NULL, v text)",
        "CREATE UNIQUE INDEX i_key ON i (sub, code)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX i_key",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
    assert table.primary_key == ("sub", "code")
    assert [column.key for column in table.columns] == [2, 1, None]


def test_a_partitioned_table_is_one_table_with_its_leaves(database: Conninfo) -> None:
    run(database, *TABLES)
    with session(database) as opened:
        parted = by_name(described(opened, capture(database)))["parted"]
    assert parted.partitioned
    assert [leaf.name.name for leaf in parted.leaves] == ["parted_1_rest", "parted_2"]
    assert [column.name for column in parted.columns] == ["id", "k", "v"]


def test_rows_are_estimated_from_the_planners_density(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE big (id int PRIMARY KEY)",
        "INSERT INTO big SELECT generate_series(1, 10000)",
        "ANALYZE big",
    )
    with session(database) as opened:
        (big,) = described(opened, capture(database))
    assert big.rows_estimated == 10_000
    assert big.pages > 10


def test_catalog_and_relation_message_have_one_signature(database: Conninfo) -> None:
    run(database, *TABLES)
    with session(database) as opened:
        before = by_name(described(opened, capture(database)))
    sent = {relation.name: relation for relation in relations(database)}
    # The stream announces partitions, too, though their rows come as their root's.
    assert sorted(sent) == sorted([*NAMES, "parted_1_rest", "parted_2"])
    with session(database) as opened:
        after = by_name(described(opened, capture(database)))
        for name in NAMES:
            relation = sent[name]
            assert relation_signature(relation) == before[name].signature == after[name].signature
            assert describe_relation(opened, relation, PUBLICATION) == after[name].columns


@pytest.mark.since(15, "column lists and row filters of publications")
def test_column_lists_and_row_filters_of_a_publication_hold(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE lists (id int PRIMARY KEY, secret text, v int)",
        "CREATE PUBLICATION mine FOR TABLE lists (id, v) WHERE (id > 1)",
    )
    settings = capture(database, publication_name="mine", publication_autocreate_mode="disabled")
    with session(database) as opened:
        (lists,) = described(opened, settings)
    assert [column.name for column in lists.columns] == ["id", "v"]
    assert lists.row_filter == "(id > 1)"


def test_a_message_older_than_the_table_is_still_understood(database: Conninfo) -> None:
    run(database, *TABLES)
    sent = {relation.name: relation for relation in relations(database)}
    run(
        database,
        "ALTER TABLE typed RENAME COLUMN a TO alpha",
        "ALTER TABLE typed DROP COLUMN m",
        "DROP TABLE full_, parted",
        """DROP TABLE "Odd ""T.x é" """,
    )
    with session(database) as opened:
        typed = {c.name: c for c in describe_relation(opened, sent["typed"], PUBLICATION)}
        assert (typed["m"].type, typed["m"].optional) == ("enum", True)
        assert {name for name, c in typed.items() if c.key} == {"a", "b"}
        gone = describe_relation(opened, sent["parted"], PUBLICATION)
        assert [(c.name, c.key) for c in gone] == [("id", 1), ("k", 2), ("v", None)]
        gone = describe_relation(opened, sent["full_"], PUBLICATION)
        assert [c.key for c in gone] == [None, None]


def test_a_dropped_type_is_unknown_text(database: Conninfo) -> None:
    run(database, *TABLES)
    sent = {relation.name: relation for relation in relations(database)}
    run(database, "DROP TABLE typed", "DROP TYPE mood")
    with session(database) as opened:
        typed = {c.name: c for c in describe_relation(opened, sent["typed"], PUBLICATION)}
    assert typed["m"].type == "unknown"
    assert typed["p"].type == "numeric"


def test_generated_columns_count_only_where_they_are_published(database: Conninfo) -> None:
    with session(database) as opened:
        if opened.info.server_version < 180_000:
            pytest.skip("PostgreSQL 18 has them")
    run(
        database,
        "CREATE TABLE made (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)",
        "CREATE PUBLICATION mine FOR TABLE made WITH (publish_generated_columns = stored)",
    )
    settings = capture(database, publication_name="mine", publication_autocreate_mode="disabled")
    with session(database) as opened:
        (made,) = described(opened, settings)
    assert [column.name for column in made.columns] == ["id", "g"]


def test_only_a_handful_of_queries_describe_many_tables(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(database, *(f"CREATE TABLE many_{i} (id int PRIMARY KEY)" for i in range(200)))
    asked: list[object] = []
    ask = connection.query

    def counted(opened: psycopg.Connection, statement: str, *more: Any) -> list[tuple[Any, ...]]:
        asked.append(statement)
        return ask(opened, statement, *more)

    monkeypatch.setattr("cdc.postgres.catalog.query", counted)
    monkeypatch.setattr("cdc.postgres.columns.query", counted)
    with session(database) as opened:
        assert len(described(opened, capture(database))) == 200
    assert len(asked) < 10


def test_a_table_is_described_as_it_was_at_one_instant(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")

    def interrupted(*asked: Any) -> list[tuple[Any, ...]]:
        rows = connection.query(*asked)
        run(
            database,
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "ALTER TABLE t ADD COLUMN IF NOT EXISTS late int",
        )
        return rows

    with session(database) as opened:
        before = described(opened, capture(database))
        monkeypatch.setattr(catalog, "query", interrupted)
        assert described(opened, capture(database)) == before
