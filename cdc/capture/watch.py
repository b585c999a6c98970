"""The slot, inspected every few seconds → heartbeats, warnings, and an end before the disk is full.

A thread with its own session ("millrace watch"). A lock, a hanging server or a silent network costs
the stream nothing. The thread also watches the slot while the brokers are unavailable, which is
when the slot grows. Heartbeats are transactional logical messages. Their commit is in the stream,
so the slot moves even if the captured tables are idle, and a heartbeat that returns proves that
everything works.
"""

import threading
import time
from typing import Final, Self

import psycopg
import structlog

from cdc.capture.health import Health, Heartbeat, Stage
from cdc.errors import (
    MillraceError,
    PublicationError,
    SlotInUseError,
    SlotLagError,
    SourceError,
    TableLockedError,
)
from cdc.events.metadata import SOURCE_HEARTBEAT
from cdc.postgres import slot
from cdc.postgres.checks import risks
from cdc.postgres.checks.rights import emit_remedy
from cdc.postgres.checks.risk import Risk
from cdc.postgres.connection import bounded, connect, query, target
from cdc.postgres.slot import HELD, Concern, SlotState, concerns, size
from cdc.records.position import Lsn
from cdc.settings import Settings

log = structlog.get_logger()
INSPECT_S: Final = 5.0
"""How often the slot is inspected."""
RISKS_S: Final = 30.0
"""How often settings and publication are checked."""
REPEAT_S: Final = 300.0
"""How often a warning is repeated while its cause stays."""
PATIENCE_S: Final = 10.0
"""How long one turn may take before its connection counts as dead."""
_TICK_S: Final = 0.25
_AGAIN_S: Final = 2.0
_DROP_S: Final = 15.0
_SESSION: Final = (
    "SET statement_timeout = '5s'",
    "SET lock_timeout = '100ms'",
    "SET synchronous_commit = off",  # a heartbeat waits for no disk and no standby
)
_BEAT: Final = "SELECT pg_logical_emit_message(true, %s::text, %s::text)::text"


