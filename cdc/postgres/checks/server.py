"""A server's settings → the requirements of capturing, their values, and the problems."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import psycopg

from cdc.errors import SourceSettingError, StandbyError
from cdc.postgres import slot as slots
from cdc.postgres.connection import query

_SETTINGS: Final = """
SELECT current_setting('wal_level'), pg_is_in_recovery(),
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)
"""
SENDERS: Final = "max_wal_senders"
_OWN_SENDERS: Final = "SELECT count(*) FROM pg_stat_replication WHERE pid = %s::int"


class Requirement(NamedTuple):
    """A requirement of capturing. ``problem``: why this server doesn't meet it."""

    name: str
    found: str
    needed: str
    problem: SourceSettingError | None = None


def requirements(connection: psycopg.Connection, slot: str, where: str) -> Iterator[Requirement]:
    """Yield the requirements of the server. For a standby, nothing else matters."""
    ((wal_level, standby, slots_max, slots_used, senders_max, senders_used),) = query(
        connection, _SETTINGS
    )
    if standby:
        yield Requirement(
            "role of the server",
            "a standby",
            "a primary",
            StandbyError(
                "the server is a standby, or isn't promoted yet; it can't be a source",
                where=where,
                remedy="set host in [source] to the primary, or to all servers with"
                " target_session_attrs = read-write",
            ),
        )
        return

    def problem(is_wrong: bool, what: str, remedy: str) -> SourceSettingError | None:
        return SourceSettingError(what, where=where, remedy=remedy) if is_wrong else None

    yield Requirement("role of the server", "a primary", "a primary")
    yield Requirement(
        "wal_level",
        wal_level,
        "logical",
        problem(
            wal_level != "logical",
            f"wal_level is {wal_level}; logical decoding needs logical",
            f"{slots.SET_WAL_LEVEL} (managed services: rds.logical_replication = 1, or"
            " cloudsql.logical_decoding = on)",
        ),
    )
    state = slots.inspect(connection, slot)
    has_slot = state is not None
    pid = state.active_pid if state is not None else None
    ((own_senders,),) = query(connection, _OWN_SENDERS, [pid])
    yield Requirement(
        "max_replication_slots",
        f"{slots_used} of {slots_max} in use" + (f", {slot} among them" if has_slot else ""),
        "a free slot, or the daemon's slot",
        problem(
            slots_used >= slots_max and not has_slot,
            f"all {slots_max} replication slots are in use",
            f"ALTER SYSTEM SET max_replication_slots = {slots_max + 2}; then restart the server,"
            " or drop an unused slot (pg_replication_slots)",
        ),
    )
    yield Requirement(
        SENDERS,
        f"{senders_used} of {senders_max} in use" + (", the daemon's among them" * own_senders),
        "a free WAL sender, or the daemon's WAL sender",
        problem(
            senders_used - own_senders >= senders_max,
            f"all {senders_max} WAL senders are in use",
            f"ALTER SYSTEM SET max_wal_senders = {senders_max + 2}; then restart the server, or"
            " stop a replication client (pg_stat_replication)",
        ),
    )
