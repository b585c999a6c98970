"""Tables that the log may have forgotten changes of → tables to go on, to rebuild or to refuse.

The log keeps everything for a promised time (log.keep); a table that comes later may miss changes.
Current rows are rebuilt from the log, in place; a history or an archive, which would lack something
for ever, waits until the user accepts the gap.
"""

import time
from dataclasses import dataclass, field
from datetime import timedelta

from cdc.errors import LogForgottenError, MillraceError
from cdc.log.offsets import LogReader, LogState, Offsets
from sinks.changes.derived import Derived
from sinks.run.options import RunOptions
from sinks.run.plan import Replay, TablePlan, TableVersion
from sinks.run.plans import LastCheck


@dataclass(slots=True)
class RetainedTables:
    """The tables that a plan may have, the names of the rebuilt ones, and the errors of others."""

    tables: dict[str, TablePlan]
    rebuilt: list[str] = field(default_factory=list)
    refused: dict[str, MillraceError] = field(default_factory=dict)


def retained_tables(
    log: LogReader,
    state: LogState,
    tables: dict[str, TablePlan],
    *,
    keep: timedelta,
    checked: LastCheck,
    options: RunOptions,
) -> RetainedTables:
    """Check each table's retention; refused tables stay at their offsets."""
    retained = RetainedTables(dict(tables))
    fresh_since_ms = (time.time() - keep.total_seconds()) * 1000
    for name, table in tables.items():
        if not (table.pending or not table.base):
            continue
        reader = name if table.replay is None else table.replay.archive
        begins = not table.base and table.replay is None
        fresh = begins or max(table.fresh_ms, checked.fresh_ms(reader)) >= fresh_since_ms
        try:
            _require_whole(log, state, name, table, keep, fresh=fresh)
        except LogForgottenError as error:
            _rebuild_or_refuse(retained, state, name, options, error)
    return retained


def _require_whole(
    log: LogReader, state: LogState, name: str, table: TablePlan, keep: timedelta, *, fresh: bool
) -> None:
    """Raise LogForgottenError where the log may lack something of what the table has to read."""
    start = {table.topic: table.start}
    is_deleted = state.tables[table.source].cleanup == "delete"
    if is_deleted and not table.base and table.replay is None:
        from_zero = {table.topic: dict.fromkeys(table.start, 0)}
        require_retained(from_zero, state.starts, name, keep)
    require_retained(start, state.starts, name, keep)
    if not fresh:
        require_retained(start, log.forgotten(start, keep), name, keep)


def _rebuild_or_refuse(
    retained: RetainedTables,
    state: LogState,
    name: str,
    options: RunOptions,
    error: LogForgottenError,
) -> None:
    table = retained.tables.pop(name)
    compacted = state.tables[table.source].cleanup == "compact"
    restart: dict[str, object] = {
        "start": state.starts[table.topic],
        "fresh_ms": int(time.time() * 1000),
    }
    if table.base and table.kind == "current" and compacted:
        retained.tables[name] = table.model_copy(update={**restart, "after": None, "lacks": "now"})
        retained.rebuilt.append(name)
        return
    if table.base and table.kind != "current" and name in options.accepted_gaps:
        retained.tables[name] = table.model_copy(update={**restart, "lacks": "now"})
        return
    if table.base:
        retained.tables[name] = table.model_copy(update={"end": table.start, "next": table.start})
    if table.kind != "current":
        error.remedy = (
            f"`millrace merge lakehouse --accept-gap {name}` goes on, and marks the gap; the log "
            "has the newest state of each row, but not all that came before"
        )
    retained.refused[name] = error


def replayed(
    tables: dict[str, TablePlan],
    versions: dict[str, TableVersion],
    derived: dict[str, Derived],
    state: LogState,
) -> dict[str, TablePlan]:
    """The tables; new ones start from an archive where the log doesn't reach as far back."""
    archives = {
        table.source: name
        for name, table in derived.items()
        if table.kind == "changes"
        and table.keeps_records
        and name in versions
        and name in tables
        and tables[name].base
        and not tables[name].waits
        and tables[name].lacks == "nothing"
    }

    def from_archive(name: str, table: TablePlan) -> TablePlan:
        archive = archives.get(table.source)
        if table.base or archive is None or name == archive or table.kind == "changes":
            return table
        is_deleted = state.tables[table.source].cleanup == "delete"
        has_lost_records = any(state.starts[table.topic].values())
        if table.kind == "current" and not (is_deleted and has_lost_records):
            return table  # the log has all of it
        whole = tables[archive]
        replay = Replay(archive=archive, version=versions[archive].version)
        update = {"start": whole.start, "replay": replay, "fresh_ms": whole.fresh_ms}
        return table.model_copy(update=update)

    return {name: from_archive(name, table) for name, table in tables.items()}


def require_retained(start: Offsets, kept_from: Offsets, what: str, keep: timedelta) -> None:
    """Raise LogForgottenError if the log no longer has all records from ``start`` on."""
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            if kept_from.get(topic, {}).get(partition, 0) > offset:
                raise LogForgottenError(
                    f"{what} comes too late: the log promises {keep} only, and may lack changes "
                    "that have not been applied",
                    where=f"topic {topic}, partition {partition}, offset {offset}",
                    remedy="remove the derived table, so that the next run rebuilds it from the "
                    "log where that has every key, or take a new snapshot",
                )
