"""Tables as in their states, and the catalog → the tables that differ."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import psycopg

from cdc.errors import SourcePrivilegeError, TableLockedError
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.catalog import new_xid
from cdc.postgres.connection import at_one_instant, current_insert_lsn, query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.fingerprints import CatalogTable, fingerprints, has_old_row, is_empty
from cdc.postgres.partitions import read_levels
from cdc.records.fingerprint import PartitionLevel, TableFingerprint
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.settings import CaptureSettings
from cdc.tables.doubts import LEFT, Differences, compare, first, joined
from snapshots.chunk import Visibility

_NO_DIFFERENCES: Final = Differences()
_PATIENCE: Final = "SET LOCAL lock_timeout = '100ms'"
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"
_TAKEN: Final = """
SELECT n.nspname::text, c.relname::text
FROM unnest(%s::text[], %s::text[]) AS wanted (namespace, name)
JOIN pg_namespace n ON n.nspname = wanted.namespace
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
"""


class WatchedTable(NamedTuple):
    """The log's state of a table when a check begins.

    ``fingerprint`` has the same content as the state's, but may be newer.
    """

    state: TableState
    fingerprint: TableFingerprint | None


class Finding(NamedTuple):
    """A table that differs. ``now`` None: it is gone, or has another name.

    ``levels`` are the bounds of the only partitions that may be wrong, by OID. ``described`` is its
    description if its columns differ. If it is gone, that is another table with its name.
    ``renamed`` is the table under its new name. ``is_name_taken``: another table, or a view, has
    the old name, captured or not.
    """

    watched: WatchedTable
    now: CatalogTable | None
    differences: Differences = _NO_DIFFERENCES
    levels: Mapping[int, tuple[PartitionLevel, ...]] = MappingProxyType({})
    described: TableDescription | None = None
    renamed: CatalogTable | None = None
    is_name_taken: bool = False


class Inspection(NamedTuple):
    """The result of a check, and the WAL's position before and after it.

    ``catalog`` has all existing tables, by name, ``seen`` the fingerprints of unchanged ones.
    ``undecided`` tables are locked, so the check can't judge them. ``aside`` are the current
    descriptions of tables that are set aside. ``system`` identifies the cluster that was checked,
    if tables are gone. ``xid`` (64 bits) is younger than every transaction open then, if a finding
    is DDL that lets other sessions write.
    """

    wal_begin: Lsn
    wal_end: Lsn
    catalog: dict[TableName, CatalogTable]
    findings: list[Finding]
    seen: dict[TableName, TableFingerprint]
    undecided: set[TableName]
    aside: dict[TableName, TableDescription]
    took_s: float = 0.0
    system: str = ""
    xid: int = 0

    def shows_all_before(self, lsn: Lsn, committed_at: Callable[[int], Lsn]) -> bool:
        """Whether it surely saw every transaction that the stream had committed up to ``lsn``.

        Transactions that the stream had before the daemon's start count as seen.
        """
        seen = next((table.fingerprint.seen for table in self.catalog.values()), None)
        return seen is not None and Visibility.parse(seen).shows_all_before(lsn, committed_at)


def inspect(
    connection: psycopg.Connection, settings: CaptureSettings, watched: list[WatchedTable]
) -> Inspection:
    """Compare the catalog with watched tables. A locked table waits for the next check."""
    started, wal_begin = time.monotonic(), current_insert_lsn(connection)
    oids = [table.state.oid for table in watched]
    catalog = fingerprints(connection, oids, settings.publication_name)
    findings, seen = list[Finding](), dict[TableName, TableFingerprint]()
    undecided, missing = set[TableName](), list[WatchedTable]()
    aside = dict[TableName, TableDescription]()
    for table in watched:
        name, now = table.state.name, catalog.get(table.state.oid)
        if now is None or now.name != name:
            missing.append(table)
            continue
        if table.state.is_left_unread and not table.state.is_set_aside:
            continue  # only its absence matters
        if table.fingerprint is not None:
            now = now._replace(fingerprint=now.fingerprint.carrying(table.fingerprint))
        if settings.partition_drop_policy == "delete":
            now = now._replace(fingerprint=_with_levels(connection, table.state.oid, now))
        try:
            finding = _compared(connection, settings, table, now)
            if table.state.is_set_aside:
                captured = [CapturedTable(table.state.oid, name)]
                aside |= {each.name: each for each in _described(connection, settings, captured)}
        except TableLockedError:
            undecided.add(name)
            continue
        if finding is not None:
            findings.append(finding)
        else:
            seen[name] = now.fingerprint
    try:
        findings += _gone(connection, settings, missing, catalog)
    except TableLockedError:
        undecided |= {table.state.name for table in missing}
    # After everything that was checked.
    wal_end = current_insert_lsn(connection)
    causes = (cause for finding in findings for cause in finding.differences.causes)
    # A snapshot's xmax isn't enough: a transaction right after it may have written already.
    xid = 0 if all(cause.locks for cause in causes) else new_xid(connection)
    by_name = {table.name: table for table in catalog.values()}
    system = _system(connection) if missing else ""
    took_s = time.monotonic() - started
    return Inspection(
        wal_begin, wal_end, by_name, findings, seen, undecided, aside, took_s, system, xid
    )


def _gone(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    missing: list[WatchedTable],
    catalog: dict[int, CatalogTable],
) -> list[Finding]:
    """Return findings for tables that are gone, with their successors. Raise TableLockedError."""
    if not missing:
        return []
    names = [table.state.name for table in missing]
    successors = _captured(connection, settings, set(names))
    namespaces, tables = [name.namespace for name in names], [name.name for name in names]
    taken = {TableName(*row) for row in query(connection, _TAKEN, [namespaces, tables])}
    return [
        Finding(
            table,
            None,
            described=successors.get(table.state.name),
            renamed=catalog.get(table.state.oid),
            is_name_taken=table.state.name in taken,
        )
        for table in missing
    ]


def _system(connection: psycopg.Connection) -> str:
    """Return the cluster's system identifier. Empty if the role may not read it."""
    try:
        ((identifier,),) = query(connection, _SYSTEM)
    except SourcePrivilegeError:
        return ""
    return str(identifier)


