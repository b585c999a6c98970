"""A slot's name → its state, its creation with an exact snapshot, its lock, limits and removal."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
import structlog
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.errors import (
    ConfigError,
    GapError,
    MillraceError,
    SlotInUseError,
    SourceError,
    SourceSettingError,
    SourceUnreachableError,
)
from cdc.postgres.connection import command, connect_replication, query, wait_readable
from cdc.postgres.failures import RefusedError, explained, server_address
from cdc.records.position import Lsn
from cdc.settings import LibraryOptions

log = structlog.get_logger()
PLUGIN: Final = "pgoutput"
SET_WAL_LEVEL: Final = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
NEW_EPOCH: Final = (
    "to continue without these changes: millrace new-epoch, which reads every table again"
)
_SINCE_17: Final = "invalidation_reason, failover, synced"
_STATE: Final = """
SELECT coalesce(confirmed_flush_lsn, '0/0')::text, slot_name::text, plugin::text, database::text,
       temporary, active, active_pid, wal_status, safe_wal_size,
       greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn))::int8,
       greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::int8, {since_17},
       jsonb_build_object(
           'max_slot_wal_keep_size', current_setting('max_slot_wal_keep_size', true),
           'idle_replication_slot_timeout', current_setting('idle_replication_slot_timeout', true))
FROM pg_replication_slots WHERE slot_name = %s
"""
_BY_LIMIT: Final = {
    "wal_removed": ("max_slot_wal_keep_size", "it held back more WAL than this limit"),
    "idle_timeout": (
        "idle_replication_slot_timeout",
        "no session read it for longer than this limit",
    ),
}
"""invalidation_reason → the setting that causes it, and its meaning for the slot."""
_OBJECT_IN_USE: Final = "55006"
_DUPLICATE_OBJECT: Final = "42710"
_LIMIT_EXCEEDED: Final = "53400"
_NOT_IN_PREREQUISITE_STATE: Final = "55000"
_LOCK_HELD: Final = """
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = %s::oid AND objid = %s::oid
"""


LEVELS: Final = (100, 80, 50)
"""Percentages of a limit that are reported."""
_STATUSES: Final = {
    "extended": "it holds back more WAL than max_wal_size",
    "unreserved": (
        "the server may remove WAL that it needs at the next checkpoint, unless it catches up"
        " first (max_slot_wal_keep_size)"
    ),
    "lost": "the server has removed WAL that it needs (max_slot_wal_keep_size): there is a gap",
}
HELD: Final = "held for open transactions, or until the next checkpoint"
"""Why a slot may hold back more than its reader lacks."""
_END_OLDEST: Final = (
    "find a transaction that was left open: SELECT pid, usename, xact_start, query FROM"
    " pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY xact_start LIMIT 1; and end it:"
    " SELECT pg_terminate_backend(pid); if there is none, let a superuser run CHECKPOINT;"
)
_UNITS: Final = ((40, "TB"), (30, "GB"), (20, "MB"), (10, "kB"))


class ExportedSnapshot(NamedTuple):
    """The export of a slot's creation: a snapshot of everything committed before a point.

    It can be imported while the connection that made it is open and idle.
    """

    consistent_point: Lsn
    name: str


class SlotState(NamedTuple):
    """A row of _STATE, which reads pg_replication_slots.

    ``lag_bytes`` isn't acknowledged yet. ``retained_bytes`` is the WAL kept for the slot. A slot
    with ``failover`` is copied to standbys. ``synced``: the slot is such a copy, or was. ``limits``
    are the server's settings that invalidate slots.
    """

    confirmed_flush_lsn: Lsn
    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    wal_status: str | None
    safe_wal_size: int | None
    lag_bytes: int
    retained_bytes: int
    invalidation_reason: str | None
    failover: bool
    synced: bool
    limits: Mapping[str, str | None]


def inspect(connection: psycopg.Connection, name: str) -> SlotState | None:
    """Return the slot's current state. None: it doesn't exist."""
    since_17 = _SINCE_17 if has_failover(connection.pgconn) else "NULL, false, false"
    rows = query(connection, _STATE.format(since_17=since_17), [name])
    return next((SlotState(Lsn.parse(lsn), *state) for lsn, *state in rows), None)


def has_failover(pgconn: PGconn) -> bool:
    """Whether the server can copy slots to its standbys."""
    return pgconn.server_version >= 170_000


def verify_ours(connection: psycopg.Connection, state: SlotState) -> None:
    """Raise unless the slot could be ours, in this database."""
    unfinished = state.temporary and not state.synced
    if state.plugin != PLUGIN or state.database != connection.info.dbname or unfinished:
        kind = f"plugin {state.plugin}" if state.plugin else "physical"
        raise ConfigError(
            f"slot {state.name} belongs to another program ({kind}, database {state.database})",
            where=server_address(connection.pgconn),
            remedy="choose another slot.name; or, if no program needs that slot, drop it there:"
            f" {drop_statement(state.name)}",
        )


def why_lost(state: SlotState) -> str | None:
    """Return why the slot can't deliver its changes. None: it can."""
    if state.wal_status == "lost" or state.invalidation_reason:
        return _invalidated(state)
    if state.temporary:
        return "it is an incomplete copy: this server was promoted before the copy was complete"
    return None


