"""pg_catalog → the captured tables, with their columns, keys and partitions.

Each query reads all tables, so a thousand tables start as fast as one. A *Relation* message takes
precedence over the catalog, which may have changed since the message was written.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import psycopg

from cdc.postgres.columns import column, resolve
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.described import CapturedTable, Leaf, TableDescription
from cdc.postgres.publications import publication_entries
from cdc.records.schema import Column, TableName
from cdc.wal.messages import Relation, RelationColumn, ReplicaIdentity

# The columns that identify old rows in the WAL, as RelationGetIdentityKeyBitmap() selects them. A
# deferrable primary key is no key: within a transaction two rows may share it.
_IDENTITY: Final = """
SELECT i.indrelid,
       array_agg(a.attname::text ORDER BY k.ordinal) FILTER (
           WHERE i.indisprimary AND i.indimmediate),
       array_agg(a.attname::text ORDER BY k.ordinal) FILTER (
           WHERE i.indisvalid AND i.indimmediate AND CASE c.relreplident
               WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       c.relreplident = 'i'
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, ordinal)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s) AND (i.indisprimary OR i.indisreplident)
  AND k.ordinal <= i.indnkeyatts
GROUP BY i.indrelid, c.relreplident
"""
_RELATIONS: Final = """
SELECT c.oid, n.nspname, c.relname, c.relreplident::text, c.relkind = 'p',
       c.reltuples::float8, c.relpages,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8, root.oid,
       coalesce((SELECT amname = 'heap' FROM pg_am WHERE pg_am.oid = c.relam), false)
FROM unnest(%s::oid[]) AS root (oid)
CROSS JOIN LATERAL (
    SELECT root.oid AS member UNION SELECT relid FROM pg_partition_tree(root.oid) WHERE isleaf
) AS tree
JOIN pg_class c ON c.oid = tree.member
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p')
ORDER BY root.oid, n.nspname, c.relname
"""
_ATTRIBUTES: Final = """
SELECT attrelid, attname, atttypid, atttypmod, attnotnull, attgenerated::text,
       CASE attgenerated WHEN '' THEN pg_get_expr(adbin, adrelid) END, attnum
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = ANY (%s) AND attnum > 0 AND NOT attisdropped
ORDER BY attrelid, attnum
"""
# pg_publication_tables would open each published table, and wait for locks on it.
_PUBLISHED_COLUMNS: Final = """
SELECT c.oid, CASE WHEN r.prattrs IS NOT NULL OR {with_generated} THEN (
    SELECT array_agg(a.attname::text) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND CASE WHEN r.prattrs IS NULL THEN a.attgenerated <> 'v'
          ELSE a.attnum = ANY (r.prattrs::int2[]) END
) END, pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication p
JOIN pg_class c ON c.oid = ANY (%s)
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid AND NOT p.puballtables
    AND NOT EXISTS (SELECT FROM pg_publication_namespace n
                    WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)
