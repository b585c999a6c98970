"""Partitions → their bounds, read while they exist, parsed, and searched in the source.

A bound is kept as pg_get_expr writes it, without opening a table. It has only constants, so a lock
on the partition doesn't block the read. Only known forms are parsed.
https://www.postgresql.org/docs/current/sql-createtable.html (PARTITION BY, FOR VALUES)
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, Literal

import psycopg
from psycopg import sql

from cdc.errors import SourceError, TableLockedError
from cdc.postgres.connection import at_one_instant, query
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.fingerprint import PartitionLevel
from cdc.records.schema import UNREADABLE

# Other operator classes may have another order, and some collations find other texts equal.
_LEVELS: Final = """
WITH RECURSIVE way (leaf, root, member, parent, height) AS (
    SELECT asked.leaf, asked.root, i.inhrelid, i.inhparent, 0
    FROM unnest(%s::oid[], %s::oid[]) AS asked (leaf, root)
    JOIN pg_inherits i ON i.inhrelid = asked.leaf AND NOT i.inhdetachpending
  UNION ALL
    SELECT w.leaf, w.root, i.inhrelid, i.inhparent, w.height + 1
    FROM way w
    JOIN pg_inherits i ON i.inhrelid = w.parent AND NOT i.inhdetachpending
    WHERE w.parent <> w.root
)
SELECT w.leaf, w.member,
       CASE WHEN p.partexprs IS NULL AND p.partstrat IN ('l', 'r')
             AND NOT EXISTS (SELECT FROM pg_opclass o
                             WHERE o.oid = ANY (p.partclass::oid[]) AND NOT o.opcdefault)
             AND NOT EXISTS (SELECT FROM pg_collation k
                             WHERE k.oid = ANY (p.partcollation::oid[])
                               AND NOT k.collisdeterministic)
       THEN array(
           SELECT r.attnum::int4
           FROM unnest(p.partattrs::int2[]) WITH ORDINALITY AS k (attnum, ordinal)
           JOIN pg_attribute a ON a.attrelid = w.parent AND a.attnum = k.attnum
           JOIN pg_attribute r ON r.attrelid = w.root AND r.attname = a.attname
           ORDER BY k.ordinal)
       ELSE '{}' END,
       pg_get_expr(c.relpartbound, 0)
