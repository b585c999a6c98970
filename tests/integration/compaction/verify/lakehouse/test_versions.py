"""Impossible versions of a history → each is found, and right ones aren't."""

from typing import TYPE_CHECKING

import pytest

from cdc.records.position import Position
from compaction.verify.lakehouse.versions import broken
from sinks.changes.names import END, IS_CURRENT, POSITION, VALID_TO
from sinks.changes.shape import plain_shape
from tests.fixtures.spark import at, column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OTHER_KEY = table_schema("t", "t", column("id", "int4"), column("n", "int4", 1))
SINCE = OTHER_KEY.model_copy(
    update={"version": 2, "since": str(at(20)), "columns": (column("id", "int4", 1),)}
)
INSTANT = Position(1, at(100).commit_lsn, 0)
LIVES: dict[int, list[tuple[float, float | None]]] = {
    1: [(30, 40), (40, None)],
    2: [(30, 40), (50, 60)],
    3: [(30, 30), (30.5, None)],
    4: [(10, None), (30, None)],
    11: [(30, None), (40, None)],
    12: [(30, 50), (40, None)],
    13: [(30, 40), (30, 40)],
    14: [(30, 25)],
    15: [(30, None), (110, None)],
}
"""Begin and end of each version, by key; that of 4 was under another key at first."""
FOUND = {
    ("11", "another version follows the current one"),
    ("12", "versions overlap"),
    ("13", "a version exists twice"),
    ("14", "a version ends before it begins"),
    ("15", "another version follows the current one"),
    ("15", "a version is newer than the instant"),
    ("16", "a version's marks contradict each other"),
}


def text(lsn: float | None) -> str | None:
    return None if lsn is None else str(at(int(lsn), int(lsn * 10) % 10))


def test_versions_follow_each_other_and_one_is_current_at_most(spark: "SparkSession") -> None:
    rows = [
        f"({id_}, '{text(begin)}', {'NULL' if end is None else repr(text(end))},"
        f" {'NULL' if end is None else 'now()'}, {end is None})"
        for id_, lives in LIVES.items()
        for begin, end in lives
    ]
    rows.append(f"(16, '{text(30)}', NULL, now(), true)")
    names = f"id, {POSITION}, {END}, {VALID_TO}, {IS_CURRENT}"
    versions = spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS v ({names})")
    shape = plain_shape([OTHER_KEY, SINCE], ())
    found = broken(versions, shape, INSTANT, 100)
    assert {(key["id"], why) for why, key in found.keys} == FOUND
    assert sum(found.counts.values()) == len(FOUND)
