"""Server and publication → conditions that permit capturing, but aren't what the user wants."""

import re
import shlex
from collections.abc import Iterator
from typing import Final

import psycopg
import structlog

from cdc.lines import Lines, name_first
from cdc.postgres import connection as connections
from cdc.postgres.captured import captured_tables
from cdc.postgres.checks.powers import find_powers
from cdc.postgres.checks.rights import unreadable
from cdc.postgres.checks.risk import Risk
from cdc.postgres.connection import query
from cdc.postgres.failures import alter_identity, finish_detach
from cdc.postgres.slot import has_failover
from cdc.records.schema import UNREADABLE, TableName
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.settings.modes import Patterns

log = structlog.get_logger()
READING: Final = "rights to rows"
"""A risk that is a refusal at a first start."""
_STANDBY_SLOTS: Final = """
SELECT slot_name::text FROM pg_replication_slots
WHERE slot_type = 'physical' AND NOT temporary
  AND coalesce(current_setting('synchronized_standby_slots', true), '') = ''
ORDER BY slot_name
"""


_RISKS: Final = """
SELECT current_setting('max_slot_wal_keep_size'), current_setting('synchronous_standby_names')
"""
_STANDBY: Final = re.compile(r'"[^"]+"|[\w*]+')
# Partitions count, not the partitioned table: an UPDATE goes to them.
_UNIDENTIFIED: Final = """
SELECT DISTINCT n.nspname, c.relname, EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
FROM pg_publication p
CROSS JOIN pg_get_publication_tables(p.pubname) AS published
JOIN pg_class c ON c.relkind = 'r'
    AND (c.oid = published.relid OR c.oid IN (SELECT relid FROM pg_partition_tree(published.relid)))
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s AND (p.pubupdate OR p.pubdelete)
  AND CASE c.relreplident WHEN 'f' THEN false WHEN 'n' THEN true ELSE NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) END
ORDER BY 1, 2
"""
_RELATIONS: Final = """
SELECT n.nspname || '.' || c.relname, CASE
    WHEN c.relkind = 'v' THEN 'a view'
    WHEN c.relkind = 'm' THEN 'a materialized view'
    WHEN c.relkind = 'f' THEN 'a foreign table'
    WHEN c.relispartition THEN 'a partition'
    WHEN c.relpersistence = 'u' THEN 'an unlogged table'
    ELSE '' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't' AND c.oid >= 16384
"""
# Their text holds a name that its object may no longer have.
_NAMING: Final = """
SELECT c.oid, string_agg(a.attname::text, ', ' ORDER BY a.attnum)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped
  AND a.atttypid = ANY ('{regclass,regcollation,regconfig,regdictionary,regnamespace,regoper,
      regoperator,regproc,regprocedure,regrole,regtype}'::regtype[]::oid[])
GROUP BY c.oid
"""
_FOREIGN: Final = """
WITH RECURSIVE above (partition, oid) AS (
    SELECT oid, oid FROM pg_class WHERE relkind = 'f' AND relispartition
  UNION ALL
    SELECT a.partition, i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.oid
)
SELECT a.oid, string_agg(concat(n.nspname, '.', c.relname), ', ')
FROM above a JOIN pg_class c ON c.oid = a.partition JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.oid <> a.partition GROUP BY a.oid
"""
_LEAVES: Final = """
SELECT c.oid, n.nspname::text, c.relname::text
FROM unnest(%s::oid[]) AS root (oid)
CROSS JOIN LATERAL (
    SELECT root.oid AS member UNION SELECT relid FROM pg_partition_tree(root.oid) WHERE isleaf
) AS tree
JOIN pg_class c ON c.oid = tree.member AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace
"""
# pgoutput takes the last of a partition's ancestors. A partition that is being detached has none.
# One below a partitioned table that is being detached has that table.
_IS_ROOTED: Final = """
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %s AND puballtables AND pubviaroot)
"""
_PENDING: Final = """
SELECT n.nspname::text, c.relname::text, a.nspname::text, p.relname::text
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class p ON p.oid = i.inhparent
JOIN pg_namespace a ON a.oid = p.relnamespace
WHERE i.inhdetachpending
"""


def warn_of_failover(connection: psycopg.Connection, wanted: bool) -> None:
    """Log what a failover would cost, if standbys have slots."""
    standbys = _standbys(connection) if wanted else []
    if standbys and not has_failover(connection.pgconn):
        log.info(
            "a failover loses the slot: PostgreSQL before 17 copies no slot to standbys",
            standbys=standbys,
            remedy="after a failover, run: millrace new-epoch",
        )
    elif standbys:
        risk = _ahead_of(standbys)
        log.warning(risk.what, standbys=standbys, remedy=risk.remedy)


def find_failover_risk(connection: psycopg.Connection) -> Iterator[Risk]:
    """Yield the risk of a slot that is copied to standbys, and may be ahead of them."""
    standbys = _standbys(connection)
    if standbys and has_failover(connection.pgconn):
        yield _ahead_of(standbys)


def _standbys(connection: psycopg.Connection) -> list[str]:
    return [name for (name,) in query(connection, _STANDBY_SLOTS)]


def _ahead_of(standbys: list[str]) -> Risk:
    return Risk(
        "synchronized_standby_slots",
        "synchronized_standby_slots is empty: after a failover the log may have changes that the"
        " new primary lacks, and the daemon then stops",
        f"ALTER SYSTEM SET synchronized_standby_slots = '{', '.join(standbys)}';"
        " SELECT pg_reload_conf()",
    )


