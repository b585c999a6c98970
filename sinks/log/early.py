"""A large table's new records → their census, and the newest change of each key.

One read of the log gives both, before there is a plan. It serves the usual case: no TRUNCATE and no
value among the claims. In any other case, or where a record is refused, its result is dropped, and
the table gets a census and a read of its own like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cdc.records.position import Position
from sinks.changes.newest import contenders, within
from sinks.changes.shape import TableShape
from sinks.log.parse import is_truncate, parse
from sinks.log.records import Records
from sinks.run.plan import TablePlan
from sinks.run.topics import PartitionCensus
from sinks.spark.session import RECORDS_FEW, jvm_ended, observed, release

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS_MAX: Final = 16
"""Of a topic: each partition has columns of its own in the observation."""
FACTS: Final = "millrace"


@dataclass(frozen=True, slots=True)
class EarlyRead:
    """The result of the read: the kept ``contenders``, and the census by partition."""

    rows: "DataFrame"
    census: Mapping[int, PartitionCensus]

    def release(self) -> None:
        """Free the rows' storage."""
        release(self.rows)


def is_read_early(table: TablePlan) -> bool:
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
) -> EarlyRead | None:
    """Read a table's records above the ``floor``, parsed by these ``columns``.

    None: it takes the ordinary way.
    """
    raw = records.of(spark, {table.topic: table})
    observed_raw = observe_census(raw, table, cut)
    changes = parse(within(observed_raw, table.after, cut, floor, keyed=True), columns)
    newest = contenders(changes, columns)
    rows = _kept(newest)
    if rows is None:
        return None
    census = census_of(observed(newest, FACTS), table)
    if census is None:
        release(rows)
        return None
    return EarlyRead(rows, census)


def observe_census(raw: "DataFrame", table: TablePlan, cut: Position) -> "DataFrame":
    """The same records with an observation named ``FACTS``, which ``census_of`` reads."""
    return raw.observe(FACTS, *_facts(raw, table, cut))


def census_of(facts: Any, table: TablePlan) -> dict[int, PartitionCensus] | None:
    """The census of a table's records; None where they have a TRUNCATE or claims.

    ``facts`` is a row of Java's, or None where Spark saw no rows and removed the observation.
    """
    if facts is None or facts.getAs("truncated") or facts.getAs("claims"):
        return None
    return {
        number: PartitionCensus(facts.getAs(f"above_{number}"), facts.getAs(f"events_{number}"))
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
            release(rows)
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