WHERE p.pubname = %s
"""
_ALL_CHANGES: Final = (
    "SELECT pubinsert AND pubupdate AND pubdelete FROM pg_publication WHERE pubname = %s"
)
_BLOCK_BYTES: Final = "SELECT current_setting('block_size')::int"


def describe(
    connection: psycopg.Connection,
    tables: Sequence[CapturedTable],
    publication: str,
    *,
    generated: bool = False,
) -> list[TableDescription]:
    """Describe tables in their order, as the publication (if it exists yet) publishes them.

    ``generated`` adds their generated columns, published or not. A table that was dropped in the
    meantime is left out.
    """
    oids = [table.oid for table in tables]
    with at_one_instant(connection):
        facts = _Facts.read(connection, oids, publication, generated=generated)
    return [_description(table, facts) for table in tables if table.oid in facts.roots]


def new_xid(connection: psycopg.Connection) -> int:
    """Return a new transaction ID (64 bits).

    Every open transaction that has written has a lower one.

    https://www.postgresql.org/docs/current/functions-info.html (pg_current_xact_id)
    """
    ((xid,),) = query(connection, "SELECT pg_current_xact_id()::text")
    return int(xid)


def describe_relation(
    connection: psycopg.Connection, relation: Relation, publication: str
) -> tuple[Column, ...]:
    """Return the columns of a publication's Relation message, completed from the catalog.

    Nullability, defaults and the key's order come from the current table, by column name. If the
    table is gone or its key has changed, the message's identity columns are the key, provided that
    the primary key identifies rows (replica identity default). Every column may be null then. If
    the match with the table's columns is uncertain, they have no numbers.
    """
    oid, attributes = relation.oid, relation.columns
    with at_one_instant(connection):
        types = resolve(connection, attributes)
        table = _attributes(connection, [oid]).get(oid, [])
        primary_key = _identities(connection, [oid]).get(oid, _Identity()).primary_key
        names, _ = _published(connection, publication, [oid]).get(oid, (None, None))
    now = {raw.name: raw for raw in table}
    version = connection.info.server_version
    numbers = _numbers(attributes, [raw for raw in table if raw.is_published(names, version)])
    flagged = tuple(a.name for a in attributes if a.key)
    if relation.replica_identity == "d" and set(flagged) != set(primary_key):
        primary_key = flagged
    elif not {a.name for a in attributes}.issuperset(primary_key):
        primary_key = ()
    return tuple(
        column(
            attribute,
            types,
            optional=attribute.name not in now or not now[attribute.name].not_null,
            key=_ordinal(attribute.name, primary_key),
            default=now[attribute.name].default if attribute.name in now else None,
            number=number,
        )
        for attribute, number in zip(attributes, numbers, strict=True)
    )


def signature(replica_identity: str, attributes: Iterable[RelationColumn]) -> str:
    """Return canonical text of a Relation message.

    Equal texts mean that rows have equal meanings.
    """
    columns = [[a.name, a.type_oid, a.modifier, a.key] for a in attributes]
    return json.dumps([replica_identity, columns], ensure_ascii=False, separators=(",", ":"))


def relation_signature(relation: Relation) -> str:
    """Return the signature of a Relation message. An unchanged table's description has the same."""
    return signature(relation.replica_identity, relation.columns)


class _Member(NamedTuple):
    """A row of _RELATIONS: a captured table, or a partition of one."""

    oid: int
    namespace: str
    table: str
    replica_identity: ReplicaIdentity
    partitioned: bool
    tuples: float
    pages_analyzed: int
    pages: int
    root: int
    heap: bool

    @property
    def rows(self) -> int:
        """Estimate the rows as the planner does: the density last seen, times today's size."""
        if self.partitioned or self.tuples <= 0 or self.pages_analyzed <= 0:
            return 0
        return round(self.tuples / self.pages_analyzed * self.pages)


class _RawAttribute(NamedTuple):
    name: str
    type_oid: int
    modifier: int
    not_null: bool
    generated: str
    default: str | None
    number: int

    def attribute(self, *, identity: bool) -> RelationColumn:
        return RelationColumn(identity, self.name, self.type_oid, self.modifier)

    def is_published(self, published: Sequence[str] | None, server_version: int) -> bool:
        """Whether the stream has the column. Generated ones need PostgreSQL 18 and a request."""
        if self.generated and (published is None or server_version < 180_000):
            return False
        return published is None or self.name in published


class _Identity(NamedTuple):
    primary_key: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()


class _Facts(NamedTuple):
    """The catalog's rows about some tables, read with one query per kind."""

    server_version: int
    block_bytes: int
    roots: dict[int, _Member]
    leaves: dict[int, list[_Member]]
    identities: dict[int, _Identity]
    attributes: dict[int, list[_RawAttribute]]
    published: dict[int, tuple[list[str] | None, str | None]]
    entries: dict[int, int]
    all_changes: bool
    types: dict[tuple[int, int], dict[str, Any]]
    generated: bool

    @classmethod
    def read(
        cls, connection: psycopg.Connection, oids: list[int], publication: str, *, generated: bool
    ) -> "_Facts":
        members = [_Member(*row) for row in query(connection, _RELATIONS, [oids])]
        attributes = _attributes(connection, oids)
        leaves: dict[int, list[_Member]] = {}
        for member in members:
            if not member.partitioned:
                leaves.setdefault(member.root, []).append(member)
        ((block_bytes,),) = query(connection, _BLOCK_BYTES)
        raws = (raw for table in attributes.values() for raw in table)
        return cls(
            server_version=connection.info.server_version,
            block_bytes=block_bytes,
            roots={member.oid: member for member in members if member.oid == member.root},
            leaves=leaves,
            identities=_identities(connection, [member.oid for member in members]),
            attributes=attributes,
            published=_published(connection, publication, oids),
            entries=publication_entries(connection, publication, oids),
            all_changes=query(connection, _ALL_CHANGES, [publication]) != [(False,)],
            types=resolve(connection, (raw.attribute(identity=False) for raw in raws)),
            generated=generated,
        )

    def identity(self, member: _Member) -> frozenset[str]:
        if member.replica_identity == "f":
            return frozenset(raw.name for raw in self.attributes.get(member.root, []))
        return self.identities.get(member.oid, _Identity()).columns


