"""pg_catalog → how the publication publishes tables, as a part of their fingerprints."""

from collections import defaultdict
from collections.abc import Iterable
from hashlib import md5
from itertools import chain
from typing import Any, Final, NamedTuple

import psycopg

from cdc.postgres.connection import at_one_instant, query
from cdc.records.fingerprint import PublicationFingerprint

_ANCESTORS: Final = """
WITH RECURSIVE ancestor (asked, oid, xmin) AS (
    SELECT oid, oid, '' FROM pg_class WHERE oid = ANY (%s) AND relispartition
  UNION ALL
    SELECT a.asked, i.inhparent, i.xmin::text
    FROM ancestor a JOIN pg_inherits i ON i.inhrelid = a.oid AND NOT i.inhdetachpending
)
SELECT a.asked, a.oid, c.relnamespace, a.xmin
FROM ancestor a JOIN pg_class c ON c.oid = a.oid WHERE a.oid <> a.asked
ORDER BY a.asked, a.oid
"""
_NAMESPACES: Final = "SELECT oid, relnamespace FROM pg_class WHERE oid = ANY (%s)"
_OPTIONS: Final = """
SELECT oid, xmin::text, concat(
    CASE WHEN pubinsert THEN 'i' END, CASE WHEN pubupdate THEN 'u' END,
    CASE WHEN pubdelete THEN 'd' END, CASE WHEN pubtruncate THEN 't' END,
    CASE WHEN pubviaroot THEN 'r' END, {generated}, CASE WHEN puballtables THEN 'a' END)
FROM pg_publication WHERE pubname = %s
"""
_LISTED_TABLES: Final = """
SELECT prrelid, oid, {content}, xmin::text FROM pg_publication_rel
WHERE prpubid = %s AND prrelid = ANY (%s) ORDER BY oid
"""
_LISTED_SCHEMAS: Final = """
SELECT pnnspid, oid, '', xmin::text FROM pg_publication_namespace
WHERE pnpubid = %s AND pnnspid = ANY (%s) ORDER BY oid
"""
# Only SET SCHEMA writes it: between two of them, the table wasn't published.
_PLACES: Final = """
SELECT objid, xmin::text FROM pg_depend
WHERE classid = 'pg_class'::regclass AND objid = ANY (%s) AND objsubid = 0
  AND refclassid = 'pg_namespace'::regclass AND refobjid = ANY (%s)
ORDER BY objid
"""


class Listed(NamedTuple):
    """A row of pg_publication_rel or pg_publication_namespace. ``content`` is for a digest."""

    oid: int
    content: str
    xmin: str


class Published(NamedTuple):
    """A captured table, and its place in a tree of partitions, if it is one.

    ``above``: for each partitioned table above it the OID, the schema's OID, and the xmin of the
    pg_inherits row that leads there.
    """

    oid: int
    namespace_oid: int
    above: tuple[tuple[int, int, str], ...] = ()

    @property
    def ancestors(self) -> set[int]:
        """Their OIDs."""
        return {oid for oid, _, _ in self.above}


