"""A large table's new records → what a look at them tells, and the newest change of each key.

Both by one read of the log, before there is a plan: it is for what nearly all runs find, neither a
TRUNCATE nor a value among the claims. Otherwise, or where a record is refused, nothing comes of it,
and the table is looked at and read like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cdc.records.position import Position
from sinks.changes.latest import contenders, within
from sinks.changes.shape import TableShape
from sinks.log.parse import is_truncate, parse
from sinks.log.records import Records, let_go
from sinks.run.plan import Found, TablePlan
from sinks.spark.session import RECORDS_FEW, jvm_ended, observed

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS_MAX: Final = 16
"""Of a topic; what each has is told by columns of its own."""
FACTS: Final = "millrace"


@dataclass(frozen=True, slots=True)
class Early:
    """What was read: ``contenders`` that are kept, and what was ``found`` by partition."""

    rows: "DataFrame"
    found: Mapping[int, Found]

    def let_go(self) -> None:
        """Give their room back."""
        let_go(self.rows)


def can_be_early(table: TablePlan) -> bool:
    """Whether a plan's table is one that may be read before there is a plan."""
    plain = table.kind == "current" and not (table.rebuilds or table.replay)
    return plain and table.unread >= RECORDS_FEW and len(table.start) <= _PARTITIONS_MAX


def read_early(
    spark: "SparkSession",
    records: Records,
    table: TablePlan,
    cut: Position,
    columns: TableShape,
    floor: Position | None = None,
) -> Early | None:
    """Read a table's records above the ``floor``, parsed by these ``columns``.

    None: it takes the ordinary way.
    """
    raw = records.of(spark, {table.topic: table})
    looked = looked_at(raw, table, cut)
    changes = parse(within(looked, table.after, cut, floor, keyed=True), columns)
    newest = contenders(changes, columns)
    rows = _kept(newest)
    if rows is None:
        return None
    found = found_in(observed(newest, FACTS), table)
    if found is None:
        let_go(rows)
        return None
    return Early(rows, found)


def looked_at(raw: "DataFrame", table: TablePlan, cut: Position) -> "DataFrame":
    """The same records, observed on their way: what ``FACTS`` then tells is for ``found_in``."""
    return raw.observe(FACTS, *_facts(raw, table, cut))


def found_in(facts: Any, table: TablePlan) -> dict[int, Found] | None:
    """What a look at a table's records has found, if it is what nearly all find.

    ``facts``: a row of Java's; None: Spark has found no row to go on with, and taken that step out.
    """
    if facts is None or facts.getAs("truncated") or facts.getAs("claims"):
        return None
    return {
        number: Found(facts.getAs(f"above_{number}"), facts.getAs(f"events_{number}"))
        for number in table.start
    }


def _kept(newest: "DataFrame") -> "DataFrame | None":
    rows = None
    try:
        # With adaptive execution this is no lazy call: all before the last shuffle runs in it.
        rows = newest.localCheckpoint(eager=False)
        rows.count()
    except (PySparkException, Py4JError) as error:
        if jvm_ended(error):
            raise
        if rows is not None:
            let_go(rows)
        return None
    return rows


def _facts(raw: "DataFrame", table: TablePlan, cut: Position) -> list["SparkColumn"]:
    above = F.col("position") > str(cut)
    upto = F.coalesce(~above, F.lit(True))
    facts = [
        F.count_if(is_truncate(raw) & upto).alias("truncated"),
        F.count_if(F.col("claim").isNotNull()).alias("claims"),
    ]
    for number in table.start:
        here = F.col("partition") == number
        facts += [
            F.min(F.when(here & above, F.col("offset"))).alias(f"above_{number}"),
            F.count_if(here & upto).alias(f"events_{number}"),
        ]
    return facts