FROM way w
JOIN pg_class c ON c.oid = w.member
JOIN pg_partitioned_table p ON p.partrelid = w.parent
ORDER BY w.leaf, w.height DESC
"""
_CONSTANT: Final = r"'(?:[^']|'')*'|[0-9]+(?:\.[0-9]+)?|true|false"
_EDGE: Final = rf"{_CONSTANT}|MINVALUE|MAXVALUE"
_VALUE: Final = rf"{_CONSTANT}|NULL"
_RANGE: Final = re.compile(
    rf"FOR VALUES FROM \(((?:{_EDGE})(?:, (?:{_EDGE}))*)\) TO \(((?:{_EDGE})(?:, (?:{_EDGE}))*)\)"
)
_LIST: Final = re.compile(rf"FOR VALUES IN \(((?:{_VALUE})(?:, (?:{_VALUE}))*)\)")
_PART: Final = re.compile(rf"{_EDGE}|NULL")
_WORDS: Final = {"true": "t", "false": "f"}
_NAMES: Final = """
SELECT n.nspname::text, c.relname::text, a.attnum::int4, a.attname::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = %s
"""
# Without an index the query scans a default partition, or neighbours in the first column.
_LIMITS: Final = ("SET LOCAL lock_timeout = '100ms'", "SET LOCAL statement_timeout = '10s'")


def read_levels(
    connection: psycopg.Connection, leaves: Sequence[tuple[int, int]]
) -> dict[int, tuple[PartitionLevel, ...]]:
    """Return the bounds of leaves by OID, from the captured table down.

    Takes (leaf, table) pairs.
    """
    if not leaves:
        return {}
    levels = defaultdict[int, list[PartitionLevel]](list)
    asked = [list(oids) for oids in zip(*leaves, strict=True)]
    for leaf, member, columns, bound in query(connection, _LEVELS, asked):
        levels[leaf].append(PartitionLevel(member, tuple(columns), bound or ""))
    return {leaf: tuple(each) for leaf, each in levels.items()}


def parse_bound(columns: Sequence[str], text: str) -> Bound | None:
    """Parse the bound of a partition key's columns. Its values stay PostgreSQL's texts.

    None: it isn't a range or list of constants, or isn't UTF-8.
    """
    if UNREADABLE in text:
        return None
    if match := _RANGE.fullmatch(text):
        lower, upper = (tuple(map(_edge, _each(edges))) for edges in match.groups())
        if not len(lower) == len(upper) == len(columns):
            return None
        return Bound(columns=tuple(columns), lower=lower, upper=upper)
    if (match := _LIST.fullmatch(text)) and len(columns) == 1:
        return Bound(columns=tuple(columns), values=tuple(map(_value, _each(match[1]))))
    return None


def has_rows(
    connection: psycopg.Connection, table_oid: int, levels: Sequence[PartitionLevel]
) -> bool | None:
    """Whether a table has a row within all of these bounds. None: the table is locked.

    Raise SourceError if that can't be decided, or too much would have to be read.
    """
    try:
        with at_one_instant(connection):
            rows = query(connection, _NAMES, [table_oid])
            names = {number: name for _, _, number, name in rows}
            conditions = [_level_condition(level, names) for level in levels]
            if not all(conditions):
                raise SourceError("its bounds aren't understood", where=f"table {table_oid}")
            for limit in _LIMITS:
                query(connection, limit)
            statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
                sql.Identifier(*rows[0][:2]), sql.SQL(" AND ").join(filter(None, conditions))
            )
            ((exists,),) = query(connection, statement)
            return bool(exists)
    except TableLockedError:
        return None


def _level_condition(level: PartitionLevel, names: Mapping[int, str]) -> sql.Composable | None:
    """Return a bound as SQL. None: it can't be parsed."""
    columns = [names[number] for number in level.columns if number in names]
    bound = parse_bound(columns, level.bound) if len(columns) == len(level.columns) else None
    if bound is None:
        return None
    if bound.values is not None:
        return _in(sql.Identifier(columns[0]), bound.values)
    lower, upper = _end(columns, bound.lower, ">="), _end(columns, bound.upper, "<")
    return sql.SQL(" AND ").join([*lower, *upper])


def _in(column: sql.Identifier, values: Sequence[object]) -> sql.Composable:
    given = [sql.Literal(value) for value in values if value is not None]
    parts = [sql.SQL("{} IN ({})").format(column, sql.SQL(", ").join(given))] if given else []
    parts += [sql.SQL("{} IS NULL").format(column)] if None in values else []
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))


def _end(
    columns: Sequence[str], edges: Sequence[RangeEdge], operator: Literal[">=", "<"]
) -> Iterator[sql.Composable]:
    """Compare rows up to the first column that one end leaves open."""
    values = list(takewhile(lambda edge: edge.kind == "value", edges))
    beyond = edges[len(values)].kind if len(values) < len(edges) else "min"
    if not values:
        yield sql.SQL("true" if (beyond == "min") == (operator == ">=") else "false")
        return
    compared = {(">=", "min"): ">=", (">=", "max"): ">", ("<", "min"): "<", ("<", "max"): "<="}
    names = [sql.Identifier(name) for name in columns[: len(values)]]
    literals = [sql.Literal(edge.value) for edge in values]
    comma = sql.SQL(", ")
    yield sql.SQL("({}) {} ({})").format(
        comma.join(names), sql.SQL(compared[operator, beyond]), comma.join(literals)
    )
    if len(values) > 1:  # tells the server which partitions to read
        yield sql.SQL("{} {} {}").format(
            names[0], sql.SQL(">=" if operator == ">=" else "<="), literals[0]
        )


def _each(text: str) -> list[str]:
    """Return the parts of a list of constants."""
    return _PART.findall(text)


def _edge(part: str) -> RangeEdge:
    if part in {"MINVALUE", "MAXVALUE"}:
        return RangeEdge("min" if part == "MINVALUE" else "max")
    return RangeEdge("value", _value(part))


def _value(part: str) -> str | None:
    if part.startswith("'"):
        return part[1:-1].replace("''", "'")
    return None if part == "NULL" else _WORDS.get(part, part)
