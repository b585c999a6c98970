"""Tables as their states have them, and the catalog → which of them aren't as they were."""

from dataclasses import replace
from typing import Final, NamedTuple

import psycopg

from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import current_insert_lsn
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.fingerprints import CatalogTable, fingerprints, has_old_row
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.settings import CaptureSettings
from cdc.tables.doubts import Cause, Differences, compare

_NO_DIFFERENCES: Final = Differences()


class WatchedTable(NamedTuple):
    """What the log has of a table as a check begins.

    ``fingerprint`` has the same content as the state's, but may have been taken later.
    """

    state: TableState
    fingerprint: TableFingerprint | None


class Finding(NamedTuple):
    """A table that isn't as it was; without ``now`` it is gone, or has another name.

    ``described`` it is where its columns differ; of one that is gone, another one of its name.
    """

    watched: WatchedTable
    now: CatalogTable | None
    differences: Differences = _NO_DIFFERENCES
    described: TableDescription | None = None


class Inspection(NamedTuple):
    """What a check has found, and how far the WAL was behind that.

    ``seen`` has the fingerprints, by now, of the tables that are as they were.
    """

    wal_end: Lsn
    findings: list[Finding]
    unpublished: frozenset[TableName]
    seen: dict[TableName, TableFingerprint]
    undecided: set[TableName]
    """Somebody has locked them."""


def inspect(
    connection: psycopg.Connection, settings: CaptureSettings, watched: list[WatchedTable]
) -> Inspection:
    """Compare the catalog with what is watched; a table that somebody has locked waits."""
    oids = [table.state.oid for table in watched]
    catalog = fingerprints(connection, oids, settings.publication_name)
    inspection = Inspection(
        current_insert_lsn(connection),
        [],
        frozenset(now.name for now in catalog.values() if not now.entry),
        {},
        set(),
    )
    missing = list[WatchedTable]()
    for table in watched:
        now = catalog.get(table.state.oid)
        if now is None or now.name != table.state.name:
            missing.append(table)
        elif (finding := _compared(connection, settings, table, now)) is not None:
            inspection.findings.append(finding)
        elif table.fingerprint and is_same(table.fingerprint, now.fingerprint):
            inspection.seen[now.name] = now.fingerprint
        else:
            inspection.undecided.add(now.name)
    successors = _captured(connection, settings, {table.state.name for table in missing})
    inspection.findings.extend(
        Finding(table, None, described=successors.get(table.state.name)) for table in missing
    )
    return inspection


def _compared(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    table: WatchedTable,
    now: CatalogTable,
) -> Finding | None:
    """How a table differs; None where it doesn't, or can't be told now."""
    state = table.state
    before = table.fingerprint
    if before is None:
        return Finding(table, now)
    differences, described = compare(before, now.fingerprint), None
    causes = list(differences.causes)
    for leaf, cause in differences.unproven.items():
        is_old = has_old_row(connection, leaf, before.seen)
        if is_old is None:
            return None
        causes += [] if is_old else [cause]
    if not causes and now.entry and state.entry not in {0, now.entry}:
        causes.append(Cause("it left the publication or the lists, and came back", replaces=True))
    if differences.altered:
        captured = [CapturedTable(state.oid, state.name)]
        described = next(iter(described_tables(connection, settings, captured)), None)
    proven = replace(differences, causes=tuple(causes), unproven={})
    is_back = bool(state.gone_ms) or state.renamed_lsn is not None
    if is_same(before, now.fingerprint) and not (causes or is_back):
        return None
    return Finding(table, now, proven, described)


def is_same(before: TableFingerprint, now: TableFingerprint) -> bool:
    """Whether two have the same content, whenever they were taken."""
    return before.model_copy(update={"seen": now.seen}) == now


def _captured(
    connection: psycopg.Connection, settings: CaptureSettings, names: set[TableName]
) -> dict[TableName, TableDescription]:
    """The captured tables that have these names by now."""
    if not names:
        return {}
    captured = [each for each in captured_tables(connection, settings) if each.name in names]
    return {table.name: table for table in described_tables(connection, settings, captured)}
