"""Columns in the catalog → their types, and the columns that DDL has filled in existing rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.errors import SourceError, SourceUnreachableError
from cdc.postgres.connection import at_one_instant, query
from cdc.records.schema import Column
from cdc.wal.messages import RelationColumn

_OF_TYPE: Final = (
    "type", "array", "modifier", "declared", "labels", "domain", "domain_elements", "typtype",
    "delimiter",
)  # fmt: skip
"""Names of _RESOLVE's columns about a type, as in Column."""
# A type that the catalog no longer has is "unknown": its values are plain text to us.
_RESOLVE: Final = """
WITH RECURSIVE asked AS (
    SELECT DISTINCT oid, modifier FROM unnest(%s::oid[], %s::int4[]) AS a (oid, modifier)
), step (asked_oid, asked_modifier, oid, modifier, is_array, domain_elements, depth) AS (
    SELECT oid, modifier, oid, modifier, false, false, 0 FROM asked
  UNION ALL
    SELECT s.asked_oid, s.asked_modifier,
           CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
           CASE WHEN t.typtype = 'd' AND s.modifier < 0 THEN t.typtypmod ELSE s.modifier END,
           s.is_array OR t.typtype <> 'd', s.domain_elements OR (s.is_array AND t.typtype = 'd'),
           s.depth + 1
    FROM step s JOIN pg_type t ON t.oid = s.oid LEFT JOIN pg_type e ON e.oid = t.typelem
    WHERE t.typtype = 'd' OR (e.typarray = t.oid AND NOT s.is_array)
)
SELECT DISTINCT ON (s.asked_oid, s.asked_modifier)
       s.asked_oid, s.asked_modifier,
       CASE t.typtype WHEN 'e' THEN 'enum' ELSE coalesce(t.typname::text, 'unknown') END,
       s.is_array, s.modifier, format_type(s.asked_oid, s.asked_modifier),
       array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder),
       coalesce(a.typtype = 'd', false), s.domain_elements,
       coalesce(t.typtype::text, 'b'), t.typdelim::text
FROM step s LEFT JOIN pg_type t ON t.oid = s.oid LEFT JOIN pg_type a ON a.oid = s.asked_oid
ORDER BY s.asked_oid, s.asked_modifier, s.depth DESC
"""


# Uses pg_inherits, as pg_partition_tree would wait for locks on partitions.
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
# The stream waits for this. So neither a lock nor empty first pages may hold it up.
_LIMITS: Final = ("SET LOCAL lock_timeout = '100ms'", "SET LOCAL statement_timeout = '1s'")
_SAMPLE_ROWS: Final = 100


def resolve(
    connection: psycopg.Connection, attributes: Iterable[RelationColumn]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Look up the types of columns, by (type OID, modifier), with Column's names."""
    wanted = sorted({(attribute.type_oid, attribute.modifier) for attribute in attributes})
    rows = query(
        connection, _RESOLVE, [[oid for oid, _ in wanted], [modifier for _, modifier in wanted]]
    )
    return {
        (oid, modifier): dict(zip(_OF_TYPE, resolved, strict=True))
        for oid, modifier, *resolved in rows
    }


def column(
    attribute: RelationColumn,
    types: dict[tuple[int, int], dict[str, Any]],
    *,
    optional: bool,
    key: int | None,
    default: str | None,
    number: int | None,
) -> Column:
    """Return a column from pg_attribute or the stream, with its type. A key always has a value."""
    return Column(
        **types[attribute.type_oid, attribute.modifier],
        name=attribute.name,
        type_oid=attribute.type_oid,
        optional=optional and key is None,
        key=key,
        default=default,
        number=number,
    )


def filled_columns(connection: psycopg.Connection, oid: int, names: Sequence[str]) -> set[str]:
    """Return the named columns that may have values in rows of a table, or of its partitions.

    Return all of them if the rows can't be read right now.
    """
    existing = dict(query(connection, _COLUMNS, [oid, list(names)]))
    filled = {name for name, is_filled in existing.items() if is_filled}
    doubtful = [name for name, is_filled in existing.items() if not is_filled]
    try:
        return filled | _sampled(connection, oid, doubtful) if doubtful else filled
    except SourceUnreachableError:
        if connection.broken:
            raise
        return set(existing)  # it is locked, or takes too long
    except SourceError:
        return filled  # without the right, or the table: no read would work either


def _sampled(connection: psycopg.Connection, oid: int, names: Sequence[str]) -> set[str]:
    """Return columns with a value in one of the first rows that are no younger than they are."""
    with at_one_instant(connection):
        rows = query(connection, _NAME, [list(names), oid])
        if not rows:
            return set()
        ((namespace, table, age),) = rows
        for limit in _LIMITS:
            query(connection, limit)
        columns = [sql.Identifier(name) for name in names]
        has_value = sql.SQL("coalesce(bool_or(num_nonnulls({}) > 0), false)")
        statement = sql.SQL(
            "SELECT {} FROM (SELECT {} FROM {} WHERE age(xmin) >= {} LIMIT {}) AS first_rows"
        ).format(
            sql.SQL(", ").join(has_value.format(column) for column in columns),
            sql.SQL(", ").join(columns),
            sql.Identifier(namespace, table),
            sql.Literal(age),
            sql.Literal(_SAMPLE_ROWS),
        )
        (are_filled,) = query(connection, statement)
    return {name for name, is_filled in zip(names, are_filled, strict=True) if is_filled}
