"""pg_catalog → the fingerprints of captured tables, and whether a leaf has rows, or old ones.

The catalog check runs this every few seconds. So a few statements cover all tables, and the server
makes the digests. No function opens a table, which would wait for its locks (pg_get_expr,
pg_partition_tree, pg_publication_tables, pg_table_size).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.errors import SourceError, SourceUnreachableError
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.publications import (
    Publication,
    Published,
    ancestors,
    read_publication,
)
from cdc.records.fingerprint import (
    AttributeFingerprint,
    LabelFingerprint,
    LeafFingerprint,
    PublicationFingerprint,
    TableFingerprint,
    TypeFingerprint,
)
from cdc.records.schema import TableName

_USER_OID_MIN: Final = 16_384
"""initdb's objects have lower OIDs, and are never altered."""

# A partition whose DETACH CONCURRENTLY isn't finished is now published as a table of its own.
# Before version 17, a bound's tree also has the places of its parts in the statement.
_MEMBERS: Final = """
WITH RECURSIVE member (root, oid, attached, bound) AS (
    SELECT oid, oid, '', '' COLLATE "C" FROM unnest(%s::oid[]) AS root (oid)
  UNION ALL
    SELECT m.root, i.inhrelid, concat_ws(' ', nullif(m.attached, ''), i.xmin),
           left(md5(m.bound || regexp_replace(c.relpartbound::text, ':location -?[0-9]+', '', 'g')),
                16)
    FROM member m
    JOIN pg_inherits i ON i.inhparent = m.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT m.root, m.oid, c.relnamespace, n.nspname::text, c.relname::text, c.relkind::text,
       c.relfilenode, c.reltoastrelid, c.relpersistence::text, m.attached, m.bound,
       c.relreplident::text,
       (greatest(c.relpages, 0) + greatest(coalesce(t.relpages, 0), 0))::int8
           * current_setting('block_size')::int8
FROM member m
JOIN pg_class c ON c.oid = m.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class t ON t.oid = c.reltoastrelid AND c.reltoastrelid <> 0
ORDER BY m.root, m.oid
"""
_DIGESTS: Final = """
SELECT attrelid, md5(string_agg(
    concat_ws(' ', attnum, atttypid, atttypmod, attgenerated::text, quote_literal(attname::text)),
    ',' ORDER BY attnum))
FROM pg_attribute
WHERE attrelid = ANY (%s) AND attnum > 0 AND NOT attisdropped
GROUP BY attrelid
"""
_KEY_COLUMNS: Final = """
SELECT indrelid, indisprimary, indisreplident,
       (indkey::int2[])[0:indnkeyatts - 1], k.oid
FROM pg_index
LEFT JOIN pg_constraint k ON indisprimary AND k.conrelid = indrelid AND k.contype = 'p'
WHERE indrelid = ANY (%s) AND (indisprimary OR indisreplident) AND indimmediate
  AND (indisprimary OR indisvalid)
ORDER BY indrelid, indisprimary DESC, indexrelid
"""
_EXPRESSIONS: Final = """
SELECT a.attrelid, a.attnum, left(md5(d.adbin::text), 16)
FROM pg_publication p
CROSS JOIN pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = 's'
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = d.adrelid
WHERE p.pubname = %s AND d.adrelid = ANY (%s)
  AND CASE WHEN r.prattrs IS NULL THEN p.pubgencols = 's'
      ELSE a.attnum = ANY (r.prattrs::int2[]) END
"""
_TYPED_COLUMNS: Final = """
SELECT attrelid, attnum, atttypid FROM pg_attribute
WHERE attrelid = ANY (%s) AND attnum > 0 AND NOT attisdropped AND atttypid >= %s::oid
"""
_TYPES: Final = """
WITH RECURSIVE used (asked, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS asked (oid)
  UNION
    SELECT u.asked, element.oid
    FROM used u
    JOIN pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
        UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid
        UNION ALL SELECT atttypid FROM pg_attribute
            WHERE attrelid = t.typrelid AND t.typtype = 'c' AND attnum > 0 AND NOT attisdropped
    ) AS element (oid)
    WHERE element.oid >= %s::oid
)
SELECT u.asked, t.oid, format_type(t.oid, NULL)
FROM used u JOIN pg_type t ON t.oid = u.oid WHERE t.typtype IN ('c', 'e')
"""
_LABELS: Final = """
SELECT enumtypid, oid, enumlabel::text, enumsortorder, xmin::text FROM pg_enum
WHERE enumtypid = ANY (%s) ORDER BY enumtypid, oid
"""
_ATTRIBUTES: Final = """
SELECT t.oid, a.attnum, a.attname::text, a.atttypid, a.atttypmod, a.attisdropped,
       CASE c.relkind WHEN 'c' THEN a.xmin::text ELSE '' END
FROM pg_type t
JOIN pg_class c ON c.oid = t.typrelid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE t.oid = ANY (%s) AND t.typtype = 'c' ORDER BY t.oid, a.attnum
"""
_NAME: Final = """
SELECT nspname::text, relname::text, pg_snapshot_xmax(pg_current_snapshot())::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""
# The check of all tables waits for this one.
_LIMITS: Final = ("SET LOCAL lock_timeout = '100ms'", "SET LOCAL statement_timeout = '1s'")
_SAMPLE_PAGES: Final = 8
_SAMPLE_ROWS: Final = 500


class CatalogTable(NamedTuple):
    """A captured table as the catalog has it.

    ``name`` is its current name. ``entry`` is the OID of the publication's entry for it (0: none).
    ``sizes``: the bytes on disk of the rows of its leaves, by their OIDs, including TOAST, at the
    last VACUUM or ANALYZE.
    """

    fingerprint: TableFingerprint
    name: TableName
    entry: int
    sizes: Mapping[int, int] = MappingProxyType({})

    def bytes_of(self, leaves: Collection[int]) -> int:
        """Return the bytes on disk of these leaves' rows. Without leaves: of all."""
        return sum(size for oid, size in self.sizes.items() if not leaves or oid in leaves)


