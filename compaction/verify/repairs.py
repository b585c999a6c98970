"""Rows that differ at two instants → orders to the daemon, which sends them again as they are.

An order is a logical message of the source: no table is written to. The daemon reads each row by
its key, and sends it at the order's position in the stream; so each sink takes it by its next run,
as any change.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.errors import MillraceError
from cdc.postgres.connection import connect, query
from cdc.postgres.described import TableDescription
from cdc.records.orders import ORDER_BYTES_MAX, REPAIR_ORDERS, RepairOrder
from cdc.records.record import to_json
from cdc.settings import Settings
from compaction.verify.confirm import key_literals
from compaction.verify.hashed import KeyTexts
from compaction.verify.instant import PURPOSE
from compaction.verify.report import SinkTable
from compaction.verify.source import SourceRead

_HEAD_BYTES: Final = 1_024
"""What an order has beside its keys, and its message beside it, is less."""
_KEYS_AT_ONCE: Final = 500
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)"
_KeyByName = dict[str, str]


class DifferingRows(NamedTuple):
    """A table, as it was read at the source, and the keys of all its rows that differ."""

    read: SourceRead
    keys: Collection[KeyTexts]


class Repair:
    """Orders rows of one pipeline; ``id`` is in a header of what the daemon sends."""

    def __init__(self, settings: Settings, log_name: str, id_: str) -> None:
        self._settings = settings
        self._log_name = log_name
        self.id = id_

    def order(self, tables: Mapping[SinkTable, DifferingRows]) -> dict[SinkTable, str]:
        """Write the orders; returns why some tables' rows can't be sent again."""
        why_not = {place: why for place, rows in tables.items() if (why := _why_not(rows))}
        wanted = dict[str, tuple[SourceRead, set[KeyTexts]]]()
        for place, rows in tables.items():
            if place not in why_not:  # one row may differ in several sinks
                name = str(rows.read.description.name)
                wanted.setdefault(name, (rows.read, set()))[1].update(rows.keys)
        with closing(connect(self._settings.source, purpose=PURPOSE)) as connection:
            for name, (read, keys) in sorted(wanted.items()):
                try:
                    self._order(connection, name, _canonical(connection, read, sorted(keys)))
                except MillraceError as error:
                    if error.retry or connection.broken:
                        raise
                    why_not |= {
                        place: error.what
                        for place, rows in tables.items()
                        if str(rows.read.description.name) == name
                    }
        return why_not

    def _order(
        self, connection: psycopg.Connection, table: str, keys: Iterable[_KeyByName]
    ) -> None:
        for some in _fitting(keys):
            order = RepairOrder(id=self.id, log=self._log_name, table=table, keys=tuple(some))
            query(connection, _EMIT, [REPAIR_ORDERS, order.model_dump_json()])


def _why_not(rows: DifferingRows) -> str:
    """Why the rows can't be sent again; empty: they can."""
    description, compared = rows.read.description, rows.read.compared
    again = f"millrace snapshot {shlex.quote(str(description.name))} reads the table again"
    sources = [compared.columns[place].source for place in compared.key]
    if not compared.is_keyed or set(sources) != set(description.identifying_columns):
        return f"they aren't known by the key that the log has: {again}"
    if any(None in texts or len(texts) != len(sources) for texts in rows.keys):
        return f"the keys of some aren't known: {again}"
    if any(len(to_json(texts)) > ORDER_BYTES_MAX - _HEAD_BYTES for texts in rows.keys):
        return f"the keys of some are too long: {again}"
    return ""


def _canonical(
    connection: psycopg.Connection, read: SourceRead, keys: list[KeyTexts]
) -> Iterator[_KeyByName]:
    """Keys as PostgreSQL prints them; those of derived rows may be printed otherwise."""
    compared, description = read.compared, read.description
    names = [compared.columns[place].source for place in compared.key]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        rows = query(connection, _texts_of(description, names, keys[start : start + _KEYS_AT_ONCE]))
        for texts in rows:
            yield dict(zip(names, texts, strict=True))


def _texts_of(
    description: TableDescription, names: list[str], keys: list[KeyTexts]
) -> sql.Composed:
    columns = [sql.Identifier(f"k{number}") for number in range(len(names))]
    return sql.SQL("SELECT {} FROM (VALUES {}) AS k ({})").format(
        sql.SQL(", ").join(sql.SQL("{}::text").format(column) for column in columns),
        key_literals(description, names, keys),
        sql.SQL(", ").join(columns),
    )


def _fitting(keys: Iterable[_KeyByName]) -> Iterator[list[_KeyByName]]:
    """So many keys at once as one order takes."""
    some, size = list[_KeyByName](), 0
    for key in keys:
        size += (own := len(to_json(key)) + 1)
        if some and size > ORDER_BYTES_MAX - _HEAD_BYTES:
            yield some
            some, size = [], own
        some.append(key)
    if some:
        yield some
