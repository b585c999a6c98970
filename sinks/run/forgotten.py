"""Tables that come later than the log promises → those that can go on, and what became of others.

The log may have forgotten changes that such a table hasn't applied (DESIGN: the log keeps
everything for a promised time). Current rows are rebuilt from the log, in place; a history or an
archive, which would lack something for ever, waits until the user accepts the gap.
"""

import time
from dataclasses import dataclass, field
from datetime import timedelta

from cdc.errors import LogForgottenError, MillraceError
from cdc.log.offsets import LogReader, LogState, Offsets
from sinks.changes.derived import Derived
from sinks.run.options import RunOptions
from sinks.run.plan import Replay, TablePlan, TableVersion
from sinks.run.plans import Checked


@dataclass(slots=True)
class Remembered:
    """The tables that a plan may have; which of them are rebuilt, and which had to be refused."""

    tables: dict[str, TablePlan]
    rebuilt: list[str] = field(default_factory=list)
    refused: dict[str, MillraceError] = field(default_factory=dict)


def remembered(
    log: LogReader,
    state: LogState,
    tables: dict[str, TablePlan],
    *,
    keep: timedelta,
    checked: Checked,
    options: RunOptions,
) -> Remembered:
    """What becomes of each table; those that are refused stay where they are."""
    found = Remembered(dict(tables))
    fresh_since_ms = (time.time() - keep.total_seconds()) * 1000
    for name, table in tables.items():
        if not (table.pending or not table.base):
            continue
        known = name if table.replay is None else table.replay.archive
        begins = not table.base and table.replay is None
        fresh = begins or max(table.fresh_ms, checked.fresh_ms(known)) >= fresh_since_ms
        try:
            _require_whole(log, state, name, table, keep, fresh=fresh)
        except LogForgottenError as error:
            _late(found, state, name, options, error)
    return found


def _require_whole(
    log: LogReader, state: LogState, name: str, table: TablePlan, keep: timedelta, *, fresh: bool
) -> None:
    """Raise LogForgottenError where the log may lack something of what the table has to read."""
    start = {table.topic: table.start}
    retained = state.tables[table.source].cleanup == "delete"
    if retained and not table.base and table.replay is None:
        from_zero = {table.topic: dict.fromkeys(table.start, 0)}
        require_retained(from_zero, state.starts, name, keep)
    require_retained(start, state.starts, name, keep)
    if not fresh:
        require_retained(start, log.forgotten(start, keep), name, keep)


def _late(
    found: Remembered, state: LogState, name: str, options: RunOptions, error: LogForgottenError
) -> None:
    table = found.tables.pop(name)
    compacted = state.tables[table.source].cleanup == "compact"
    anew: dict[str, object] = {
        "start": state.starts[table.topic],
        "fresh_ms": int(time.time() * 1000),
    }
    if table.base and table.kind == "current" and compacted:
        found.tables[name] = table.model_copy(update={**anew, "after": None, "rebuilds": True})
        found.rebuilt.append(name)
        return
    if table.base and table.kind != "current" and name in options.accepted_gaps:
        found.tables[name] = table.model_copy(update={**anew, "gap": table.after})
        return
    if table.base:
        found.tables[name] = table.model_copy(update={"end": table.start, "next": table.start})
    if table.kind != "current":
        error.remedy = (
            f"`millrace merge lakehouse --accept-gap {name}` goes on, and marks the gap; the log "
            "has the newest state of each row, but not all that came before"
        )
    found.refused[name] = error


def replayed(
    tables: dict[str, TablePlan],
    versions: dict[str, TableVersion],
    derived: dict[str, Derived],
    state: LogState,
) -> dict[str, TablePlan]:
    """The tables, new ones from an archive's beginning where the log doesn't reach as far back."""
    archives = {
        one.source: name
        for name, one in derived.items()
        if one.kind == "changes"
        and one.keeps_records
        and name in versions
        and name in tables
        and tables[name].base
        and not tables[name].waits
        and not tables[name].gapped
    }

    def from_archive(name: str, table: TablePlan) -> TablePlan:
        archive = archives.get(table.source)
        if table.base or archive is None or name == archive or table.kind == "changes":
            return table
        retained = state.tables[table.source].cleanup == "delete"
        has_begun_late = any(state.starts[table.topic].values())
        if table.kind == "current" and not (retained and has_begun_late):
            return table  # the log has all of it
        whole = tables[archive]
        replay = Replay(
            archive=archive,
            version=versions[archive].version,
            after=whole.after,
            read_end=whole.read_end,
        )
        fresh_ms = whole.fresh_ms
        update = {"start": whole.start, "replay": replay, "fresh_ms": fresh_ms}
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
