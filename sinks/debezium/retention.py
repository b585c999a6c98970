"""Topics that may have forgotten records → tables that can go on, and those that can't.

Millrace doesn't decide how long such a topic keeps its records. The first offset of a topic that
isn't compacted shows exactly what it has lost. A compacted topic has to promise ``log.keep``, as
Millrace's own topics do: without that promise a table may miss changes until it is rebuilt.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from cdc.errors import LogForgottenError, TopicMismatchError
from cdc.log.offsets import LogReader, LogState, Offsets
from sinks.run.options import RunOptions
from sinks.run.plan import TablePlan
from sinks.run.plans import LastCheck
from sinks.run.retention import RetainedTables, require_retained


@dataclass(frozen=True, slots=True)
class RetainedTopics:
    """The topics' records, and how long compaction keeps all of them (``promised``), by table."""

    log: LogReader
    state: LogState
    promised: Mapping[str, timedelta | None]


def retained_tables(
    topics: RetainedTopics,
    tables: dict[str, TablePlan],
    *,
    keep: timedelta,
    checked: LastCheck,
    options: RunOptions,
) -> RetainedTables:
    """The tables, rebuilt or refused where records are forgotten; refused ones don't move on."""
    result = RetainedTables(dict(tables))
    for name, table in tables.items():
        if not (table.pending or not table.base):
            continue
        begins = topics.state.starts
        try:
            _require_promised(topics.promised[table.source], table, keep)
            if not table.base:
                if name not in options.accepted_gaps:
                    _require_all(table, begins, name, keep)
                continue
            require_retained({table.topic: table.start}, begins, name, keep)
            if topics.promised[table.source] is not None:
                _require_whole(topics.log, name, table, keep, checked)
        except TopicMismatchError as error:
            _refuse(result, name, error, fresh_ms=0)
        except LogForgottenError as error:
            _rebuild_or_refuse(result, topics.state, name, error)
    return result


def _require_promised(promised: timedelta | None, table: TablePlan, keep: timedelta) -> None:
    """Raise TopicMismatchError where compaction may take what a table hasn't applied."""
    if promised is None or promised >= keep:
        return
    raise TopicMismatchError(
        f"the topic is compacted, and promises every record for {promised} only "
        f"(min.compaction.lag.ms), where log.keep is {keep}: changes could be missed",
        where=f"topic {table.topic}",
        remedy=f"set its min.compaction.lag.ms to {int(keep.total_seconds() * 1000)}, or "
        "cleanup.policy to delete; or lower log.keep, and merge as often. The next run then "
        "rebuilds the table, for what was compacted meanwhile",
    )


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


def _require_whole(
    log: LogReader, name: str, table: TablePlan, keep: timedelta, checked: LastCheck
) -> None:
    """Raise LogForgottenError where compaction may have taken records behind ``start``."""
    start = {table.topic: table.start}
    if not table.fresh_ms:
        require_retained(start, {table.topic: table.end}, name, keep)
    fresh_since_ms = (time.time() - keep.total_seconds()) * 1000
    if max(table.fresh_ms, checked.fresh_ms(name)) < fresh_since_ms:
        require_retained(start, log.forgotten(start, keep), name, keep)


def _rebuild_or_refuse(
    result: RetainedTables, state: LogState, name: str, error: LogForgottenError
) -> None:
    table = result.tables[name]
    if not table.base:
        _refuse(result, name, error)
    elif table.kind == "current" and state.tables[table.source].cleanup == "compact":
        ends = state.ends[table.topic]
        rebuilt = {"start": state.starts[table.topic], "end": ends, "next": ends, "lacks": "now"}
        fresh_ms = int(time.time() * 1000)
        result.tables[name] = table.model_copy(update={**rebuilt, "fresh_ms": fresh_ms})
        result.rebuilt.append(name)
    else:
        forgotten = LogForgottenError(
            f"{name} comes too late: the topic has forgotten records that it hasn't applied",
            where=error.where,
            remedy="remove its Delta table, have Debezium take a snapshot of the table once more "
            f"(a signal), then `millrace merge lakehouse --accept-gap {name}`",
        )
        _refuse(result, name, forgotten)


def _refuse(
    result: RetainedTables,
    name: str,
    error: TopicMismatchError | LogForgottenError,
    fresh_ms: int | None = None,
) -> None:
    """Leave a table at its offsets; one that isn't there yet has no plan."""
    table = result.tables.pop(name)
    result.refused[name] = error
    if table.base:
        stays: dict[str, object] = {"end": table.start, "next": table.start}
        fresh = {} if fresh_ms is None else {"fresh_ms": fresh_ms}
        result.tables[name] = table.model_copy(update=stays | fresh)