def publishes_every_root(connection: psycopg.Connection, publication: str) -> bool:
    """Whether it publishes all tables, by the roots of partitions: see ``pending_detaches``."""
    ((is_rooted,),) = query(connection, _IS_ROOTED, [publication])
    return bool(is_rooted)


def pending_detaches(connection: psycopg.Connection) -> Iterator[Risk]:
    """Yield partitions whose next change crashes the server, if ``publishes_every_root``.

    Captured or not: the server decodes the change.
    """
    for *partition, namespace, name in query(connection, _PENDING):
        detached, root = TableName(*partition), TableName(namespace, name)
        yield Risk(
            "partitions being detached",
            f"the DETACH PARTITION CONCURRENTLY of {detached} isn't finished; with a publication"
            " of all tables through their roots, PostgreSQL crashes at the next change of that"
            " partition",
            Lines(f"let its owner run{finish_detach(root, detached)}"),
        )


def find_risks(
    connection: psycopg.Connection, source: LibraryOptions, settings: CaptureSettings
) -> Iterator[Risk]:
    """Yield risks for the source that permit capturing, each with its remedy."""
    ((keep_size, standbys),) = query(connection, _RISKS)
    if keep_size == "-1" and settings.slot_max_lag_bytes is None:
        yield Risk(
            "max_slot_wal_keep_size",
            "the amount of WAL that the slot may hold back has no limit",
            "set slot.max.lag.bytes, or max_slot_wal_keep_size on the server: ALTER SYSTEM SET"
            " max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    ours = source.get("application_name", connections.REPLICATION_NAME)
    names = {name.strip('"').lower() for name in _STANDBY.findall(standbys)}
    if names & {"*", ours.lower()}:
        yield Risk(
            "synchronous_standby_names",
            f"synchronous_standby_names ({standbys}) counts Millrace's replication connection as"
            " a standby: commits at the source wait for Kafka",
            f"list only the standbys there, without {ours}",
        )
    rows = query(connection, _UNIDENTIFIED, [settings.publication_name])
    lines = [
        alter_identity([TableName(namespace, name)], "DEFAULT" if has_key else "FULL")
        for namespace, name, has_key in rows
    ]
    if lines:
        yield Risk(
            "identities in the publication",
            f"publication {settings.publication_name} has tables without a replica identity:"
            " UPDATE and DELETE on them fail",
            Lines(f"let their owner run{''.join(lines)}"),
        )
    yield from _unnamed(connection, settings)
    yield from _unseen(connection, settings)
    if settings.publication_autocreate_mode == "filtered" or settings.lossless:
        yield from _unmatched(connection, settings)


def _unnamed(connection: psycopg.Connection, settings: CaptureSettings) -> Iterator[Risk]:
    """Yield tables that the lists select, but whose names no record can have."""
    names = [name for name, _ in query(connection, _RELATIONS) if UNREADABLE in name]
    if unnamed := sorted(name for name in names if settings.captures(name)):
        yield Risk(
            "names of tables",
            f"tables with names that aren't UTF-8 aren't captured: {name_first(unnamed)}",
            "rename them by their OIDs (docs/guides/postgresql.md, Encodings, has the line)",
        )


def _unseen(connection: psycopg.Connection, settings: CaptureSettings) -> Iterator[Risk]:
    """Yield the role's excess powers, and captured tables with unreadable or unseen changes."""
    naming, foreign = dict(query(connection, _NAMING)), dict(query(connection, _FOREIGN))
    captured = captured_tables(connection, settings)
    yield from find_powers(connection, settings, captured)
    rows = query(connection, _LEAVES, [[table.oid for table in captured]])
    leaves = {oid: TableName(namespace, name) for oid, namespace, name in rows}
    for error in unreadable(connection, leaves, ""):
        what = f"{error.what}: changes are captured, but rows can't be read (again)"
        yield Risk(READING, what, error.remedy)
    for table in captured:
        if table.oid in naming:
            yield Risk(
                "values that name objects",
                f"table {table.name}: {naming[table.oid]} contains names of other objects; if"
                " these are renamed, the log keeps the old names",
                "after such a rename, read the table again: millrace snapshot"
                f" {shlex.quote(str(table.name))}",
            )
        if table.oid in foreign:
            yield Risk(
                "foreign partitions",
                f"table {table.name}: changes of {foreign[table.oid]} aren't captured: foreign"
                " tables write no WAL",
                "detach them, or leave the table out with table.exclude.list",
            )


def _unmatched(connection: psycopg.Connection, settings: CaptureSettings) -> Iterator[Risk]:
    """Yield entries of table.include.list that capture nothing. A view, for example, has no WAL."""
    entries = settings.table_include_list
    kinds = dict(query(connection, _RELATIONS)) if entries else {}
    reason = "PostgreSQL publishes changes of ordinary and partitioned tables"
    if entries and settings.publication_autocreate_mode != "filtered":
        published = {str(table.name) for table in captured_tables(connection, settings)}
        kinds = {
            name: "" if name in published else kind or "not in the publication"
            for name, kind in kinds.items()
        }
        reason = f"Millrace captures only what publication {settings.publication_name} has"
    for entry in entries:
        pattern = Patterns((entry,))
        matching = {name: kind for name, kind in sorted(kinds.items()) if pattern.match(name)}
        if "" in matching.values():
            continue
        named = name_first(f"{name} is {kind}" for name, kind in matching.items())
        yield Risk(
            "table.include.list",
            f"the entry {entry} of table.include.list captures nothing:"
            f" {named or 'no table has such a name'}; {reason}",
            "correct the entry, or remove it",
        )
