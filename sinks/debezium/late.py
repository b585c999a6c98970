"""Topics that may have forgotten something → tables that can go on, and what becomes of others.

How long a topic keeps its records is somebody else's decision. One that isn't compacted tells
exactly what it has lost: by where it begins. One that is has to promise ``log.keep``, as Millrace's
own do (sinks/debezium/origin.py refuses others).
"""

import time
from datetime import timedelta

from cdc.errors import LogForgottenError
from sinks.batch import Log, LogState, Offsets, require_retained
from sinks.delta.late import Remembered
from sinks.delta.plans import Checked
from sinks.options import RunOptions
from sinks.plan import TablePlan


def remembered(
    log: Log,
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
        if not table.pending:
            continue
        fresh = max(table.fresh_ms, checked.fresh_ms(name)) >= fresh_since_ms
        compacted = state.tables[table.source].cleanup == "compact"
        begins = state.starts
        try:
            if not table.base:
                if name not in options.accepted_gaps:
                    _require_all(table, begins, name, keep)
                continue
            start = {table.topic: table.start}
            require_retained(start, begins, name, keep)
            if compacted and not fresh:
                require_retained(start, log.forgotten(start, keep), name, keep)
        except LogForgottenError as error:
            _late(found, state, name, error, compacted=compacted)
    return found


def _require_all(table: TablePlan, begins: Offsets, name: str, keep: timedelta) -> None:
    """Raise LogForgottenError where a topic doesn't begin with its first record any more."""
    from_zero = {table.topic: dict.fromkeys(table.start, 0)}
    try:
        require_retained(from_zero, begins, name, keep)
    except LogForgottenError:
        raise LogForgottenError(
            "the topic's first records are gone, so that rows may be missing for ever",
            where=f"topic {table.topic}",
            remedy="have Debezium take a snapshot of the table once more (a signal), then "
            f"`millrace merge lakehouse --accept-gap {name}` begins with what the topic has",
        ) from None


def _late(
    found: Remembered, state: LogState, name: str, error: LogForgottenError, *, compacted: bool
) -> None:
    table = found.tables.pop(name)
    if not table.base:
        found.refused[name] = error
        return
    if table.kind == "current" and compacted:
        anew = {"start": state.starts[table.topic], "fresh_ms": int(time.time() * 1000)}
        found.tables[name] = table.model_copy(update={**anew, "rebuilds": True})
        found.rebuilt.append(name)
        return
    stays = {"end": table.start, "next": table.start}
    found.tables[name] = table.model_copy(update=stays)
    found.refused[name] = LogForgottenError(
        f"{name} comes too late: the topic has forgotten records that it hasn't applied",
        where=error.where,
        remedy="remove its Delta table, have Debezium take a snapshot of the table once more (a "
        f"signal), then `millrace merge lakehouse --accept-gap {name}`",
    )
