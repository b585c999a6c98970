"""Tables without a primary key → keyed by their first unique index, as Debezium does.

Only with ``lossless`` False: such an index may hold NULLs, or some of the rows only, and the
replica identity needn't cover it. A deferrable primary key counts, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import psycopg

from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.records.schema import Column

_KEYS: Final = """
SELECT DISTINCT ON (i.indrelid) i.indrelid, array(
    SELECT a.attname::text
    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, ordinal)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.ordinal <= i.indnkeyatts
    ORDER BY k.ordinal)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = ANY (%s) AND i.indisunique
ORDER BY i.indrelid, i.indisprimary DESC, i.indisclustered DESC, x.relname
"""


def keyed_tables(
    connection: psycopg.Connection, tables: Iterable[TableDescription]
) -> list[TableDescription]:
    """Described tables with Debezium's keys."""
    described = list(tables)
    keys = _keys(connection, [table.oid for table in described])
    return [
        replace(
            table,
            columns=_keyed(table.columns, keys.get(table.oid, ())),
            primary_key=keys.get(table.oid, ()),
        )
        for table in described
    ]


def keyed_columns(
    connection: psycopg.Connection, oid: int, columns: tuple[Column, ...]
) -> tuple[Column, ...]:
    """The columns of a Relation message with the key that the table has now."""
    return _keyed(columns, _keys(connection, [oid]).get(oid, ()))


def _keys(connection: psycopg.Connection, oids: list[int]) -> dict[int, tuple[str, ...]]:
    return {oid: tuple(names) for oid, names in query(connection, _KEYS, [oids])}


def _keyed(columns: tuple[Column, ...], names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(
        column.model_copy(
            update={"key": names.index(column.name) + 1 if column.name in names else None}
        )
        for column in columns
    )
