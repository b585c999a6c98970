"""Plans of a table whose topic a real Debezium wrote."""

from typing import Any, Final

from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.schema import TableName
from sinks.run.plan import TablePlan

NAME: Final = TableName("public", "t")
TOPIC: Final = "p.public.t"


def table_plan(**more: Any) -> TablePlan:
    """A table that isn't there yet, and nine records of one partition."""
    made = TablePlan(
        topic=TOPIC,
        start={0: 0},
        end={0: 9},
        next={0: 9},
        after=None,
        truncated=None,
        snapshot=Position(FIRST_EPOCH, Lsn(0), 0),
        shown=None,
        schema_version=0,
        base=0,
        events=0,
        fresh_ms=0,
        source=str(NAME),
    )
    return made.model_copy(update=more)
