"""Tables' plans and what the log still has → which go on, which begin again, which are refused."""

import time
from collections.abc import Mapping
from datetime import timedelta

from cdc.errors import LogForgottenError, MillraceError, TopicMismatchError
from cdc.log.offsets import LogState
from sinks.run.plan import TablePlan
from sinks.run.summary import LastCheck
from sinks.run.target import Forgotten, Target
from sinks.run.topics import ExaminedTables, Topics


def retained_tables(
    topics: Topics,
    target: Target,
    tables: Mapping[str, TablePlan],
    state: LogState,
    keep: timedelta,
    checked: LastCheck,
) -> ExaminedTables:
    """Check each table's retention; refused tables stay at their offsets."""
    retained = ExaminedTables(dict(tables), {})
    fresh_since_ms = (time.time() - keep.total_seconds()) * 1000
    for name, table in tables.items():
        if not (table.pending or table.begins):
            continue
        reader = table.replay or name
        begins = not table.base and table.replay is None
        checked_ms = checked.ts_ms if reader in checked.tables else 0
        fresh = begins or max(table.fresh_ms, checked_ms) >= fresh_since_ms
        try:
            topics.require_retained(name, table, state, fresh=fresh)
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


def _refuse(retained: ExaminedTables, name: str, table: TablePlan, error: MillraceError) -> None:
    """Leave a table at its offsets; one that isn't there yet has no plan."""
    del retained.tables[name]
    retained.refused[name] = error
    if table.base:
        retained.tables[name] = table.left_alone()
