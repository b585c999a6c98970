"""PostgreSQL, the role and the publication → capturing's requirements, by a start's own checks.

It takes and creates no slot, and writes nothing. It uses a WAL sender for a moment, as
IDENTIFY_SYSTEM needs one.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import psycopg

from cdc.capture.start import check_progress, check_untouched, require_own
from cdc.errors import MillraceError, SourceError, TableLockedError
from cdc.postgres import slot as slots
from cdc.postgres.captured import captured_tables, check_publication, described_tables
from cdc.postgres.checks import preflight, risks
from cdc.postgres.checks.powers import POWERS
from cdc.postgres.checks.rights import (
    leaves,
    signals_unseen,
    unpublishable,
    unreadable,
    unwritable,
)
from cdc.postgres.checks.server import SENDERS, requirements
from cdc.postgres.checks.soon import quickly
from cdc.postgres.connection import (
    System,
    bounded,
    command,
    connect,
    connect_replication,
    current_wal_end,
    identify,
    query,
)
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import server_address
from cdc.records.sql_names import quote
from cdc.records.state import Phase
from cdc.settings import LibraryOptions
from deploy.check.result import Area, CheckResult, Level, Unanswered
from deploy.check.runner import DEADLINE_S
from deploy.check.scene import Scene, SlotBefore
from deploy.check.tables import check_tables
from deploy.status.lag import SKEW_S_MAX

_SESSION: Final = {
    "default_transaction_read_only": "on",
    "statement_timeout": "5s",
    "lock_timeout": "200ms",
}
_CONNECT_S: Final = 4
_RISKS: Final = (
    "max_slot_wal_keep_size",
    "synchronous_standby_names",
    "identities in the publication",
    "names of tables",
    "values that name objects",
    "foreign partitions",
    "table.include.list",
    POWERS,
)
"""The subjects of ``find_risks``."""
_PUBLISHED: Final = ("insert", "update", "delete", "truncate")
_OPERATIONS: Final = """
SELECT array_remove(ARRAY[
    CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
    CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL),
    pubviaroot
FROM pg_publication WHERE pubname = %s
"""
_LIMITS: Final = """
SELECT current_setting('max_slot_wal_keep_size'), current_setting('synchronous_standby_names')
"""
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ENCODING: Final = "SELECT current_setting('server_encoding')"
_TIMEOUT: Final = "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"


def check_source(scene: Scene) -> Iterator[CheckResult]:
    """Check the whole source, and its tables."""
    part, settings = Area("source"), scene.settings
    source = quickly(settings.source, _CONNECT_S)
    try:
        opened = connect(source, purpose="check", pinned=_SESSION)
    except MillraceError as error:
        yield part.of_error("connection", error, needed="PostgreSQL 14 or newer")
        scene.slot.settle(None)
        scene.tables.settle(None)
        yield part.unknown("everything else", "there is no connection")
        yield Area("tables").unknown("everything", "there is no connection to PostgreSQL")
        return
    try:
        with closing(opened) as connection, bounded(connection, DEADLINE_S):
            yield from _Source(scene, source, connection).findings()
    finally:
        scene.slot.settle(None)
        scene.tables.settle(None)


@dataclass
class _Source:
    """One check of the source, by a connection that only reads."""

    scene: Scene
    source: LibraryOptions
    connection: psycopg.Connection

    def __post_init__(self) -> None:
        self.part = Area("source")
        self.capture = self.scene.settings.capture
        self.where = server_address(self.connection.pgconn)

    def findings(self) -> Iterator[CheckResult]:
        """Check server, role, slot, publication, and then the tables."""
        connection, part, where = self.connection, self.part, self.where
        version = connection.pgconn.parameter_status(b"server_version") or b""
        found = f"PostgreSQL {version.decode()} at {where}"
        yield part.ok("connection", found, "PostgreSQL 14 or newer")
        yield self._clock()
        needed = {
            each.name: each for each in requirements(connection, self.capture.slot_name, where)
        }
        for each in needed.values():
            errors = filter(None, [each.problem])
            yield from part.of_errors(each.name, errors, each.found, each.needed)
        senders = needed.get(SENDERS)
        has_sender = senders is not None and senders.problem is None
        system = yield from self._replication(has_sender=has_sender)
        yield part.tried("slot", self._slot)
        if (found_slot := self.scene.slot.get()) is not None and found_slot.state is not None:
            limit = self.capture.slot_max_lag_bytes
            for concern in slots.concerns(found_slot.state, limit):
                yield part.warning("WAL held back", concern.text, concern.remedy, where)
        yield self._encoding()
        yield from self._published(system)

    def _clock(self) -> CheckResult:
        before = time.time()
        ((theirs,),) = query(self.connection, _CLOCK)
        after = time.time()
        skew_s = max(theirs - after, before - theirs, 0.0)
        if skew_s > SKEW_S_MAX:
            ahead = "ahead of" if theirs > after else "behind"
            return self.part.warning(
                "clock",
                f"the server's clock is {skew_s:.1f} s {ahead} this machine's; each lag shown is"
                " wrong by that much",
                "set both machines' clocks by the same NTP server",
                self.where,
            )
        return self.part.ok("clock", f"within {SKEW_S_MAX:.0f} s of this machine's clock")

    def _replication(self, *, has_sender: bool) -> Generator[CheckResult, None, System | None]:
        """Try to start replication with the role. Return the system.

        If the daemon ``has_sender``, no other one may be left for the attempt.
        """
        part, system = self.part, None
        try:
            pgconn = connect_replication(self.source)
            try:
                system = identify(pgconn)
                shown = command(pgconn, "SHOW wal_sender_timeout").get_value(0, 0) or b""
            finally:
                pgconn.finish()
        except MillraceError as error:
            if has_sender and SENDERS in error.what:
                why = "all WAL senders are in use; the daemon uses one of them"
                remedy = "run `millrace check` again when one is free (pg_stat_replication)"
                yield part.unknown("replication", why, remedy)
            else:
                yield part.of_error("replication", error, needed="a role with REPLICATION")
            return system
        found = f"the server answers IDENTIFY_SYSTEM, timeline {system.timeline}"
        yield part.ok("replication", found, "a role with REPLICATION")
        ((of_server,),) = query(self.connection, _TIMEOUT)
        seconds = f"{of_server / 1_000:.0f} s elsewhere"
        found = f"{shown.decode()} on the daemon's connection, {seconds}"
        yield part.ok("wal_sender_timeout", found, "10s on the daemon's connection")
        return system

    def _slot(self) -> str:
        name = self.capture.slot_name
        state = slots.inspect(self.connection, name)
        self.scene.slot.settle(SlotBefore(state))
        if state is None:
            return f"{name} doesn't exist; the first start creates it"
        slots.verify_ours(self.connection, state)
        if (reason := slots.why_lost(state)) is not None:
            raise slots.lost(name, reason, self.where)
        activity = "a daemon reads it" if state.active else "no daemon reads it"
        held = slots.size(state.retained_bytes)
        return f"{name}: {activity}, holds back {held}, {state.wal_status or 'status unknown'}"

    def _encoding(self) -> CheckResult:
        ((encoding,),) = query(self.connection, _ENCODING)
        if encoding == "SQL_ASCII":
            return self.part.warning(
                "encoding",
                "the database's encoding is SQL_ASCII, which accepts any bytes: a row that isn't"
                " valid UTF-8 sets its table aside",
                "see docs/guides/postgresql.md, Encodings",
                self.where,
            )
        return self.part.ok("encoding", f"{encoding}, which the server sends as UTF-8")

    def _published(self, system: System | None) -> Iterator[CheckResult]:
        """Check the publication, rights, risks and tables, and whether the log can continue."""
        part, capture, connection = self.part, self.capture, self.connection
        try:
            captured = captured_tables(connection, capture)
            described = described_tables(connection, capture, captured)
        except TableLockedError as error:
            yield part.unknown("tables", f"a lock is held: {error.what}", error.remedy)
            return
        except SourceError as error:
            yield part.of_error("publication", error)
            yield Area("tables").unknown("everything", "the captured tables are unknown")
            return
        described.sort(key=lambda table: capture.snapshot_rank(str(table.name)))
        self.scene.tables.settle(described)
        yield from part.of_errors(
            "captured tables",
            preflight.some_tables(described, self.where),
            f"{len(described)} tables pass the lists",
        )
        yield from self._publication(captured)
        yield from self._rights(described)
        yield from self._risks()
        yield from check_tables(self.scene, connection, described)
        yield part.tried("continuity", partial(self._continuity, system, described))

    def _publication(self, captured: list[CapturedTable]) -> Iterator[CheckResult]:
        capture, name = self.capture, self.capture.publication_name
        log = self.scene.log.get()
        needed = "every captured table, every operation, changes of partitions under their root"
        try:
            is_there = check_publication(self.connection, capture, captured)
        except SourceError as error:
            # A log that has begun continues without tables that the publication lacks.
            level = Level.WARNING if log is not None and log.has_begun else Level.FAILURE
            yield self.part.of_error("publication", error, level, needed)
            return
        if capture.publication_autocreate_mode == "filtered":
            found = (
                f"{name} has all captured tables" if is_there else f"the first start creates {name}"
            )
            yield self.part.ok("publication", found, needed)
            return
        ((operations, by_root),) = query(self.connection, _OPERATIONS, [name])
        if lacking := [each for each in _PUBLISHED if each not in operations]:
            yield self.part.warning(
                "publication",
                f"publication {name} doesn't publish {', '.join(lacking)}: derived tables miss"
                " these changes of the source",
                f"let its owner run ALTER PUBLICATION {quote(name)} SET (publish ="
                f" '{', '.join(_PUBLISHED)}');",
            )
        else:
            roots = "their roots" if by_root else "their own names"
            found = f"{name} is used unchanged: it publishes every operation; partitions by {roots}"
            yield self.part.ok("publication", found)

    def _rights(self, described: list[TableDescription]) -> Iterator[CheckResult]:
        part, connection, where = self.part, self.connection, self.where
        role = connection.info.user
        rows = unreadable(connection, leaves(described), where)
        yield from part.of_errors("rights to rows", rows, f"role {role} can read all captured rows")
        creating = unpublishable(connection, self.capture, described, where)
        found = "the publication exists, or the role can create it"
        yield from part.of_errors("right to publish", creating, found)
        missing = unwritable(connection, self.capture, where)
        found = "the role can write heartbeats and watermarks"
        yield from part.of_errors("right to write messages", missing, found)
        for risk in signals_unseen(connection, self.capture):
            yield part.warning(risk.requirement, risk.what, risk.remedy, where)

    def _risks(self) -> Iterator[CheckResult]:
        """Report what permits capturing, but a running daemon warns of."""
        part, connection, capture = self.part, self.connection, self.capture
        names = list(_RISKS)
        looks = [risks.find_risks(connection, self.scene.settings.source, capture)]
        if capture.slot_failover:
            names.append("synchronized_standby_slots")
            looks.append(risks.find_failover_risk(connection))
        if risks.publishes_every_root(connection, capture.publication_name):
            names.append("partitions being detached")
            looks.append(risks.pending_detaches(connection))
        is_told = set[str]()
        for risk in (risk for look in looks for risk in look):
            if risk.requirement != risks.READING:  # a failure above
                is_told.add(risk.requirement)
                yield part.warning(risk.requirement, risk.what, risk.remedy, self.where)
        ((keep_size, standbys),) = query(connection, _LIMITS)
        own = capture.slot_max_lag_bytes
        limit = f"{keep_size}; slot.max.lag.bytes is {slots.size(own)}" if own else keep_size
        limits = {"max_slot_wal_keep_size": limit, "synchronous_standby_names": standbys or "none"}
        for name in names:
            if name not in is_told:
                yield part.ok(name, limits.get(name, "no problem"))

    def _continuity(
        self, system: System | None, described: list[TableDescription]
    ) -> str | Unanswered:
        """Check whether a start would continue the log. The slot was inspected before the log."""
        slot, log = self.scene.slot.get(), self.scene.log.get()
        if system is None or slot is None or log is None:
            return Unanswered("the slot, the log or the server's history is unknown")
        if not log.is_behind_slot:
            return Unanswered(
                "PostgreSQL answered too late, after the log was read",
                "run `millrace check` again",
            )
        progress, wal_end = log.progress, partial(current_wal_end, self.connection)
        check_progress(self.capture, progress, slot.state, system, wal_end)
        if progress is None or progress.phase is Phase.CREATING:
            require_own(progress, slot.state, system)
        if not log.has_begun:
            states = {state.name for state in log.states.values() if state.is_in_log}
            check_untouched(states, [table.name for table in described])
            return "no table is captured yet; the first start reads all tables"
        return (
            f"the log ends at {progress.position if progress else ''}, and the slot continues"
            " from there"
        )
