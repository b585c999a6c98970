"""Tables' plans and the log's contents → tables that continue, begin again, or are refused.

A topic that isn't compacted has all rows of a table again once they were read again. This begins
with an end of all rows, which each partition has. The records show whether a later loss has reached
the records after that end (``lacks_rows``).
"""

import shlex
import time
from collections.abc import Mapping
from datetime import timedelta

from cdc.errors import LogForgottenError, MillraceError, TopicMismatchError
from cdc.log.offsets import LogState
from cdc.records.state import TableState
from sinks.run.plan import TablePlan
from sinks.run.rekeyed import snapshot_position
from sinks.run.summary import LastCheck
from sinks.run.target import Forgotten, Target
from sinks.run.topics import ExaminedTables, PartitionCensus, Topics


def retained_tables(
    topics: Topics,
    target: Target,
    tables: Mapping[str, TablePlan],
    state: LogState,
    keep: timedelta,
    checked: LastCheck,
) -> ExaminedTables:
    """Check each table's retention. Refused tables stay at their offsets."""
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
            # Records that are compacted before the topic is corrected are lost permanently.
            _refuse(retained, name, table.model_copy(update={"fresh_ms": 0}), error)
        except LogForgottenError as error:
            again = topics.from_start(table, state)
            again = again.model_copy(update={"fresh_ms": int(time.time() * 1000)})
            remedy = read_again(table.source, state)
            if topics.written_by == "millrace":
                error.remedy = f"{remedy}; the next merge then applies them"
            forgotten = Forgotten(
                error,
                again,
                is_compacted=state.tables[table.source].cleanup == "compact",
                can_mark=topics.can_mark_gaps,
                replaced=_replaced(table, again, state),
                read_again=remedy,
            )
            plan = target.behind_gap(name, table, forgotten)
            if plan is None:
                _refuse(retained, name, table, error)
            else:
                retained.tables[name] = plan
    return retained


def _replaced(table: TablePlan, again: TablePlan, state: LogState) -> TablePlan | None:
    """Return the plan that takes all rows from a new read of them, if one was made."""
    if table.replay is not None or not is_read_again(table, state.tables[table.source]):
        return None
    if not table.base:
        return again.model_copy(update={"lacks": "nothing"})
    return table.rebuilt(again.start).model_copy(update={"first_version": table.schema_version})


def _refuse(retained: ExaminedTables, name: str, table: TablePlan, error: MillraceError) -> None:
    """Leave a table at its offsets. If it doesn't exist yet, it has no plan."""
    del retained.tables[name]
    retained.refused[name] = error
    if table.base:
        retained.tables[name] = table.left_alone()


def is_read_again(table: TablePlan, captured: TableState) -> bool:
    """Whether all rows, or those of some partitions, were read since the table's last apply.

    For a table that doesn't exist yet: since the first read of them.
    """
    if captured.cleanup != "delete":
        return False
    if table.after is None:
        return captured.was_whole
    return table.after < snapshot_position(captured)


def lacks_rows(
    table: TablePlan,
    partitions: Mapping[int, PartitionCensus],
    captured: TableState,
    starts: Mapping[int, int],
) -> bool:
    """Whether a plan needs all rows, and a partition has lost some that haven't ended.

    A table that the user lets begin with the log's contents doesn't need them.
    """
    if captured.cleanup != "delete" or table.kind == "changes" or table.replay is not None:
        return False
    needs_all = (table.begins and table.lacks != "before") or table.gap is not None
    end = table.truncated
    has_all = {
        number
        for number, census in partitions.items()
        if any(not each.bounds and each.position == end for each in census.ends)
    }
    return needs_all and any(first and number not in has_all for number, first in starts.items())


def rows_lacking(name: str, table: TablePlan, state: LogState) -> LogForgottenError:
    """Return the error of a table whose topic lacks rows, even after the last read of all rows."""
    return LogForgottenError(
        f"the log no longer has every row of {table.source}",
        where=f"table {name}",
        remedy=f"{read_again(table.source, state)}; the next merge then applies them",
    )


def read_again(source: str, state: LogState) -> str:
    """Return the command after which the log has all rows of a captured table again."""
    is_keyed = all(version.key for version in state.schemas.get(source, ())[-1:])
    table = shlex.quote(source)
    if is_keyed:
        return f"read all rows again: `millrace snapshot --reset {table}`"
    return (
        "the table has no key, so stop the daemon, read all rows again with `millrace snapshot"
        f" {table}`, and start the daemon"
    )
