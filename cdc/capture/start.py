"""Slot, progress record and source → where to continue, a clear stop, or a new epoch.

docs/decisions/0002-start-and-acknowledge.md specifies this module: the states that a start meets,
the order of its checks, and its actions. 0009-epochs.md says how a log continues from another
history.
"""

import time
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from uuid import uuid4

from psycopg.pq.abc import PGconn

from cdc.capture.servers import Servers, is_complete
from cdc.errors import ConfigError, GapError
from cdc.faults import FaultPoint, reach
from cdc.lines import name_first
from cdc.log.state import read_tables
from cdc.postgres import slot
from cdc.postgres.connection import System, current_wal_end
from cdc.postgres.slot import NEW_EPOCH, ExportedSnapshot, SlotState
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Phase, Progress, TableState, progress_record
from cdc.records.state_pieces import StateRecords
from cdc.records.topics import table_topic
from cdc.settings import CaptureSettings
from cdc.tables.states import right_until


def check_continuity(
    progress: Progress, state: SlotState | None, system: System, wal_end: Lsn
) -> None:
    """Raise GapError unless the slot delivers everything after the recorded progress."""
    recorded = f"the log's progress record for slot {progress.slot}"
    if progress.system_identifier != system.identifier:
        raise GapError(
            f"[source] is another PostgreSQL cluster (system identifier {system.identifier};"
            f" {recorded} has {progress.system_identifier})",
            remedy="set [source] to the captured cluster, or capture this one with another"
            f" topic.prefix; {NEW_EPOCH}",
        )
    _check_history(progress, system, wal_end)
    if state is None:
        raise GapError(
            f"slot {progress.slot} is missing, but {recorded} says that it was at"
            f" {progress.flush_lsn}: the log lacks all later changes",
            remedy=NEW_EPOCH,
        )
    if (reason := slot.why_lost(state)) is not None:
        raise slot.lost(state.name, reason, recorded)
    if state.confirmed_flush_lsn > progress.flush_lsn:
        raise GapError(
            f"slot {progress.slot} was moved to {state.confirmed_flush_lsn}, beyond"
            f" {progress.flush_lsn} in {recorded}: the log lacks the changes between them",
            remedy="let no other program advance the slot: if another one uses it, choose another"
            f" slot.name; {NEW_EPOCH}",
        )


def _check_history(progress: Progress, system: System, wal_end: Lsn) -> None:
    """Raise GapError if the server has lost history that the log has, and continues without it."""
    # If the log has a part of a transaction, the commit is needed, too.
    is_partial = progress.position > progress.cut
    needed = max(progress.flush_lsn, Lsn(progress.position.commit_lsn + is_partial))
    forked = progress.timeline != system.timeline
    kept = system.forks.get(progress.timeline, Lsn(0)) if forked else wal_end
    if kept >= needed:
        return
    raise GapError(
        "the server has another history, after a failover or from a backup: the log reaches"
        f" {needed} on timeline {progress.timeline}, but the server (timeline {system.timeline})"
        f" shares it only up to {kept}. Other changes may be at the same LSNs",
        remedy=NEW_EPOCH,
    )


def check_untouched(states: Container[TableName], tables: Iterable[TableName]) -> None:
    """Raise GapError if the slot doesn't exist yet, but the log has captured tables."""
    captured = [str(table) for table in tables if table in states]
    if captured:
        raise GapError(
            "the log has rows of these tables, but nothing from this slot:"
            f" {name_first(captured)}. The log lacks the changes in between",
            remedy="set the slot.name that captured them; or capture again with another"
            " topic.prefix; or begin a new log: millrace drop --yes --topics, then millrace"
            " run",
        )


def check_unrecorded(state: SlotState | None, name: str) -> None:
    """Raise GapError for a slot that exists without a progress record."""
    if state is not None:
        raise GapError(
            f"slot {name} exists, but the log has no progress record for it: what it has already"
            " delivered is unknown",
            remedy="choose another slot.name and topic.prefix; or, if no other program uses the "
            f"slot, drop it at the source: {slot.drop_statement(name)}",
        )