class _CatalogMember(NamedTuple):
    """A row of _MEMBERS: the captured table itself, or one below it."""

    root: int
    oid: int
    namespace_oid: int
    namespace: str
    table: str
    kind: str
    file: int
    toast: int
    persistence: str
    attached: str
    bound: str
    replica_identity: str
    bytes: int

    @property
    def leaf(self) -> LeafFingerprint:
        return LeafFingerprint(
            self.oid, self.kind, self.file, self.toast, self.persistence, self.attached, self.bound
        )


class _Catalog(NamedTuple):
    """The catalog's rows about all tables, read with one query per kind."""

    seen: str
    columns: dict[int, str]
    keys: dict[int, list[tuple[bool, bool, list[int]]]]
    constraints: dict[int, int]
    generated: dict[int, dict[int, str]]
    typed: dict[int, list[tuple[int, int]]]
    behind: dict[int, list[int]]
    types: dict[int, TypeFingerprint]

    def key_types(self, root: _CatalogMember) -> tuple[int, ...]:
        keyed = {number for _, _, numbers in self.keys.get(root.oid, []) for number in numbers}
        return self._types(
            type_oid
            for number, type_oid in self.typed.get(root.oid, [])
            if not keyed or number in keyed
        )

    def types_of(self, root: _CatalogMember) -> dict[int, TypeFingerprint]:
        oids = self._types(type_oid for _, type_oid in self.typed.get(root.oid, []))
        return {oid: self.types[oid] for oid in oids}

    def _types(self, type_oids: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({oid for asked in type_oids for oid in self.behind.get(asked, [])}))

    def identity(self, root: _CatalogMember) -> str:
        primary, by_index = "", ""
        for is_primary, is_identity, numbers in self.keys.get(root.oid, []):
            text = ",".join(map(str, numbers))
            primary = text if is_primary else primary
            by_index = text if is_identity else by_index
        return f"{root.replica_identity} {primary} {by_index}"


def fingerprints(
    connection: psycopg.Connection, oids: Iterable[int], publication: str
) -> dict[int, CatalogTable]:
    """Read the fingerprints of captured tables, by OID. Dropped tables are missing."""
    asked = sorted(set(oids))
    with at_one_instant(connection):
        members = defaultdict[int, list[_CatalogMember]](list)
        for row in query(connection, _MEMBERS, [asked]):
            members[row[0]].append(_CatalogMember(*row))
        above = ancestors(connection, asked)
        tables = {
            member.oid: Published(member.oid, member.namespace_oid, above.get(member.oid, ()))
            for of_table in members.values()
            for member in of_table
            if member.oid == member.root
        }
        published = read_publication(connection, publication, tables.values())
        catalog = _catalog(connection, asked, publication)
    return {
        oid: _catalog_table(members[oid], table, published, catalog)
        for oid, table in tables.items()
    }


def has_old_row(connection: psycopg.Connection, leaf_oid: int, seen: str) -> bool | None:
    """Whether the leaf's first pages have a row that every snapshot saw when ``seen`` was taken.

    If so, its file is new because of VACUUM FULL, CLUSTER or SET TABLESPACE, which copy rows
    unchanged. ALTER TABLE gives each row its own transaction. None: the leaf is locked. Don't call
    this within a transaction, as it may fail. A snapshot doesn't list subtransactions, so only rows
    older than all that ran count as seen.
    """
    return _asked(connection, leaf_oid, partial(_old_row, seen=int(seen.split(":", 1)[0])))


def is_empty(connection: psycopg.Connection, leaf_oid: int) -> bool | None:
    """Whether the leaf has no row now. False, too, without the right to read it.

    None: it can't be read right now. Don't call this within a transaction, as it may fail.
    """
    return _asked(connection, leaf_oid, _no_row)