def _invalidated(state: SlotState) -> str:
    """Return why the server invalidated the slot, by which setting, and the remedy."""
    reason = state.invalidation_reason or "wal_removed"
    text = f"the server invalidated it ({reason})"
    if reason not in _BY_LIMIT:
        return text
    name, why = _BY_LIMIT[reason]
    return (
        f"{text}: {name} is {state.limits[name]}, and {why}. Raise it, so that the slot survives"
        " the longest time without a daemon"
    )


def lost(name: str, reason: str, where: str) -> GapError:
    """Return the error for a slot that has lost its changes."""
    return GapError(
        f"slot {name} has lost changes that the log lacks: {reason}",
        where=where,
        remedy=NEW_EPOCH,
    )


def lock(connection: psycopg.Connection, name: str) -> bool:
    """Try to take the right to the slot, for the life of this session (decision 0002)."""
    ((taken,),) = query(connection, "SELECT pg_try_advisory_lock(%s::int8)", [_lock_key(name)])
    return bool(taken)


def is_captured(connection: psycopg.Connection, name: str) -> bool:
    """Whether a daemon has the right to the slot. Takes nothing, and never waits."""
    key = _lock_key(name) % (1 << 64)
    return bool(query(connection, _LOCK_HELD, [key >> 32, key % (1 << 32)]))


def create(
    pgconn: PGconn,
    name: str,
    *,
    temporary: bool = False,
    failover: bool = False,
    on_wait: Callable[[float], None] | None = None,
) -> ExportedSnapshot:
    """Create a slot and export its snapshot.

    The server first waits for the transactions that are open. ``on_wait`` is called about every
    second with the seconds waited, and may raise to give up. ``failover`` applies to servers that
    have it.
    """
    kind = "TEMPORARY " if temporary else ""
    export = "(SNAPSHOT 'export')" if pgconn.server_version >= 150_000 else "EXPORT_SNAPSHOT"
    if failover and has_failover(pgconn):
        export = "(SNAPSHOT 'export', FAILOVER)"
    text = f'CREATE_REPLICATION_SLOT "{name}" {kind}LOGICAL {PLUGIN} {export}'
    with explained(pgconn):
        pgconn.send_query(text.encode())
    try:
        result = _await_result(pgconn, on_wait)
    except BaseException:
        if pgconn.status == pq.ConnStatus.OK:
            pgconn.get_cancel().cancel()
        raise
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise refused(name, RefusedError.of(result), server_address(pgconn))
    _, point, snapshot, _ = ((result.get_value(0, i) or b"").decode() for i in range(4))
    return ExportedSnapshot(Lsn.parse(point), snapshot)


def let_fail_over(pgconn: PGconn, state: SlotState) -> None:
    """Have the slot copied to standbys if the server can. Warn if it refuses."""
    if state.failover or not has_failover(pgconn):
        return
    try:
        command(pgconn, f'ALTER_REPLICATION_SLOT "{state.name}" (FAILOVER true)')
    except SourceUnreachableError:
        raise
    except SourceError as error:
        log.warning(
            "the server doesn't copy the slot to standbys", slot=state.name, reason=error.what
        )


@contextmanager
def exact_snapshot(
    source: LibraryOptions,
    name: str,
    on_wait: Callable[[float], None] | None = None,
    wait_s_max: int = 0,
) -> Iterator[ExportedSnapshot]:
    """Yield a new snapshot with an exact position, from a temporary slot that ends with the block.

    For a snapshot that is resumed: the slot's own snapshot ended with its connection. The server
    waits ``wait_s_max`` for each open transaction (0: without limit). It also waits if its client
    has died, as it doesn't notice that during the wait.
    """
    pgconn = connect_replication(source)
    try:
        if wait_s_max:
            command(pgconn, f"SET lock_timeout = '{wait_s_max}s'")
        own_name = f"{snapshot_slots(name)}{secrets.token_hex(4)}"
        yield create(pgconn, own_name, temporary=True, on_wait=on_wait)
    finally:
        pgconn.finish()


def snapshot_slots(name: str) -> str:
    """Return the common beginning of the names of temporary slots that export snapshots."""
    return f"{name[:40]}_snapshot_"


def drop_statement(name: str) -> str:
    """Return SQL that drops a slot, for people."""
    return f"SELECT pg_drop_replication_slot('{name}');"


