"""A number of rows -> a table of ten columns of mixed types, filled and changed the same each time.

One row is about 210 bytes in pgoutput, 700 as an event. A second, small table takes the updates
whose way is timed.
"""

from collections.abc import Iterator
from typing import Final

import psycopg

NAME: Final = "mixed"
BEATS: Final = "beat"
BEAT_ROWS: Final = 1_000
TABLES: Final = f"""
    CREATE TABLE {NAME} (
        id bigint PRIMARY KEY, name text NOT NULL, email text, balance numeric(14,2),
        active boolean, score double precision, visits integer, seen_at timestamptz,
        tags text[], details jsonb
    );
    CREATE TABLE {BEATS} (id integer PRIMARY KEY, beats integer NOT NULL, at timestamptz);
    INSERT INTO {BEATS} SELECT i, 0, now() FROM generate_series(1, {BEAT_ROWS}) i;
"""
_FILL: Final = f"""
    INSERT INTO {NAME} SELECT i, 'customer ' || md5(i::text), 'c' || i || '@example.org',
        (i * 7919 %% 100000000) / 100.0, i %% 3 = 0, sqrt(i), i %% 1000,
        timestamptz '2024-01-01 00:00:00+00' + i * interval '7.000123 s',
        ARRAY['group ' || i %% 10, 'area' || i %% 7],
        jsonb_build_object('city', 'C' || i %% 500, 'zip', i %% 99999, 'note', md5((i * 3)::text))
    FROM generate_series(%s::bigint, %s::bigint) i
"""


def fill(
    connection: psycopg.Connection, first: int, rows: int, rows_per_transaction: int
) -> Iterator[int]:
    """Insert rows from this id on; yields the number after each transaction."""
    for start in range(first, first + rows, rows_per_transaction):
        end = min(start + rows_per_transaction, first + rows)
        connection.execute(_FILL, (start, end - 1))
        yield end - first


def change(connection: psycopg.Connection) -> int:
    """Update one row in twenty and delete one in a hundred; returns how many rows that were."""
    updated = connection.execute(
        f"UPDATE {NAME} SET visits = visits + 1, balance = balance + 1.5 WHERE id % 20 = 0"
    )
    deleted = connection.execute(f"DELETE FROM {NAME} WHERE id % 100 = 1")
    return updated.rowcount + deleted.rowcount