def _asked(
    connection: psycopg.Connection,
    leaf_oid: int,
    statement: Callable[[sql.Identifier, int], sql.Composed],
) -> bool | None:
    """Return a statement's answer, made for the leaf's name and the newest transaction's number."""
    try:
        with at_one_instant(connection):
            rows = query(connection, _NAME, [leaf_oid])
            if not rows:
                return None
            ((namespace, table, xmax),) = rows
            for limit in _LIMITS:
                query(connection, limit)
            asked = statement(sql.Identifier(namespace, table), int(xmax))
            ((answer,),) = query(connection, asked)
            return bool(answer)
    except SourceUnreachableError:
        if connection.broken:
            raise
        return None  # it is locked, or takes too long
    except SourceError:
        return False  # without the right, or the leaf


def _old_row(table: sql.Identifier, xmax: int, *, seen: int) -> sql.Composed:
    # 32 bits → 64: the newest of the possible transactions that has begun. Frozen rows keep theirs,
    # and one from an earlier wraparound counts as newer than it is.
    return sql.SQL(
        "SELECT coalesce(bool_or({xmax} - (({xmax} - xid) & 4294967295) < {seen}), false)"
        " FROM (SELECT xmin::text::int8 AS xid FROM ONLY {table} WHERE ctid < {end}::tid"
        " LIMIT {rows}) AS first_rows"
    ).format(
        xmax=sql.Literal(xmax),
        seen=sql.Literal(seen),
        table=table,
        end=sql.Literal(f"({_SAMPLE_PAGES},0)"),
        rows=sql.Literal(_SAMPLE_ROWS),
    )


def _no_row(table: sql.Identifier, _: int) -> sql.Composed:
    return sql.SQL("SELECT NOT EXISTS (SELECT FROM ONLY {})").format(table)


def _catalog_table(
    members: Sequence[_CatalogMember],
    table: Published,
    published: Publication | None,
    catalog: _Catalog,
) -> CatalogTable:
    (root,) = (member for member in members if member.oid == table.oid)
    leaves = [member for member in members if member.kind != "p"]
    tables = (member for member in leaves if member.kind == "r")
    identities = {member.replica_identity for member in tables} - {root.replica_identity}
    return CatalogTable(
        TableFingerprint(
            columns=catalog.columns.get(root.oid, ""),
            generated=catalog.generated.get(root.oid, {}),
            identity=" ".join([catalog.identity(root), *sorted(identities)]),
            key_constraint=catalog.constraints.get(root.oid, 0),
            types=catalog.types_of(root),
            key_types=catalog.key_types(root),
            publication=published.fingerprint(table) if published else PublicationFingerprint(),
            leaves=tuple(member.leaf for member in leaves),
            seen=catalog.seen,
        ),
        TableName(root.namespace, root.table),
        published.entry(table) if published else 0,
        {member.oid: member.bytes for member in leaves},
    )


def _catalog(connection: psycopg.Connection, oids: list[int], publication: str) -> _Catalog:
    ((seen,),) = query(connection, "SELECT pg_current_snapshot()::text")
    keys, constraints = defaultdict[int, list[tuple[bool, bool, list[int]]]](list), dict[int, int]()
    for oid, is_primary, is_identity, numbers, key in query(connection, _KEY_COLUMNS, [oids]):
        keys[oid].append((is_primary, is_identity, numbers))
        constraints |= {oid: key} if key else {}
    generated = defaultdict[int, dict[int, str]](dict)
    if connection.info.server_version >= 180_000:
        for oid, number, digest in query(connection, _EXPRESSIONS, [publication, oids]):
            generated[oid][number] = digest
    typed = defaultdict[int, list[tuple[int, int]]](list)
    for oid, number, type_oid in query(connection, _TYPED_COLUMNS, [oids, _USER_OID_MIN]):
        typed[oid].append((number, type_oid))
    type_oids = {type_oid for columns in typed.values() for _, type_oid in columns}
    behind, types = _types(connection, type_oids)
    columns = dict(query(connection, _DIGESTS, [oids]))
    return _Catalog(seen, columns, keys, constraints, generated, typed, behind, types)


def _types(
    connection: psycopg.Connection, type_oids: set[int]
) -> tuple[dict[int, list[int]], dict[int, TypeFingerprint]]:
    """Return the enums and composite types of each type, and their fingerprints."""
    behind = defaultdict[int, list[int]](list)
    if not type_oids:
        return behind, {}
    names = {}
    for asked, oid, name in query(connection, _TYPES, [list(type_oids), _USER_OID_MIN]):
        behind[asked].append(oid)
        names[oid] = name
    labels = defaultdict[int, list[LabelFingerprint]](list)
    for oid, *label in query(connection, _LABELS, [list(names)]):
        labels[oid].append(LabelFingerprint(*label))
    attributes = defaultdict[int, list[AttributeFingerprint]](list)
    for oid, *attribute in query(connection, _ATTRIBUTES, [list(names)]):
        attributes[oid].append(AttributeFingerprint(*attribute))
    return behind, {
        oid: TypeFingerprint(
            name=name, labels=tuple(labels[oid]), attributes=tuple(attributes[oid])
        )
        for oid, name in names.items()
    }
