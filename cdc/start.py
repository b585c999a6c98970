"""Slot, progress record and source → where to go on, or a clear stop.

docs/decisions/0002-start-and-acknowledge.md is the specification of this module: what each start
finds, in which order it looks, and what it does about it.
"""

import time
from collections.abc import Callable, Container, Iterable
from uuid import uuid4

import psycopg
from psycopg.pq.abc import PGconn

from cdc.errors import GapError
from cdc.faults import FaultPoint, reach
from cdc.kafka.producer import LogWriter
from cdc.postgres import slot
from cdc.postgres.connection import System
from cdc.postgres.slot import ExportedSnapshot, SlotState
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Phase, Progress, progress_record
from cdc.settings import Settings

EPOCH = 1
"""A source's first history; the only one until a daemon can go on from another."""
SHOWN_MAX = 20


def check_continuity(
    progress: Progress, state: SlotState | None, system: System, wal_end: Lsn
) -> None:
    """Raise GapError unless the slot gives everything after the recorded progress."""
    recorded = f"the log's progress record for slot {progress.slot}"
    if progress.system_identifier != system.identifier:
        raise GapError(
            f"this is another PostgreSQL cluster (system identifier {system.identifier}, "
            f"{recorded} has {progress.system_identifier})",
            remedy="point [source] at the cluster that was captured, or capture this one under "
            "another topic.prefix",
        )
    _check_history(progress, system, wal_end)
    if state is None:
        raise GapError(
            f"slot {progress.slot} is gone, but {recorded} says that it was at "
            f"{progress.flush_lsn}: what was written since is not in the log",
            remedy="capture again under another topic.prefix and slot.name",
        )
    if state.confirmed_flush_lsn > progress.flush_lsn:
        raise GapError(
            f"slot {progress.slot} was moved to {state.confirmed_flush_lsn}, beyond "
            f"{progress.flush_lsn} in {recorded}: what lies between is not in the log",
            remedy="nothing else may advance the slot; capture again under another topic.prefix "
            "and slot.name",
        )


def _check_history(progress: Progress, system: System, wal_end: Lsn) -> None:
    """Raise GapError where the server has forgotten what the log has, and goes on without it."""
    reached = max(progress.flush_lsn, progress.position.commit_lsn)
    forked = progress.timeline != system.timeline
    kept = system.forks.get(progress.timeline, Lsn(0)) if forked else wal_end
    if kept >= reached:
        return
    raise GapError(
        f"the server's history is another one: on timeline {progress.timeline} the log reaches "
        f"{reached}, but the server (timeline {system.timeline}) has that only up to {kept}, after "
        "a failover or from a backup. Other changes may stand in the same places",
        remedy="capture again under another topic.prefix and slot.name",
    )


def check_untouched(states: Container[TableName], tables: Iterable[TableName]) -> None:
    """Raise GapError where a slot that is still to be made meets tables that were captured."""
    captured = [str(table) for table in tables if table in states]
    if captured:
        raise GapError(
            "the log has rows of these tables already, but nothing from this slot: "
            f"{', '.join(captured[:SHOWN_MAX])}. What was written in between is not in the log",
            remedy="keep the slot.name that they were captured with; or capture again under another"
            " topic.prefix; or start anew: millrace drop --yes --topics, then millrace run",
        )


def check_unrecorded(state: SlotState | None, name: str) -> None:
    """Raise GapError for a slot that exists without a progress record."""
    if state is not None:
        raise GapError(
            f"slot {name} exists, but the log has no progress record for it: nobody can tell "
            "what it already gave away",
            remedy="if nothing needs the slot, remove it with `millrace drop --yes`, or choose "
            "another slot.name and topic.prefix",
        )


def first_progress(settings: Settings, system: System) -> Progress:
    """The record that announces a slot before it is made."""
    nowhere = Position(EPOCH, Lsn(0), 0)
    return Progress(
        log=uuid4().hex,
        slot=settings.capture.slot_name,
        system_identifier=system.identifier,
        timeline=system.timeline,
        database=system.database,
        phase=Phase.CREATING,
        position=nowhere,
        cut=nowhere,
        flush_lsn=Lsn(0),
        ts_ms=time.time_ns() // 1_000_000,
    )


def create_slot(
    settings: Settings,
    sql: psycopg.Connection,
    replication: PGconn,
    system: System,
    writer: LogWriter,
    *,
    left_over: SlotState | None,
    on_wait: Callable[[float], None],
) -> tuple[Progress, ExportedSnapshot]:
    """Make the slot, recording each step before the next; returns its progress and snapshot.

    The snapshot holds as long as ``replication`` does nothing else and stays open. ``left_over``
    is a slot that an earlier start made without recording so: nothing of it has reached the log,
    so it is dropped.
    """
    prefix, name = settings.capture.topic_prefix, settings.capture.slot_name
    progress = first_progress(settings, system)
    writer.write([progress_record(prefix, progress)])
    writer.commit()
    reach(FaultPoint.CREATING_RECORDED)
    if left_over is not None:
        slot.drop(sql, name)
    exported = slot.create(replication, name, on_wait=on_wait)
    reach(FaultPoint.SLOT_CREATED)
    point = Position(EPOCH, exported.consistent_point, 0)
    progress = progress.model_copy(
        update={
            "phase": Phase.SNAPSHOT,
            "position": point,
            "cut": point,
            "flush_lsn": exported.consistent_point,
        }
    )
    writer.write([progress_record(prefix, progress)])
    writer.commit()
    reach(FaultPoint.SNAPSHOT_RECORDED)
    return progress, exported