def _compared(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    table: WatchedTable,
    now: CatalogTable,
) -> Finding | None:
    """Return how a table differs. None: it doesn't. Raise TableLockedError if it is locked."""
    state, before = table.state, table.fingerprint
    if before is None:
        return Finding(table, now, first(now.fingerprint))
    is_rekeyed = settings.column_modes.key_columns(str(now.name)) is not None
    differences, described = compare(before, now.fingerprint, is_rekeyed=is_rekeyed), None
    causes = list(differences.causes)
    if state.doubt is None:  # so at the first check, and after each read
        causes += [cause for cause in first(now.fingerprint).causes if cause not in causes]
    for leaf, cause in differences.unproven.items():
        if any(each.replaces_all for each in causes):
            break
        is_old = has_old_row(connection, leaf, before.seen)
        if is_old is None:
            raise _locked(state.name)
        causes += [] if is_old else [cause]
    replaces_all = any(cause.replaces_all for cause in causes)
    if not replaces_all and now.entry and state.entry not in {0, now.entry}:
        causes.append(LEFT)
    if differences.altered or _is_published_otherwise(settings, before, now):
        captured = [CapturedTable(state.oid, state.name)]
        described = next(iter(_described(connection, settings, captured)), None)
    attached = tuple(leaf for leaf in differences.attached if _has_rows(connection, state, leaf))
    proven = replace(differences, causes=tuple(joined(causes)), unproven={}, attached=attached)
    is_back = bool(state.gone_ms) or state.renamed_lsn is not None
    if is_same(before, now.fingerprint) and not (causes or is_back):
        return None
    levels = read_levels(connection, [(leaf, state.oid) for leaf in proven.leaves])
    return Finding(table, now, proven, levels, described)


def _is_published_otherwise(
    settings: CaptureSettings, before: TableFingerprint, now: CatalogTable
) -> bool:
    """Whether a publication that must have all of a table may have only a part of it now."""
    was, published = before.publication, now.fingerprint.publication
    is_other = (was.options, was.entries) != (published.options, published.entries)
    is_managed = settings.publication_autocreate_mode == "filtered"
    return is_managed and bool(now.entry) and is_other


def _with_levels(
    connection: psycopg.Connection, table_oid: int, now: CatalogTable
) -> TableFingerprint:
    """Return the fingerprint with its partitions' bounds, as they can't be read after a drop."""
    unread = now.fingerprint.without_levels
    levels = read_levels(connection, [(leaf, table_oid) for leaf in unread])
    return now.fingerprint.with_levels(levels)


def _has_rows(connection: psycopg.Connection, state: TableState, leaf: int) -> bool:
    """Whether an attached partition has rows to read: most are new, and empty."""
    empty = is_empty(connection, leaf)
    if empty is None:
        raise _locked(state.name)
    return not empty


def is_same(before: TableFingerprint, now: TableFingerprint) -> bool:
    """Whether two have the same content, regardless of when they were taken."""
    return before.model_copy(update={"seen": now.seen}) == now


def _captured(
    connection: psycopg.Connection, settings: CaptureSettings, names: set[TableName]
) -> dict[TableName, TableDescription]:
    """Return the captured tables that have these names now."""
    with at_one_instant(connection):
        query(connection, _PATIENCE)
        captured = [each for each in captured_tables(connection, settings) if each.name in names]
        described = described_tables(connection, settings, captured)
    return {table.name: table for table in described}


def _described(
    connection: psycopg.Connection, settings: CaptureSettings, captured: list[CapturedTable]
) -> list[TableDescription]:
    """Describe tables. Doesn't wait for a lock on one of them."""
    with at_one_instant(connection):
        query(connection, _PATIENCE)
        return described_tables(connection, settings, captured)


def _locked(table: TableName) -> TableLockedError:
    return TableLockedError("a lock on it keeps readers out", where=f"table {table}")