def _description(table: CapturedTable, facts: _Facts) -> TableDescription:
    root = facts.roots[table.oid]
    names, row_filter = facts.published.get(root.oid, (None, None))
    primary_key = facts.identities.get(root.oid, _Identity()).primary_key
    identity = facts.identity(root)
    leaves = facts.leaves.get(root.oid, [])
    kept = [
        raw
        for raw in facts.attributes.get(root.oid, [])
        if raw.is_published(names, facts.server_version) or (raw.generated and facts.generated)
    ]
    unpublished = (raw.name for raw in kept if not raw.is_published(names, facts.server_version))
    attributes = [raw.attribute(identity=raw.name in identity) for raw in kept]
    return TableDescription(
        oid=root.oid,
        name=table.name,
        columns=tuple(
            column(
                attribute,
                facts.types,
                optional=not raw.not_null,
                key=_ordinal(attribute.name, primary_key),
                default=raw.default,
                number=raw.number,
            )
            for attribute, raw in zip(attributes, kept, strict=True)
        ),
        primary_key=primary_key,
        replica_identity=root.replica_identity,
        identity=identity,
        partitioned=root.partitioned,
        leaves=tuple(
            Leaf(
                leaf.oid,
                TableName(leaf.namespace, leaf.table),
                leaf.pages,
                leaf.replica_identity,
                facts.identity(leaf),
                leaf.heap,
            )
            for leaf in leaves
        ),
        rows_estimated=sum(leaf.rows for leaf in leaves),
        block_bytes=facts.block_bytes,
        row_filter=row_filter,
        signature=signature(root.replica_identity, attributes),
        entry=facts.entries.get(root.oid, 0),
        all_changes=facts.all_changes,
        unpublished=frozenset(unpublished),
        left_out=tuple(
            raw.name
            for raw in facts.attributes.get(root.oid, [])
            if names is not None and not raw.generated and raw.name not in names
        ),
    )


def _ordinal(name: str, primary_key: Sequence[str]) -> int | None:
    return primary_key.index(name) + 1 if name in primary_key else None


def _numbers(
    attributes: Sequence[RelationColumn], published: Sequence[_RawAttribute]
) -> Sequence[int | None]:
    """Return the numbers of a message's columns, if they are the table's first published ones.

    Both are in the order of numbers, and a new column gets a higher number than all before. So a
    renamed column is at another place, or the column that took its name precedes it. The exception
    is a dropped one, after which the message would describe the current table as it did the old
    one.
    """
    first = published[: len(attributes)]
    announced = [(attribute.name, attribute.type_oid) for attribute in attributes]
    if [(raw.name, raw.type_oid) for raw in first] != announced:
        return [None] * len(attributes)
    return [raw.number for raw in first]


def _identities(connection: psycopg.Connection, oids: list[int]) -> dict[int, _Identity]:
    return {
        oid: _Identity(tuple(primary or (by_index and identity) or ()), frozenset(identity or ()))
        for oid, primary, identity, by_index in query(connection, _IDENTITY, [oids])
    }


def _attributes(connection: psycopg.Connection, oids: list[int]) -> dict[int, list[_RawAttribute]]:
    attributes: dict[int, list[_RawAttribute]] = {}
    for oid, *raw in query(connection, _ATTRIBUTES, [oids]):
        attributes.setdefault(oid, []).append(_RawAttribute(*raw))
    return attributes


def _published(
    connection: psycopg.Connection, publication: str, oids: list[int]
) -> dict[int, tuple[list[str] | None, str | None]]:
    """Return column names and row filter of each published table. PostgreSQL 14 has neither."""
    if connection.info.server_version < 150_000:
        return {}
    knows_generated = connection.info.server_version >= 180_000
    statement = _PUBLISHED_COLUMNS.format(
        with_generated="p.pubgencols = 's'" if knows_generated else "false"
    )
    rows = query(connection, statement, [oids, publication])
    return {oid: (names, row_filter) for oid, names, row_filter in rows}
