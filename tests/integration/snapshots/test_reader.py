"""Chunks read by COPY: the same rows as SELECT, with any values in any place."""

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.postgres.described import TableDescription
from cdc.stream.translation import Limits
from snapshots.copied_rows import CopiedRow
from snapshots.reader import ALL, LIMITS, of_range
from tests.fixtures.read_rows import batches, selects
from tests.fixtures.source import Conninfo, capture, described, run, session

pytestmark = pytest.mark.postgres

TEXT = st.one_of(
    st.none(),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30),
    st.text(st.sampled_from("\\N\t\n\r\b\f\v.tnr'\",{} "), max_size=12),
)


def rows_of(
    opened: psycopg.Connection,
    table: TableDescription,
    *,
    chunk_bytes: int = 8192,
    limits: Limits = LIMITS,
) -> list[CopiedRow]:
    return [
        row
        for select in selects(table, chunk_bytes)
        for batch in batches(opened, select, len(table.columns), limits)
        for row in batch
    ]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=20))
def test_weird_text_comes_as_select_gives_it(
    database: Conninfo, rows: list[tuple[str | None, str | None]]
) -> None:
    run(database, 'CREATE TABLE IF NOT EXISTS "W e.i\'rd é" ("a\tb" text, "ü.x" text)')
    with session(database) as opened:
        opened.execute('TRUNCATE public."W e.i\'rd é"')
        with opened.cursor() as cursor:
            cursor.executemany('INSERT INTO public."W e.i\'rd é" VALUES (%s, %s)', rows)
        (table,) = described(opened, capture(database))
        expected = [
            tuple(value if value is None else value.encode() for value in row) for row in rows
        ]
        assert rows_of(opened, table) == expected


def test_every_chunk_size_gives_every_row_once(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', i % 300) FROM generate_series(1, 5000) i",
        "DELETE FROM t WHERE id % 7 = 0",
        "UPDATE t SET v = 'moved' WHERE id % 5 = 0",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
        ids = sorted(i for i in range(1, 5001) if i % 7)
        for chunk_bytes in (8192, 5 * 8192, 1 << 30):
            rows = rows_of(opened, table, chunk_bytes=chunk_bytes)
            assert sorted(int(row[0] or 0) for row in rows) == ids


def test_a_chunk_reads_its_pages_alone(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 50000)",
    )
    with session(database) as opened:
        plan_lines = opened.execute(
            "EXPLAIN SELECT id FROM ONLY public.t WHERE ctid >= '(0,0)' AND ctid < '(4,0)'"
        ).fetchall()
    assert "Tid Range Scan" in str(plan_lines)


def test_rows_appended_after_planning_are_read(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with session(database) as opened:
        (table,) = described(opened, capture(database))
        run(database, "INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series(1, 500) i")
        assert table.pages == 0
        assert len(rows_of(opened, table)) == 500


def test_partitions_have_their_roots_columns_and_parents_only_their_own_rows(
    database: Conninfo,
) -> None:
    run(
        database,
        "CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE p1 (v text, gone int, k int NOT NULL, id int NOT NULL)",
        "ALTER TABLE p1 DROP COLUMN gone",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p DEFAULT",
        "INSERT INTO p VALUES (1, 1, 'a'), (2, 2, 'b')",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE kid (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO kid VALUES (2)",
    )
    with session(database) as opened:
        kid, parted, parent = described(opened, capture(database))
        assert sorted(rows_of(opened, parted)) == [(b"1", b"1", b"a"), (b"2", b"2", b"b")]
        assert rows_of(opened, parent) == [(b"1",)]
        assert rows_of(opened, kid) == [(b"2",)]


def test_what_a_publication_leaves_out_is_not_read(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, secret text, v text)",
        "INSERT INTO t VALUES (1, 's', 'a'), (2, 's', 'b'), (3, 's', NULL)",
        "CREATE PUBLICATION own FOR TABLE t (v, id) WHERE (v <> 'a' OR v IS NULL)",
    )
    own = capture(database, publication_name="own", publication_autocreate_mode="disabled")
    with session(database) as opened:
        (table,) = described(opened, own)
        assert rows_of(opened, table) == [(b"2", b"b"), (b"3", None)]


def test_a_table_without_columns_has_rows_all_the_same(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t ()",
        "INSERT INTO t DEFAULT VALUES",
        "INSERT INTO t DEFAULT VALUES",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
        assert rows_of(opened, table) == [(), ()]


def test_batches_are_bounded_by_rows_and_by_bytes(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 100) i",
    )
    with session(database) as opened:
        (table,) = described(opened, capture(database))
        (leaf,) = table.leaves
        ids, both = (of_range(leaf, names, ALL, []) for names in (["id"], ["id", "v"]))
        by_rows = [len(b) for b in batches(opened, ids, 1, Limits(30, 1 << 20))]
        by_bytes = [len(b) for b in batches(opened, both, 2, Limits(1_000, 5_000))]
    assert (max(by_rows), sum(by_rows)) == (30, 100)
    assert (max(by_bytes), sum(by_bytes)) == (5, 100)
