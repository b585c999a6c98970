"""Captured tables → the obstacles to capturing each, and its surprising properties."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.capture.wiring import event_rules
from cdc.errors import MillraceError, SourcePrivilegeError, TableLockedError
from cdc.events.rules import EventRules
from cdc.lines import Lines, name_first
from cdc.postgres.checks.preflight import refused_tables
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import alter_identity, server_address
from cdc.records.schema import TableName
from cdc.records.sql_names import sql_names
from cdc.settings import CaptureSettings
from cdc.tables.planned import check_events
from cdc.values.types import is_listed
from deploy.check.result import Area, CheckResult
from deploy.check.scene import Scene

_COLUMNS: Final = """
SELECT a.attrelid,
       coalesce(array_agg(a.attname::text) FILTER (WHERE a.attstorage IN ('x', 'e')), '{}'),
       coalesce(array_agg(a.attname::text) FILTER (WHERE a.attgenerated <> ''), '{}')
FROM pg_attribute a WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY a.attrelid
"""
_UNLOGGED: Final = """
SELECT n.nspname::text, c.relname::text, c.oid = ANY (%s)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence = 'u' AND c.relkind = 'r'
  AND (c.oid = ANY (%s) OR NOT c.relispartition) AND c.oid >= 16384
ORDER BY 1, 2
"""


class _UnusualColumns(NamedTuple):
    """The unusual columns of a table: names of wide ones, and of generated ones."""

    wide: list[str]
    generated: list[str]


def check_tables(
    scene: Scene, connection: psycopg.Connection, described: list[TableDescription]
) -> Iterator[CheckResult]:
    """Yield one line for each table, or one for each of its problems."""
    part, capture = Area("tables"), scene.settings.capture
    where = server_address(connection.pgconn)
    refused = dict[TableName, list[MillraceError]]()
    for names, error in refused_tables(connection, capture, described, where):
        refused.setdefault(names[-1], []).append(error)
    rows = query(connection, _COLUMNS, [[table.oid for table in described]])
    columns = {oid: _UnusualColumns(*names) for oid, *names in rows}
    yield from _unlogged(part, connection, capture, described)
    rules = _rules(scene)
    for table in described:
        name = str(table.name)
        errors = refused.get(table.name, [])
        if not errors and rules is not None:
            errors = _events(table, capture.topic_prefix, rules)
        yield from (part.of_error(name, error) for error in errors)
        own = columns.get(table.oid, _UnusualColumns([], []))
        warnings = list(_warnings(part, capture, table, own))
        yield from warnings
        try:
            _try(connection, table.name)
        except TableLockedError as error:
            why = "a lock keeps readers out"
            yield part.unknown(name, why, error.remedy)
        except SourcePrivilegeError:
            pass  # one line reports all rights
        except MillraceError as error:
            yield part.of_error(name, error)
        else:
            if not errors and not warnings:
                yield part.ok(name, _described(table, own))


def _rules(scene: Scene) -> EventRules | None:
    """Return the rules of events. None: [format] can't be read, which is reported elsewhere."""
    try:
        return event_rules(scene.settings)
    except (MillraceError, ImportError):
        return None


def _events(table: TableDescription, prefix: str, rules: EventRules) -> list[MillraceError]:
    """Return why no events can be made of a table: colliding names, missing keys."""
    try:
        check_events(table, prefix, rules)
    except MillraceError as error:
        return [error]
    return []


def _try(connection: psycopg.Connection, table: TableName) -> None:
    """Read no row of it. The session can't write, whatever code the table's owner runs."""
    query(connection, sql.SQL("SELECT FROM {} LIMIT 0").format(sql.Identifier(*table)))


def _unlogged(
    part: Area,
    connection: psycopg.Connection,
    capture: CaptureSettings,
    described: list[TableDescription],
) -> Iterator[CheckResult]:
    """Report tables and partitions that write no WAL, and pass the lists."""
    own = [leaf.oid for table in described for leaf in table.leaves]
    for namespace, name, is_leaf in query(connection, _UNLOGGED, [own, own]):
        table = TableName(namespace, name)
        if is_leaf or capture.captures(str(table)):
            yield part.warning(
                str(table),
                f"{table} is unlogged: PostgreSQL writes no WAL for it, so its changes aren't"
                " captured",
                f"ask its owner to run ALTER TABLE {sql_names([table])} SET LOGGED; (it rewrites"
                " the table), or add the table to table.exclude.list",
            )


def _warnings(
    part: Area, capture: CaptureSettings, table: TableDescription, columns: _UnusualColumns
) -> Iterator[CheckResult]:
    name = str(table.name)
    published = {column.name for column in table.columns}
    if lacking := [each for each in columns.generated if each not in published]:
        yield part.warning(
            name,
            f"table {name}: generated columns aren't captured: {name_first(sorted(lacking))}",
            "from PostgreSQL 18, STORED columns are captured with a publication of your own WITH"
            " (publish_generated_columns = stored); otherwise compute them in the reader",
        )
    wide = [each for each in columns.wide if each in published]
    if wide and table.replica_identity != "f" and capture.toast_unavailable != "reselect":
        line = alter_identity([table.name], "FULL")
        yield part.warning(
            name,
            f"table {name}: an UPDATE that doesn't change a large value of"
            f" {name_first(sorted(wide))} doesn't contain it"
            f" (toast.unavailable = {capture.toast_unavailable}), so tables derived from the log"
            " alone can lack it",
            Lines(f'set toast.unavailable = "reselect", or ask the owner to run{line}'),
        )


def _described(table: TableDescription, columns: _UnusualColumns) -> str:
    """Return the useful properties of a table without problems."""
    key = ", ".join(table.primary_key) or "none"
    identity = {"f": "FULL", "d": "DEFAULT", "i": "an index", "n": "NOTHING"}
    words = [f"key {key}", f"identity {identity.get(table.replica_identity, 'unknown')}"]
    if table.partitioned:
        words.append(f"partitioned into {len(table.leaves)}")
    if table.row_filter:
        words.append(f"rows WHERE {table.row_filter}")
    wide = [name for name in columns.wide if name in {column.name for column in table.columns}]
    if wide and table.replica_identity != "f":
        words.append(
            f"unchanged large values are read again after an UPDATE: {name_first(sorted(wide))}"
        )
    if as_text := [column.name for column in table.columns if not is_listed(column)]:
        words.append(f"as text: {name_first(sorted(as_text))}")
    return "; ".join(words)