class Publication(NamedTuple):
    """The publication, and its lists, by the OIDs of tables and of schemas.

    ``places``: for tables in a listed schema, the xmin of the row that puts them there.
    """

    oid: int
    xmin: str
    options: str
    tables: dict[int, Listed]
    schemas: dict[int, Listed]
    places: dict[int, str]

    def fingerprint(self, table: Published) -> PublicationFingerprint:
        """Return the publication's part of a table's fingerprint.

        Entries of its partitions don't matter: the table's entry publishes its rows.
        """
        above = () if self._publishes_itself(table) else table.above
        oids = {table.oid, *(oid for oid, _, _ in above)}
        listed = [
            self._listed(oids, self.tables),
            self._listed({table.namespace_oid, *(schema for _, schema, _ in above)}, self.schemas),
        ]
        return PublicationFingerprint(
            oid=self.oid,
            xmin=self.xmin,
            options=self.options,
            entries=_digest(
                [(each.oid, each.content) for each in chain(*listed)], [oid for oid, _, _ in above]
            ),
            entry_xmins=_digest(
                [each.xmin for each in chain(*listed)],
                [xmin for *_, xmin in above],
                [self.places[oid] for oid in sorted(oids & self.places.keys())],
            ),
        )

    def entry(self, table: Published) -> int:
        """Return the OID of the entry that publishes a table. 0: none does.

        It is the entry of the table, of a partitioned table above it, of its schema, or the
        publication of all tables.
        """
        if listed := self._listed({table.oid, *table.ancestors}, self.tables):
            return min(each.oid for each in listed)
        if table.namespace_oid in self.schemas:
            return self.schemas[table.namespace_oid].oid
        return self.oid if "a" in self.options else 0

    def _publishes_itself(self, table: Published) -> bool:
        """Whether the publication publishes it wherever the table is attached."""
        is_listed = table.oid in self.tables or table.namespace_oid in self.schemas
        return "r" not in self.options and (is_listed or "a" in self.options)

    @staticmethod
    def _listed(oids: set[int], listed: dict[int, Listed]) -> list[Listed]:
        return [listed[oid] for oid in sorted(oids & listed.keys())]


def ancestors(
    connection: psycopg.Connection, oids: list[int]
) -> dict[int, tuple[tuple[int, int, str], ...]]:
    """Return the tables above captured partitions, for Published."""
    above = defaultdict[int, list[tuple[int, int, str]]](list)
    for asked, oid, schema, xmin in query(connection, _ANCESTORS, [oids]):
        above[asked].append((oid, schema, xmin))
    return {oid: tuple(tables) for oid, tables in above.items()}


def read_publication(
    connection: psycopg.Connection, name: str, tables: Iterable[Published]
) -> Publication | None:
    """Read the publication if it exists, and its entries for these tables."""
    version = connection.info.server_version
    generated = "CASE pubgencols WHEN 's' THEN 'g' END" if version >= 180_000 else "''"
    rows = query(connection, _OPTIONS.format(generated=generated), [name])
    if not rows:
        return None
    ((oid, xmin, options),) = rows
    related, schemas = set[int](), set[int]()
    for table in tables:
        related |= {table.oid, *table.ancestors}
        schemas |= {table.namespace_oid, *(schema for _, schema, _ in table.above)}
    content = "concat_ws(' ', md5(prqual::text), prattrs)" if version >= 150_000 else "''"
    listed_tables = _LISTED_TABLES.format(content=content)
    listed_schemas = (
        _by_oid(query(connection, _LISTED_SCHEMAS, [oid, list(schemas)]))
        if version >= 150_000
        else {}
    )
    places = (
        query(connection, _PLACES, [list(related), list(listed_schemas)]) if listed_schemas else []
    )
    return Publication(
        oid,
        xmin,
        options,
        _by_oid(query(connection, listed_tables, [oid, list(related)])),
        listed_schemas,
        dict(places),
    )


def publication_entries(
    connection: psycopg.Connection, publication: str, oids: Iterable[int]
) -> dict[int, int]:
    """Return each table's entry in the publication, by OIDs.

    A table that is added again has a new one.

    A change of its published columns or filter also makes a new entry.
    https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html
    """
    asked = list(oids)
    with at_one_instant(connection):
        above = ancestors(connection, asked)
        tables = [
            Published(oid, namespace_oid, above.get(oid, ()))
            for oid, namespace_oid in query(connection, _NAMESPACES, [asked])
        ]
        published = read_publication(connection, publication, tables)
    entries = {table.oid: published.entry(table) for table in tables} if published else {}
    return {oid: entry for oid, entry in entries.items() if entry}


def _by_oid(rows: list[tuple[Any, ...]]) -> dict[int, Listed]:
    return {oid: Listed(*listed) for oid, *listed in rows}


def _digest(*parts: list[Any]) -> str:
    text = repr(parts).encode()
    return md5(text, usedforsecurity=False).hexdigest()[:16] if any(parts) else ""
