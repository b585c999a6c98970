"""A database → its rows' texts as a snapshot reads them, and as pgoutput sends them."""

from collections.abc import Iterator
from typing import NamedTuple

import psycopg

from cdc.events.changes import Row
from cdc.postgres.catalog import describe_relation
from cdc.postgres.described import TableDescription
from cdc.records.schema import Column
from cdc.wal import messages as m
from cdc.wal.decoder import decode
from tests.integration.read_rows import batches, selects


class Sent(NamedTuple):
    """A row message: its table, its letter in Debezium, the old row or key, and the new row."""

    table: str
    columns: tuple[Column, ...]
    op: str
    old: Row | None
    new: Row | None
    keyed: bool


def copied(opened: psycopg.Connection, table: TableDescription) -> Iterator[Row]:
    """The table's rows, read by COPY."""
    for select in selects(table):
        # To its end: whoever takes a row may want to ask the same connection something.
        yield from [row for batch in batches(opened, select, len(table.columns)) for row in batch]


def available_extensions(opened: psycopg.Connection) -> set[str]:
    """The extensions that could be created."""
    return {name for (name,) in opened.execute("SELECT name FROM pg_available_extensions")}


def make_slot(opened: psycopg.Connection) -> str:
    """Make a slot of pgoutput that keeps what comes from here on."""
    name = f"s_{opened.info.dbname}"
    opened.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    return name


def sent(opened: psycopg.Connection, publication: str) -> Iterator[Sent]:
    """The row messages that the slot has, in order."""
    arguments = ["publication_names", publication, "proto_version", "1"]
    query = "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)"
    relations: dict[int, tuple[str, tuple[Column, ...]]] = {}
    rows = opened.execute(query, [f"s_{opened.info.dbname}", arguments], binary=True).fetchall()
    for (data,) in rows:
        match decode(data):
            case m.Relation() as relation:
                described = describe_relation(opened, relation, publication)
                relations[relation.oid] = (relation.name, described)
            case m.Insert(oid, new):
                yield Sent(*relations[oid], "c", None, new, keyed=False)
            case m.Update(oid, old, keyed, new):
                yield Sent(*relations[oid], "u", old, new, keyed)
            case m.Delete(oid, old, keyed):
                yield Sent(*relations[oid], "d", old, None, keyed)