class SlotWatch:
    """Watch of the slot while the daemon has it. It ends with its context.

    If the slot's lag must end the daemon, the watch sets ``stop``, and the exit of the context
    raises the reason.
    """

    def __init__(self, settings: Settings, health: Health, stop: threading.Event) -> None:
        self._source = settings.source
        self._capture = settings.capture
        self._health = health
        self._stop = stop
        self._heartbeat_s = settings.capture.heartbeat_source_interval_ms / 1_000
        self._timeout_s = settings.health.ready_timeout_ms / 1_000
        self._next_heartbeat = self._next_inspection = 0.0
        self._may_write = True
        self._connection: psycopg.Connection | None = None
        self._next_risks = 0.0
        self._risks: set[Risk] = set()
        self._publishes_every_root = False
        self._detaches: set[Risk] = set()
        self._warned: dict[str, tuple[int, float]] = {}
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """End the watch. Raise the error with which it has ended the daemon."""
        self._ended.set()
        self._thread.join(PATIENCE_S)
        if self._failure is None:
            return
        is_to_go = self._capture.slot_max_lag_policy == "drop"
        if isinstance(self._failure, SlotLagError) and is_to_go:
            self._drop(self._failure)
        raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(_TICK_S):
                if self._health.has_slot:
                    self._turn()
        except BaseException as failure:  # noqa: BLE001 (raised where the watch ends)
            self._failure = failure
            self._stop.set()
        self._disconnect()

    def _turn(self) -> None:
        """Do what is due. If the server doesn't answer, try again later."""
        now = time.monotonic()
        beats = bool(self._heartbeat_s) and self._health.stage is Stage.STREAMING
        if self._health.is_unproven and self._connection is not None:
            self._next_heartbeat = now  # prove a new stay on the stream at once
        if now < self._next_inspection and not (beats and now >= self._next_heartbeat):
            return
        try:
            connection = self._open()
            with bounded(connection, PATIENCE_S):
                state = slot.inspect(connection, self._capture.slot_name)
                self._health.slot_inspected(state)
                if state is None:
                    return  # not created yet
                self._warn(list(concerns(state, self._capture.slot_max_lag_bytes)))
                self._limit(state)
                self._find_risks(connection, now)
                self._find_detaches(connection)
                if self._health.stage is Stage.STREAMING:
                    self._write(connection, state, now)
        except SlotLagError:
            raise
        except MillraceError as error:
            self._disconnect()
            self._next_heartbeat = time.monotonic() + _AGAIN_S
            self._warn([Concern("watch", 0, f"can't read the slot's state: {error.what}")])
        finally:
            self._next_inspection = time.monotonic() + INSPECT_S

    def _open(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = connection = connect(self._source, purpose="watch")
            self._may_write = True
            with bounded(connection, PATIENCE_S):
                for statement in _SESSION:
                    query(connection, statement)
        return self._connection

    def _find_risks(self, connection: psycopg.Connection, now: float) -> None:
        """Warn once of each risk for the source. Users can cause one at any time."""
        if now < self._next_risks:
            return
        self._next_risks = now + RISKS_S
        try:
            current = set(risks.find_risks(connection, self._source, self._capture))
            publication = self._capture.publication_name
            self._publishes_every_root = risks.publishes_every_root(connection, publication)
        except (PublicationError, TableLockedError):
            return  # PostgreSQL reads each published table; that can wait
        self._risks = _told(current, self._risks)

    def _find_detaches(self, connection: psycopg.Connection) -> None:
        """Warn once of each partition whose next change would crash the server."""
        if not self._publishes_every_root:
            return
        self._detaches = _told(set(risks.pending_detaches(connection)), self._detaches)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _warn(self, current: list[Concern]) -> None:
        """Log new and worse concerns at once, and repeat the others from time to time."""
        now = time.monotonic()
        kinds = {concern.kind for concern in current}
        self._warned = {kind: last for kind, last in self._warned.items() if kind in kinds}
        for each in current:
            before, until = self._warned.get(each.kind, (-1, 0.0))
            if each.level > before or now >= until:
                log.warning(each.text)
                self._warned[each.kind] = (each.level, now + REPEAT_S)

    def _limit(self, state: SlotState) -> None:
        """Raise SlotLagError if the slot holds back too much and the policy isn't to warn."""
        limit, policy = self._capture.slot_max_lag_bytes, self._capture.slot_max_lag_policy
        if policy == "warn" or limit is None or state.retained_bytes <= limit:
            return
        # The slot may belong to another program until the start has compared slot and log.
        if policy == "drop" and self._health.progress is None:
            return
        cause = "find out why the log doesn't keep up (`millrace status`)"
        if state.lag_bytes < limit:
            cause = (
                "end the oldest transaction (pg_stat_activity.xact_start, pg_prepared_xacts): the"
                f" log lacks only {size(state.lag_bytes)}, the rest is {HELD}"
            )
        raise SlotLagError(
            f"slot {state.name} holds back {size(state.retained_bytes)} of WAL, more than"
            f" slot.max.lag.bytes ({size(limit)})",
            where=target(self._source),
            remedy=f"{cause}, and start again with a larger slot.max.lag.bytes to catch up; or free"
            " the disk now, and read all tables again later: millrace new-epoch --yes",
        )

    def _write(self, connection: psycopg.Connection, state: SlotState, now: float) -> None:
        """Write a heartbeat if it is due. If it can't be written, use the WAL's end.

        The WAL's end also serves between heartbeats that are rarer than health is asked for.
        """
        is_due = now >= self._next_heartbeat
        if self._heartbeat_s and self._may_write and not is_due:
            if self._heartbeat_s <= self._timeout_s:
                return
        elif self._heartbeat_s and self._may_write:
            self._next_heartbeat = now + self._heartbeat_s
            try:
                ((lsn,),) = query(connection, _BEAT, [SOURCE_HEARTBEAT, state.name])
            except SourceError as error:
                if connection.broken or error.retry:
                    raise
                self._may_write = False
                log.warning(
                    "the daemon writes no heartbeats to the source; it relies on keepalives",
                    reason=error.what,
                    remedy=emit_remedy(connection),
                )
            else:
                self._health.written(Heartbeat(Lsn.parse(lsn), now))
                return
        self._health.written(Heartbeat(Lsn(state.confirmed_flush_lsn + state.lag_bytes), now))

    def _drop(self, failure: SlotLagError) -> None:
        """Drop the slot, whose stream has ended or is about to. Raise the outcome."""
        deadline = time.monotonic() + _DROP_S
        while True:
            try:
                with connect(self._source, purpose="drop") as connection:
                    slot.drop(connection, self._capture.slot_name)
            except SlotInUseError as error:
                reason = error.what
            except MillraceError as error:
                reason = error.what
                deadline = 0
            else:
                raise SlotLagError(
                    f"{failure.what}: the daemon dropped the slot (slot.max.lag.policy). The log"
                    " lacks all later changes",
                    where=failure.where,
                    remedy=slot.NEW_EPOCH,
                )
            if time.monotonic() > deadline:
                break
            time.sleep(_TICK_S)
        raise SlotLagError(
            f"{failure.what}, but the daemon can't drop it: {reason}",
            where=failure.where,
            remedy="drop it by hand before the server's disk is full:"
            f" {slot.drop_statement(self._capture.slot_name)}",
        )


def _told(current: set[Risk], before: set[Risk]) -> set[Risk]:
    """Warn of risks that are new, and return the current ones."""
    for risk in sorted(current - before):
        log.warning(str(risk))
    return current
