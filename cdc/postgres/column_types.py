"""Type OIDs and modifiers → what a column's values are: domains, arrays and enums resolved.

Types are asked for by OID, so that a Relation message's columns can be read after the table itself
has changed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import psycopg

from cdc.postgres.connection import query
from cdc.records.schema import Column

# A type that is no longer in the catalog is "unknown": its values are plain text to us.
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


class ColumnType(NamedTuple):
    """A column's type without domains, as records.schema.Column has it."""

    name: str
    array: bool
    modifier: int
    declared: str
    labels: list[str]
    domain: bool
    domain_elements: bool
    typtype: str
    delimiter: str | None


class Attribute(NamedTuple):
    """A column as pg_attribute and the Relation message give it; ``identity``: tells rows apart."""

    identity: bool
    name: str
    type_oid: int
    modifier: int


def resolve(
    connection: psycopg.Connection, attributes: Iterable[Attribute]
) -> dict[tuple[int, int], ColumnType]:
    """Look up the types of columns, by (type OID, modifier)."""
    asked = sorted({(attribute.type_oid, attribute.modifier) for attribute in attributes})
    rows = query(
        connection, _RESOLVE, [[oid for oid, _ in asked], [modifier for _, modifier in asked]]
    )
    return {(oid, modifier): ColumnType(*resolved) for oid, modifier, *resolved in rows}


def column(
    attribute: Attribute,
    types: dict[tuple[int, int], ColumnType],
    *,
    optional: bool,
    key: int | None,
    default: str | None,
    number: int | None,
) -> Column:
    """Put a column together from its parts; a key's column always has a value."""
    resolved = types[attribute.type_oid, attribute.modifier]
    return Column(
        name=attribute.name,
        type=resolved.name,
        type_oid=attribute.type_oid,
        modifier=resolved.modifier,
        array=resolved.array,
        declared=resolved.declared,
        optional=optional and key is None,
        key=key,
        default=default,
        labels=tuple(resolved.labels),
        domain=resolved.domain,
        domain_elements=resolved.domain_elements,
        typtype=resolved.typtype,
        delimiter=resolved.delimiter,
        number=number,
    )
