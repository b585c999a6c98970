"""The records of an index's load → those of the next step, if the log has all of them."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import functions as F

from cdc.log.offsets import LogState
from sinks.log.records import read_raw
from sinks.run.options import RunContext
from sinks.run.plan import TablePlan
from sinks.run.retained import rows_lacking

STEP_RECORDS: Final = 500_000
"""How many of the log's records are loaded between two progress records."""


def is_one_step(table: TablePlan) -> bool:
    """Whether all records of a plan are loaded at once."""
    return table.unread <= STEP_RECORDS


def require_rows(context: RunContext, table: TablePlan, state: LogState) -> None:
    """Raise LogForgottenError if the log lacks records of rows that haven't ended.

    A partition has all of them if it begins before the last end of all rows.
    """
    lost = {partition for partition, offset in state.starts[table.topic].items() if offset}
    if lost and table.truncated is not None:
        start, end = {table.topic: table.start}, {table.topic: table.end}
        raw = read_raw(context.session(), context.settings.kafka, start, end)
        reaches_back = F.min("position") <= str(table.truncated)
        rows = raw.groupBy("partition").agg(reaches_back.alias("reaches_back")).collect()
        lost -= {row["partition"] for row in rows if row["reaches_back"]}
    if lost:
        raise rows_lacking(table.source, table, state)


def next_step(table: TablePlan, loaded: Mapping[int, int]) -> TablePlan | None:
    """Return a plan's next records after the ``loaded`` ones, in all partitions at once.

    A key has its partition, so older records come first.
    """
    start = {partition: loaded.get(partition, first) for partition, first in table.start.items()}
    left = table.model_copy(update={"start": start})
    if left.unread <= 0:
        return None
    records = min(left.unread, STEP_RECORDS)
    end = {
        partition: offset + -(-(table.end[partition] - offset) * records // left.unread)
        for partition, offset in start.items()
    }
    return left.model_copy(update={"end": end})