def why_foreign(progress: Progress | None, state: SlotState, system: System) -> str:
    """Return why an existing slot may not be Millrace's. Empty: the log says that it is."""
    if progress is None:
        return "the log doesn't say that Millrace created it"
    if progress.system_identifier != system.identifier:
        return "the log has the slot of another PostgreSQL cluster"
    if (state.plugin, state.database) != (slot.PLUGIN, progress.database):
        return "its kind or its database differs from the slot in the log"
    is_made = progress.phase is not Phase.CREATING
    if is_made and state.confirmed_flush_lsn > progress.flush_lsn:
        return (
            "it is ahead of the log: another program moved it, or created another slot with this"
            " name"
        )
    return ""


def check_own(servers: Servers) -> None:
    """Raise GapError before a slot is dropped that may not be Millrace's.

    While the log says only that a slot is about to be created (Phase.CREATING), a slot that another
    program creates under this name in this database looks the same.
    """
    require_own(servers.progress, servers.slot, servers.system)


def require_own(progress: Progress | None, state: SlotState | None, system: System) -> None:
    """Check the same with the states of both servers, read before."""
    if state is not None and (reason := why_foreign(progress, state, system)):
        raise GapError(
            f"slot {state.name} must be created again, but the existing one may belong to another"
            f" program: {reason}",
            remedy="choose another slot.name and topic.prefix; or, if no other program uses the "
            f"slot, drop it at the source and start again: {slot.drop_statement(state.name)}",
        )


def check_progress(
    capture: CaptureSettings,
    progress: Progress | None,
    state: SlotState | None,
    system: System,
    wal_end: Callable[[], Lsn],
) -> None:
    """Raise GapError or ConfigError unless the stream continues where the log ends."""
    if progress is None:
        if capture.snapshot_mode == "recovery":
            raise nothing_to_go_on_from(capture.slot_name)
        check_unrecorded(state, capture.slot_name)
    elif progress.phase is not Phase.CREATING and not is_complete(capture, progress, state):
        check_continuity(progress, state, system, wal_end())


def look_at_progress(servers: Servers) -> None:
    """Check the progress that a start has read."""
    capture, wal_end = servers.settings.capture, partial(current_wal_end, servers.sql)
    check_progress(capture, servers.progress, servers.slot, servers.system, wal_end)


def nothing_to_go_on_from(name: str) -> ConfigError:
    """Return the error for a new epoch of a slot that the log doesn't have."""
    return ConfigError(
        f"the log has nothing from slot {name}, so it can't continue",
        where="topic.prefix and slot.name in [capture]",
        remedy="set the names that were captured with; a first start needs only `millrace run`",
    )


def _announcement(servers: Servers, before: Progress | None, epoch: int) -> Progress:
    """Return the record that announces a slot. ``before`` is the log's last record."""
    nowhere = Position(epoch, Lsn(0), 0)
    return Progress(
        log=before.log if before else uuid4().hex,
        slot=servers.settings.capture.slot_name,
        system_identifier=servers.system.identifier,
        timeline=servers.system.timeline,
        database=servers.system.database,
        phase=Phase.CREATING,
        position=nowhere,
        cut=nowhere,
        flush_lsn=Lsn(0),
        events=before.events if before else 0,
        signal_offsets=before.signal_offsets if before else {},
        ts_ms=time.time_ns() // 1_000_000,
    )


def begin_epoch(servers: Servers) -> int:
    """Record that the log continues from this server's history, and return the epoch.

    Drops the slot. Returns the last epoch if the log has nothing of it yet. Raise ConfigError if
    the log has nothing to continue from, GapError if the slot may belong to another program.
    """
    servers.take_lock()
    servers.find_slot()
    # Read nothing from the slot: its WAL may be what crashes the server.
    servers.lease.await_unread()
    servers.open_log(())
    before = servers.progress
    if before is None:
        raise nothing_to_go_on_from(servers.settings.capture.slot_name)
    check_own(servers)
    epoch = before.position.epoch
    if before.phase is not Phase.CREATING:
        epoch += 1
        topic = table_topic(servers.settings.capture.topic_prefix)
        keep_alive = servers.lease.keep_alive
        states = read_tables(servers.settings.kafka, topic, keep_alive)
        servers.record(_new_epoch(servers, before, states, epoch))
        reach(FaultPoint.EPOCH_RECORDED)
    servers.end_slot()
    return epoch


