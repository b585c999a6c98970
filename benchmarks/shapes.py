"""A number of rows -> tables of several shapes, filled and changed the same each time.

A row of the first is about 270 bytes in pgoutput, 800 as an event.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import psycopg

NAME: Final = "mixed"
WIDE_COLUMNS: Final = 100


class Shape(NamedTuple):
    """A table; ``write`` puts rows of ids from %s to %s into it, or changes those."""

    name: str
    create: str
    write: str
    rows_per_transaction: int = 10_000
    updates: bool = False
    """Whether ``write`` changes rows, which ``fill`` has put there: REPLICA IDENTITY FULL."""
    fill: str = ""


_TEN = """id bigint PRIMARY KEY, name text NOT NULL, email text, balance numeric(14,2),
    active boolean, score double precision, visits integer, seen_at timestamptz,
    tags text[], details jsonb"""
_TEN_VALUES = """SELECT i, 'customer ' || md5(i::text), 'c' || i || '@example.org',
    (i * 7919 %% 100000000) / 100.0, i %% 3 = 0, sqrt(i), i %% 1000,
    timestamptz '2024-01-01 00:00:00+00' + i * interval '7.000123 s',
    ARRAY['group ' || i %% 10, 'area' || i %% 7],
    jsonb_build_object('city', 'C' || i %% 500, 'zip', i %% 99999, 'note', md5((i * 3)::text))"""
_WIDE = ", ".join(
    f"c{n} {('integer', 'text', 'timestamp', 'boolean')[n % 4]}" for n in range(1, WIDE_COLUMNS)
)
_WIDE_ROWS = ", ".join(
    (
        f"(i * {n} %% 1000000)::int",
        f"'text ' || i %% {100 + n}",
        f"timestamp '2024-01-01' + i * interval '{n} s'",
        f"i %% {n + 1} = 0",
    )[n % 4]
    for n in range(1, WIDE_COLUMNS)
)
_SERIES = "FROM generate_series(%s::bigint, %s::bigint) i"
_TEN_ROWS = f"{_TEN_VALUES} {_SERIES}"
_FULL = "full_identity"


def mixed(name: str) -> Shape:
    """The first shape, as a table of this name."""
    return Shape(name, f"CREATE TABLE {name} ({_TEN})", f"INSERT INTO {name} {_TEN_ROWS}")


MIXED: Final = mixed(NAME)
SHAPES: Final = {
    "mixed": MIXED,
    "narrow": Shape(
        "narrow",
        "CREATE TABLE narrow (id bigint PRIMARY KEY, v integer)",
        f"INSERT INTO narrow SELECT i, i %% 1000 {_SERIES}",
    ),
    "wide": Shape(
        "wide",
        f"CREATE TABLE wide (id bigint PRIMARY KEY, {_WIDE})",
        f"INSERT INTO wide SELECT i, {_WIDE_ROWS} {_SERIES}",
    ),
    "jsonb": Shape(
        "documents",
        "CREATE TABLE documents (id bigint PRIMARY KEY, body jsonb)",
        "INSERT INTO documents SELECT i, jsonb_build_object('id', i, 'lines', ("
        "  SELECT jsonb_agg(jsonb_build_object('sku', 'S' || i %% 999, 'n', n, 'note',"
        "  md5(n::text)))"
        f"  FROM generate_series(1, 15) n)) {_SERIES}",
    ),
    "arrays": Shape(
        "arrays",
        "CREATE TABLE arrays (id bigint PRIMARY KEY, n integer[], t text[], x numeric[])",
        "INSERT INTO arrays SELECT i, ARRAY[i %% 7, i %% 11, 42, -5, i %% 1000]::int[],"
        " ARRAY['plain', 'with space', 'n' || i %% 100], ARRAY[i / 100.0, 2.5]::numeric[]"
        f" {_SERIES}",
    ),
    "full": Shape(
        _FULL,
        f"CREATE TABLE {_FULL} ({_TEN}); ALTER TABLE {_FULL} REPLICA IDENTITY FULL",
        f"UPDATE {_FULL} SET visits = visits + 1 WHERE id BETWEEN %s AND %s",
        updates=True,
        fill=f"INSERT INTO {_FULL} {_TEN_ROWS}",
    ),
    "small": Shape(
        "small",
        f"CREATE TABLE small ({_TEN})",
        f"INSERT INTO small {_TEN_ROWS}",
        rows_per_transaction=3,
    ),
}
_PLACES = "generate_series(%s::bigint, %s::bigint) n"
_PRIME: Final = 1_299_709
_CHUNKS: Final = """DO $$ BEGIN FOR start IN {first}..{last} BY {step} LOOP
    {write}; COMMIT; END LOOP; END $$"""


def write(
    connection: psycopg.Connection, shape: Shape, first: int, rows: int, per_transaction: int
) -> Iterator[int]:
    """Write rows from this id on; yields the number after some transactions."""
    if per_transaction >= 1_000:
        for start in range(first, first + rows, per_transaction):
            end = min(start + per_transaction, first + rows)
            connection.execute(shape.write, (start, end - 1))
            yield end - first
        return
    # So small that the round trips would take longest: the server makes the transactions.
    ids = f"start::bigint, least(start + {per_transaction - 1}, {first + rows - 1})::bigint"
    text = shape.write.replace("%s::bigint, %s::bigint", ids).replace("%%", "%")
    connection.execute(
        _CHUNKS.format(first=first, last=first + rows - 1, step=per_transaction, write=text)
    )
    yield rows


def change(connection: psycopg.Connection, table: str, rows: int, changes: int) -> None:
    """Update, delete and insert 40, 10 and 50 % of so many rows of the first shape, each once.

    In ten transactions, and in the order n * prime modulo the rows, which no index has.
    """
    if changes % 100 or changes > rows * 2 or not rows % _PRIME:
        raise ValueError(f"{changes:,} changes of {rows:,} rows aren't possible")
    there = f"1 + n * {_PRIME} %% {rows}"
    connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
    step = changes // 100
    for number in range(10):
        updates, deletes, inserts = number * 4 * step, (40 + number) * step, number * 5 * step
        with connection.transaction():
            connection.execute(
                f"UPDATE {table} SET name = 'changed ' || name, balance = balance + 1.5,"
                " visits = visits + 1, seen_at = seen_at + interval '1 day'"
                f" FROM {_PLACES} WHERE id = {there}",
                (updates, updates + 4 * step - 1),
            )
            connection.execute(
                f"DELETE FROM {table} USING {_PLACES} WHERE id = {there}",
                (deletes, deletes + step - 1),
            )
            connection.execute(
                f"INSERT INTO {table} {_TEN_VALUES} FROM (SELECT {rows} + 1 + n * {_PRIME}"
                f" %% {changes // 2} AS i FROM {_PLACES}) AS new",
                (inserts, inserts + 5 * step - 1),
            )


def put(connection: psycopg.Connection, table: str, ids: str) -> None:
    """Write rows of the first shape, whose ids a query names as ``i``, over those there are."""
    changed = ", ".join(f"{name} = excluded.{name}" for name in ("visits", "balance", "seen_at"))
    connection.execute(
        f"INSERT INTO {table} {_TEN_VALUES.replace('%%', '%')} FROM ({ids}) AS new"
        f" ON CONFLICT (id) DO UPDATE SET {changed}"
    )
