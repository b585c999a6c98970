"""Tables that the log may have forgotten changes of → tables to go on, to rebuild or to refuse.

The log keeps everything for a promised time (log.keep); a table that comes later may miss changes.
The topics tell whether that is so (``require_whole``), and the target answers it (``behind_gap``).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from cdc.errors import LogForgottenError, MillraceError, TopicMismatchError
from cdc.log.offsets import LogState, Offsets
from sinks.run.plan import TablePlan
from sinks.run.summary import LastCheck
from sinks.run.target import Forgotten, Target
from sinks.run.topics import Topics


@dataclass(slots=True)
class RetainedTables:
    """The tables that a plan may have, and the errors of others."""

    tables: dict[str, TablePlan]
    refused: dict[str, MillraceError] = field(default_factory=dict)


def retained_tables(
    topics: Topics,
    target: Target,
    tables: Mapping[str, TablePlan],
    state: LogState,
    keep: timedelta,
    checked: LastCheck,
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
            topics.require_whole(name, table, state, fresh=fresh)
        except TopicMismatchError as error:
            # What is compacted until the topic is mended is missing for good.
            _refuse(retained, name, table.model_copy(update={"fresh_ms": 0}), error)
        except LogForgottenError as error:
            again = topics.from_start(table, state)
            forgotten = Forgotten(
                error,
                again.model_copy(update={"fresh_ms": int(time.time() * 1000)}),
                is_compacted=state.tables[table.source].cleanup == "compact",
                can_mark=topics.can_mark_gaps,
            )
            plan = target.behind_gap(name, table, forgotten)
            if plan is None:
                _refuse(retained, name, table, error)
            else:
                retained.tables[name] = plan
    return retained


def _refuse(retained: RetainedTables, name: str, table: TablePlan, error: MillraceError) -> None:
    """Leave a table at its offsets; one that isn't there yet has no plan."""
    del retained.tables[name]
    retained.refused[name] = error
    if table.base:
        retained.tables[name] = table.model_copy(update={"end": table.start, "next": table.start})


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