def find_gap(servers: Servers) -> str:
    """Return why a start would refuse to continue. Takes and changes nothing."""
    servers.connect()
    servers.check_tables()
    servers.identify()
    # The slot comes first: a running daemon moves it up to a record that is already written.
    servers.find_slot()
    servers.read_progress()
    progress = servers.progress
    if progress is None:
        raise nothing_to_go_on_from(servers.settings.capture.slot_name)
    if progress.phase is Phase.CREATING:
        return f"epoch {progress.position.epoch} has begun: `millrace run` reads all tables"
    try:
        look_at_progress(servers)
    except GapError as gap:
        return f"gap: {gap.what}"
    return (
        "no gap: `millrace run` continues where the log ends. Only the stream can show that this"
        " server was restored from a copy, or that it crashes while it streams"
    )


def _new_epoch(
    servers: Servers, before: Progress, states: Sequence[TableState], epoch: int
) -> list[Record]:
    """Return records with which the log continues from another history. No table is read yet."""
    prefix = servers.settings.capture.topic_prefix
    unread: dict[str, object] = {
        "epoch": epoch,
        "phase": Phase.SNAPSHOT,
        "snapshot_lsn": Lsn(0),
        "oid": 0,
        "entry": 0,
        "renamed_lsn": None,
        "joined_lsn": Lsn(0),
        "joined_xid": 0,
        "rows_sent": 0,
        "pages_total": 0,
        "pages_done": 0,
        "requests": (),
        "ts_ms": time.time_ns() // 1_000_000,
    }
    written = StateRecords(prefix, states)
    begun = (
        state.model_copy(update=unread | _kept(state, before))
        for state in states
        if state.is_in_log
    )
    return [
        progress_record(prefix, _announcement(servers, before, epoch)),
        *(record for state in begun for record in written.of(state)),
    ]


def _kept(state: TableState, before: Progress) -> dict[str, object]:
    """Return the parts of a table's state that stay valid. Another cluster has other numbers."""
    doubt = state.doubt and state.doubt.model_copy(update={"behind_xid": 0, "leaves": ()})
    return {"doubt": doubt, **_lacking(state, before)}


def _lacking(state: TableState, before: Progress) -> dict[str, object]:
    """Return the state of a table that was in the log: the position up to which it was right."""
    if state.phase is not Phase.STREAMING and not state.was_whole:
        return {}
    return {
        "was_whole": True,
        "right_until": min(right_until(state, before.checked), before.cut),
    }


def create_slot(servers: Servers, replication: PGconn) -> tuple[Progress, ExportedSnapshot]:
    """Create the slot, and record each step before the next. Return its progress and snapshot.

    The snapshot is valid while ``replication`` is open and idle. An announcement of an earlier
    start, or of a new epoch, is continued. A slot that was created and not recorded, or that a new
    epoch replaces, is dropped: the log will have nothing of it.
    """
    check_own(servers)  # checks the log's record from before this announcement
    capture, before = servers.settings.capture, servers.progress
    prefix, name = capture.topic_prefix, capture.slot_name
    epoch = before.position.epoch if before else FIRST_EPOCH
    progress = _announcement(servers, before, epoch)
    servers.record([progress_record(prefix, progress)])
    reach(FaultPoint.CREATING_RECORDED)
    if servers.slot is not None:
        slot.drop(servers.sql, name)
    on_wait = servers.lease.wait_for_open_transactions
    exported = slot.create(replication, name, failover=capture.slot_failover, on_wait=on_wait)
    reach(FaultPoint.SLOT_CREATED)
    point = Position(epoch, exported.consistent_point, 0)
    progress = progress.model_copy(
        update={
            "phase": Phase.SNAPSHOT,
            "position": point,
            "cut": point,
            "flush_lsn": exported.consistent_point,
            "last_commit_lsn": Lsn(exported.consistent_point - 1),
        }
    )
    servers.record([progress_record(prefix, progress)])
    reach(FaultPoint.SNAPSHOT_RECORDED)
    return progress, exported
