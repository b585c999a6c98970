"""Rows that snapshots read of a table without a key → whether some were read twice.

They would be twice in the derived table, since nothing tells a row from its copy. All rows of one
snapshot have its LSN and time; what was changed behind it comes behind them.
"""

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.debezium.described import Described
from sinks.debezium.envelope import LETTER, enveloped, told_lsn, told_us

Snapshot = tuple[int, int]
"""LSN, and time (µs since 1970)."""


class Reads(NamedTuple):
    """The snapshot whose rows a table has, if of any; and whether there are rows of another one."""

    snapshot: Snapshot | None = None
    again: bool = False


def reads(
    raw: DataFrame, topic: Described, partitions: int, known: Snapshot | None, begins: bool
) -> Reads:
    """Look for rows of snapshots in the records of one topic.

    ``known`` is the snapshot that the table has rows of; one that doesn't begin here and has none
    began with changes. Several partitions are in the order in which Kafka got their records.
    """
    of_snapshot = F.col(LETTER) == "r"
    change = F.col(LETTER).isin("c", "u", "d")
    place = F.col("offset" if partitions == 1 else "timestamp")
    snapshot = F.struct(
        F.coalesce(told_lsn(topic), F.lit(0)).alias("lsn"),
        F.coalesce(told_us(topic), F.lit(0)).alias("us"),
    )
    row = (
        enveloped(raw, topic)
        .agg(
            F.min(F.when(of_snapshot, snapshot)).alias("first"),
            F.max(F.when(of_snapshot, snapshot)).alias("last"),
            F.max(F.when(of_snapshot, place)).alias("last_place"),
            F.min(F.when(change, place)).alias("change"),
        )
        .first()
    )
    if row is None or row["first"] is None:
        return Reads(known)
    found = (row["first"]["lsn"], row["first"]["us"])
    several = row["first"] != row["last"] or (known is not None and known != found)
    behind = row["change"] is not None and row["change"] < row["last_place"]
    return Reads(found, several or behind or (known is None and not begins))
