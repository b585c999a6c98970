"""A random history of one table, in random batches and cuts → Delta is the model at every cut."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st

from cdc.records.position import Position
from cdc.records.schema import TableName
from cdc.records.state import Phase
from deploy.local.kafka import Kafka
from sinks.delta.replace import SMALL_BYTES
from sinks.delta.run import run_lakehouse
from sinks.names import DELETED, END, OP, POSITION
from sinks.paths import table_path
from sinks.session import RECORDS_FEW
from tests.fixtures.spark import HandLog, at, column, merge_settings, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Table = dict[int, dict[str, Any]]
Step = tuple[str, int, int]
KEYS = 6
MARKED = {"source": "public.t", "kind": "current", "name": "public.marked", "deletes": "mark"}
STEP = st.tuples(
    st.sampled_from(
        ["put", "put", "put", "patch", "refill", "delete", "move", "refilled move", "truncate"]
    ),
    st.integers(0, KEYS - 1),
    st.integers(0, KEYS - 1),
)
TRANSACTION = st.lists(STEP, min_size=1, max_size=6)
HISTORY = st.lists(TRANSACTION, min_size=12, max_size=40)
# A table's rows are marked as gone, or all written anew; it is read before the plan, or after it.
WAYS = st.tuples(st.sampled_from([0, SMALL_BYTES]), st.sampled_from([1, RECORDS_FEW]))
BATCHES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2), WAYS), min_size=3, max_size=3)


class Source:
    """The source as a dictionary, and its changes as they go to the log."""

    def __init__(self) -> None:
        self.rows: Table = {}
        self.changes: list[tuple[Any, ...]] = []
        self._value = 0

    def run(self, lsn: int, steps: list[Step]) -> None:
        """One transaction."""
        for index, (kind, key, other) in enumerate(steps, 1):
            self._value += 1
            position = at(lsn, index)
            row = self.rows.get(key)
            if kind == "truncate" and key == 0:  # rarely
                self.rows.clear()
                self.changes.append(("t", position, None))
            elif kind == "put" or row is None:
                new = {"id": key, "a": f"a{self._value}" if other else None, "n": self._value}
                self.rows[key] = new
                self.changes.append(("c" if row is None else "u", position, dict(new)))
            elif kind == "patch" or (kind == "refill" and row["a"] is None):  # no null is left out
                row["n"] = self._value
                self.changes.append(("u", position, {"id": key, "n": self._value}))
            elif kind == "refill":
                # Read again at another time: whoever has the row knows better.
                row["n"] = self._value
                read = {"id": key, "n": self._value, "a": f"later{self._value}"}
                self.changes.append(("u", position, read, ["a"]))
            else:
                del self.rows[key]
                self.changes.append(("d", position, {"id": key}))
                if kind in {"move", "refilled move"} and other not in {key, *self.rows}:
                    self.rows[other] = {**row, "id": other}
                    filled = ["a"] if kind == "refilled move" and row["a"] is not None else []
                    self.changes.append(("c", position, self.rows[other].copy(), filled))

    def copy(self) -> Table:
        return {key: dict(row) for key, row in self.rows.items()}


def write(log: HandLog, changes: list[tuple[Any, ...]]) -> None:
    """Changes as the daemon writes them."""
    for operation, position, row, *filled in changes:
        if operation == "t":
            log.truncate(position)
        elif operation == "d":
            log.row("d", position, None, row)
            log.tombstone(position, row)
        else:
            log.row(operation, position, row, None, *filled)


@settings(
    max_examples=int(os.environ.get("LAKEHOUSE_EXAMPLES", "1")),
    phases=[Phases.explicit, Phases.reuse, Phases.generate],  # shrinking takes too long
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=HISTORY, batches=BATCHES, snapshot_at=st.integers(0, 10))
def test_delta_is_the_model_at_every_cut(
    spark: "SparkSession",
    kafka: Kafka,
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[Step]],
    batches: list[tuple[int, int, tuple[int, int]]],
    snapshot_at: int,
) -> None:
    folder: Path = tmp_path_factory.mktemp("lake")
    prefix = f"model-{uuid4().hex[:12]}"
    schema = table_schema(
        prefix, "t", column("id", "int4", 1), column("a", "text"), column("n", "int4")
    )
    merge = merge_settings(
        kafka, prefix, folder, kinds=["current", "history", "changes"], tables=[MARKED]
    )
    log = HandLog(kafka, prefix, schema)
    source, states = Source(), []
    for number, steps in enumerate(history):
        source.run(number * 10 + 10, steps)
        states.append(source.copy())

    # A snapshot that begins after the stream's first transactions, whose events follow its rows.
    point = snapshot_at * 10 + 15
    for row in states[snapshot_at].values():
        log.row("r", at(point, 0), row)
    log.table(point, Phase.STREAMING)
    written, cut = 0, snapshot_at + 1
    read = len(states[snapshot_at])
    for more, held_back, (small, few) in [*batches, (len(history), 0, (0, 1))]:
        upto = min(max(written + more, snapshot_at + 2), len(history))
        between = [c for c in source.changes if written < c[1].commit_lsn // 10 <= upto]
        write(log, between)
        written = upto
        cut = max(upto - held_back, cut)  # a cut never goes back
        log.reached(at(cut * 10, 9) if cut > snapshot_at + 1 else at(point, 0))
        with (
            patch("sinks.delta.apply.SMALL_BYTES", small),
            patch("sinks.delta.early.RECORDS_FEW", few),
        ):
            summary = run_lakehouse(merge, lambda _records=0: spark, lambda _: None)
        assert [str(table.error) for table in summary.tables if table.error] == []

        def table(name: str) -> list[dict[str, Any]]:
            path = table_path(str(folder), TableName("public", name))
            return [row.asDict() for row in spark.read.format("delta").load(path).collect()]

        assert by_key(table("t")) == states[cut - 1]
        marked = table("marked")
        assert by_key(row for row in marked if not row[DELETED]) == states[cut - 1]
        assert {row["id"] for row in marked if row[DELETED]}.isdisjoint(states[cut - 1])
        assert versions(table("t_history"), point) == expected(states, snapshot_at, cut)
        archived = [(row[OP], row[POSITION]) for row in table("t_changes")]
        told = [(c[0], str(c[1])) for c in source.changes if c[1].commit_lsn <= cut * 10]
        assert sorted(archived) == sorted([*told, *[("r", str(at(point, 0)))] * read])


def by_key(rows: Iterable[dict[str, Any]]) -> Table:
    """The rows as the source has them."""
    return {row["id"]: {name: row[name] for name in ("id", "a", "n")} for row in rows}


def versions(rows: list[dict[str, Any]], point: int) -> list[tuple[Any, ...]]:
    """What a history has since the snapshot: key, values, begin and end (commit LSNs)."""
    found = []
    for row in rows:
        begin = Position.parse(row[POSITION]).commit_lsn
        end = Position.parse(row[END]).commit_lsn if row[END] else None
        assert row["is_current"] == (end is None) == (row["valid_to"] is None)
        if end is None or end > point:
            found.append((row["id"], row["a"], row["n"], max(begin, point), end))
    return sorted(found, key=str)


def expected(states: list[Table], snapshot_at: int, cut: int) -> list[tuple[Any, ...]]:
    """The same of the source's states, one after each transaction."""
    open_: dict[int, tuple[dict[str, Any], int]] = {}
    found: list[tuple[Any, ...]] = []
    for number in range(snapshot_at, cut):
        lsn = number * 10 + 10 if number > snapshot_at else snapshot_at * 10 + 15
        for key in open_.keys() | states[number].keys():
            row, begun = open_.get(key, (None, 0))
            now = states[number].get(key)
            if row == now:
                continue
            if row is not None:
                found.append((key, row["a"], row["n"], begun, lsn))
                del open_[key]
            if now is not None:
                open_[key] = (dict(now), lsn)
    found += [(key, row["a"], row["n"], begun, None) for key, (row, begun) in open_.items()]
    return sorted(found, key=str)
