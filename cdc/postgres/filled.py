"""Columns that are new to us → those in which rows have values that nobody wrote into them.

A default is kept for the rows that lack it, or PostgreSQL writes the table anew with it. The
catalog tells of most of these, some rows of the others.
https://www.postgresql.org/docs/current/catalog-pg-attribute.html (atthasmissing)
"""

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from cdc.errors import SourceError, SourceUnreachableError
from cdc.postgres.connection import at_one_instant, query

# By pg_inherits: pg_partition_tree would wait for whoever has locked a partition.
_COLUMNS: Final = """
WITH RECURSIVE member (oid) AS (
    SELECT %s::oid UNION SELECT inhrelid FROM pg_inherits JOIN member ON inhparent = member.oid
)
SELECT attname::text,
       bool_or(atthasmissing OR attnotnull OR attidentity <> '' OR attgenerated <> '')
FROM pg_attribute
WHERE attrelid = ANY (ARRAY(SELECT oid FROM member)) AND attnum > 0 AND NOT attisdropped
  AND attname = ANY (%s)
GROUP BY attname
"""
_NAME: Final = """
SELECT nspname::text, relname::text, (
    SELECT min(age(xmin)) FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = ANY (%s))
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = %s
"""
# The stream waits for this: nobody's lock, nor a table whose first pages are empty, may hold it up.
_LIMITS: Final = ("SET LOCAL lock_timeout = '100ms'", "SET LOCAL statement_timeout = '1s'")
_SAMPLE_ROWS: Final = 100


def filled_columns(connection: psycopg.Connection, oid: int, names: Sequence[str]) -> set[str]:
    """Those of the named columns in which rows of a table, or of its partitions, may have values.

    All of them, where the rows can't be looked at right now.
    """
    known = dict(query(connection, _COLUMNS, [oid, list(names)]))
    found = {name for name, is_filled in known.items() if is_filled}
    left = [name for name, is_filled in known.items() if not is_filled]
    try:
        return found | _sampled(connection, oid, left) if left else found
    except SourceUnreachableError:
        if connection.broken:
            raise
        return {*known}  # somebody has locked it, or it takes too long
    except SourceError:
        return found  # without the right to, or the table is gone: nor could it be read


def _sampled(connection: psycopg.Connection, oid: int, names: Sequence[str]) -> set[str]:
    """The columns that have a value in one of the first rows that are no younger than they are."""
    with at_one_instant(connection):
        found = query(connection, _NAME, [list(names), oid])
        if not found:
            return set()
        *table, age = found[0]
        for limit in _LIMITS:
            query(connection, limit)
        columns = [sql.Identifier(name) for name in names]
        has_value = sql.SQL("coalesce(bool_or(num_nonnulls({}) > 0), false)")
        statement = sql.SQL(
            "SELECT {} FROM (SELECT {} FROM {} WHERE age(xmin) >= {} LIMIT {}) AS first_rows"
        ).format(
            sql.SQL(", ").join(has_value.format(column) for column in columns),
            sql.SQL(", ").join(columns),
            sql.Identifier(*table),
            sql.Literal(age),
            sql.Literal(_SAMPLE_ROWS),
        )
        (told,) = query(connection, statement)
    return {name for name, is_told in zip(names, told, strict=True) if is_told}