def drop(connection: psycopg.Connection, name: str) -> bool:
    """Drop the slot. Return whether it existed. Raise SlotInUseError if a session reads it."""
    state = inspect(connection, name)
    if state is None:
        return False
    if state.active:
        raise in_use(name, state.active_pid, server_address(connection.pgconn))
    query(connection, "SELECT pg_drop_replication_slot(%s)", [name])
    return True


def in_use(name: str, pid: int | None, where: str) -> SlotInUseError:
    """Return the error for a slot that another session reads."""
    reader = f"the server process {pid}" if pid else "another session"
    return SlotInUseError(
        f"slot {name} is in use by {reader}",
        where=where,
        remedy="stop the other reader (see pg_stat_replication), or choose another slot.name",
    )


def _await_result(pgconn: PGconn, on_wait: Callable[[float], None] | None) -> PGresult:
    started = time.monotonic()
    reported_s = 0
    while pgconn.is_busy():
        wait_readable(pgconn, 0.2)
        waited = time.monotonic() - started
        if on_wait is not None and int(waited) > reported_s:
            reported_s = int(waited)
            on_wait(waited)
    with explained(pgconn):
        result = pgconn.get_result()
        while pgconn.get_result() is not None:
            pass
    assert result is not None, "a command without a result"  # noqa: S101 (libpq's promise)
    return result


def refused(name: str, refusal: RefusedError, where: str) -> MillraceError:
    """Return the meaning of the server's refusal to create the slot, or to stream from it."""
    if refusal.sqlstate == _OBJECT_IN_USE:
        pid = re.search(r"\bPID (\d+)|(\d+)\D*\Z", refusal.text)
        return in_use(name, int(pid[1] or pid[2]) if pid else None, where)
    if refusal.sqlstate == _DUPLICATE_OBJECT:
        return SlotInUseError(
            f"slot {name} already exists: another program has created it",
            where=where,
            remedy="stop the other daemon, or choose another slot.name",
        )
    if refusal.sqlstate == _LIMIT_EXCEEDED:
        return SourceSettingError(
            f"no replication slot is free: {refusal.text}",
            where=where,
            remedy="drop an unused slot (SELECT * FROM pg_replication_slots), or raise"
            " max_replication_slots and restart the server",
        )
    if refusal.sqlstate == _NOT_IN_PREREQUISITE_STATE:
        return SourceSettingError(refusal.text, where=where, remedy=SET_WAL_LEVEL)
    return refusal.error(where)


def _lock_key(name: str) -> int:
    """Return the advisory lock of a slot of this database: a stable signed 64-bit hash."""
    digest = hashlib.sha256(f"millrace slot {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Concern(NamedTuple):
    """One concern. ``level`` grows as it gets worse."""

    kind: str
    level: int
    text: str
    remedy: str = ""


def concerns(state: SlotState, bytes_max: int | None) -> Iterator[Concern]:
    """Yield the concerns about the slot. ``bytes_max`` is slot.max.lag.bytes."""
    held = state.retained_bytes
    limits = [("slot.max.lag.bytes", bytes_max)]
    if state.safe_wal_size is not None:
        limits.append(("max_slot_wal_keep_size at the server", held + max(0, state.safe_wal_size)))
    for name, limit in limits:
        percent = 100 * held // limit if limit else 0
        level = next((level for level in LEVELS if percent >= level), 0)
        if level and limit:
            text = f"holds back {size(held)} of WAL, {percent} % of {name} ({size(limit)})"
            remedy = _catch_up(state)
            if state.lag_bytes < held // 2:
                text += f"; the log lacks only {size(state.lag_bytes)}, the rest is {HELD}"
                remedy = _END_OLDEST
            yield Concern(name, level, f"slot {state.name} {text}", remedy)
    for level, (status, text) in enumerate(_STATUSES.items(), 1):
        if state.wal_status == status:
            remedy = "millrace new-epoch" if status == "lost" else _catch_up(state)
            yield Concern("wal_status", level, f"slot {state.name} is {status}: {text}", remedy)


def _catch_up(state: SlotState) -> str:
    """Return what lets a slot catch up, or gives it more room."""
    reads = (
        "find out what slows the daemon down: read its log, and run millrace check"
        if state.active
        else "let the daemon catch up: millrace run"
    )
    if state.safe_wal_size is None:
        return reads
    room = 2 * max(1, state.retained_bytes >> 20)
    return (
        f"{reads}; or keep more WAL: ALTER SYSTEM SET max_slot_wal_keep_size = '{room}MB';"
        " SELECT pg_reload_conf();"
    )


def size(number: int) -> str:
    """Return bytes in PostgreSQL's units, where 1 kB is 1,024 bytes."""
    for shift, unit in _UNITS:
        if number >= 1 << shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} bytes"
