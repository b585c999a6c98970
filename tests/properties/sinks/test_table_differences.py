"""Updates, deletes, compaction and restores of a Delta table → the rows that differ by version."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinks.changes.names import DELETED, POSITION
from sinks.delta.difference import difference
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.version import Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.changes.derived import Derived

pytestmark = [pytest.mark.spark, pytest.mark.proof]

KEYS: Final = {
    "bigint": "id * 100000000000",
    "string": "concat(repeat('\U0001f600', 31), chr(65 + id % 7), repeat('x', id % 5), id)",
    "date": "date_add(date'1969-12-20', cast(id AS int))",
    "timestamp": "timestamp_micros(id * 333 - 5000)",
    "timestamp_ntz": "cast(timestamp_micros(id * 333 - 5000) AS timestamp_ntz)",
}
ROWS: Final = 30
ids = st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=4)
actions = st.lists(
    st.tuples(
        st.sampled_from(["update", "mark", "delete", "insert", "rekey", "compact", "restore"]), ids
    ),
    min_size=3,
    max_size=6,
)


class Table:
    """A table of two files by key, whose rows have a position each, and a value that it tells."""

    def __init__(self, spark: "SparkSession", path: str, kind: str) -> None:
        self.spark, self.path, self._key = spark, path, KEYS[kind]
        self.version = self._position = 0
        rows = self._rows("id").repartitionByRange(2, "id")
        rows.write.format("delta").options(
            **{"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
        ).save(path)

    def act(self, action: str, chosen: set[int]) -> None:
        """Do one thing to the rows with some ids."""
        self._position += 1
        table, which = f"delta.`{self.path}`", f"id IN ({', '.join(map(str, sorted(chosen)))})"
        moved = f"{POSITION} = {self._position}"
        if action == "update":
            self.spark.sql(f"UPDATE {table} SET {moved} WHERE {which}")
        elif action == "mark":
            self.spark.sql(f"UPDATE {table} SET {moved}, {DELETED} = NOT {DELETED} WHERE {which}")
        elif action == "rekey":
            key = self._key.replace("id", "(id + 100)")
            self.spark.sql(f"UPDATE {table} SET {moved}, `k.k` = {key} WHERE {which}")
        elif action == "compact":
            self.spark.sql(f"OPTIMIZE {table}")
        elif action == "restore":
            self.spark.sql(f"RESTORE {table} TO VERSION AS OF {self.version // 2}")
        else:
            self.spark.sql(f"DELETE FROM {table} WHERE {which}")
        if action == "insert":
            self._rows("id").where(which).write.format("delta").mode("append").save(self.path)
        log = self.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1")
        self.version = int(log.collect()[0]["version"])

    def _rows(self, id_: str) -> "DataFrame":
        return self.spark.range(ROWS).selectExpr(
            id_,
            f"{self._key} AS `k.k`",
            f"{self._position} AS {POSITION}",
            f"false AS {DELETED}",
        )

    def at(self, number: int) -> Version:
        """One of its versions."""
        derived = cast("Derived", SimpleNamespace(name="t", path=self.path))
        return Version(DerivedDeltaTable(self.spark, "p", derived), number)


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions, pair=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_versions_differ_by_no_fewer_rows_than_they_do(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    actions: list[tuple[str, set[int]]],
    pair: tuple[int, int],
) -> None:
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    table = Table(spark, str(tmp_path / uuid4().hex), kind)
    numbers = [0]
    for action in actions:
        table.act(*action)
        numbers.append(table.version)
    older, newer = (numbers[place % len(numbers)] for place in pair)
    for listed in (64, -1):
        monkeypatch.setattr("sinks.delta.version._LISTED_MAX", listed)
        old, new = table.at(older), table.at(newer)
        found = difference(old, new, ["k.k"], {"id"})
        had, has = shown(old.rows()), shown(new.rows())
        gone, come = (shown(found.gone), shown(found.come)) if found is not None else ([], [])
        assert {*had} - {*has} <= {*gone} <= {*had}
        assert {*has} - {*had} <= {*come} <= {*has}
        values = new.rows().where("id % 9 = 1").selectExpr("`k.k` AS v").localCheckpoint()
        near = new.rows_with(values, {"k.k": "v"})
        wanted = partial(matching, values=values)
        assert wanted(near) == wanted(new.rows())


def shown(rows: "DataFrame") -> list[tuple[Any, ...]]:
    """What tells rows apart."""
    return [(row["id"], row["k.k"], row[POSITION]) for row in rows.collect()]


def matching(rows: "DataFrame", values: "DataFrame") -> list[tuple[Any, ...]]:
    """The rows that have any of the values, in an order."""
    return sorted(shown(rows.join(values, rows["`k.k`"] == values["v"], "left_semi")))
