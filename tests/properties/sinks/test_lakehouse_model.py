"""A random history of one table, in random batches and cuts → Delta equals the model at every cut.

Its columns change meanwhile. Some runs die; each is followed by one that doesn't. ``EXAMPLES``
makes histories more and longer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st

from cdc.records.bounds import EndedRows
from cdc.records.position import Position
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import Phase
from deploy.local.kafka import Kafka
from sinks.changes.derived import table_path
from sinks.changes.names import DELETED, END, OP, POSITION
from sinks.delta.keyed import SMALL_BYTES
from sinks.job import run_lakehouse
from sinks.run.engine import Run
from sinks.spark.session import RECORDS_FEW
from tests.fixtures.ended_rows import between, ended, is_within
from tests.fixtures.examples import examples
from tests.fixtures.readers import delta_scan
from tests.fixtures.spark import HandLog, at, column, merge_settings, run_once, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Table = dict[int, dict[str, Any]]
Step = tuple[str, int, int]
EXAMPLES = examples(1)
ROUNDS = 3 if EXAMPLES > 1 else 1
TRANSACTIONS_MIN = 12
KEYS = 6
MARKED = {"source": "public.t", "kind": "current", "name": "public.marked", "deletes": "mark"}
KINDS = ["put", "put", "put", "patch", "refill", "delete", "move", "refilled move"]
KINDS += ["truncate", "drop"]
ALTERED = ["add", "rename", "drop", "widen"]
STEP = st.tuples(
    st.sampled_from([*KINDS, *ALTERED]), st.integers(0, KEYS - 1), st.integers(0, KEYS - 1)
)
TRANSACTION = st.lists(STEP, min_size=1, max_size=6)
HISTORY = st.lists(TRANSACTION, min_size=TRANSACTIONS_MIN, max_size=40)
# A table's rows are marked as gone, or all written anew; it is read before the plan, or after it.
WAYS = st.tuples(st.sampled_from([0, SMALL_BYTES]), st.sampled_from([1, RECORDS_FEW]))
# Where a run dies: behind its plan, behind the commits of some tables, or before it says so.
DEATHS = st.sampled_from(["no", "planned", "half", "applied"])
BATCHES = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 2), WAYS, DEATHS), min_size=ROUNDS, max_size=ROUNDS
)
TYPES = {"id": "int4", "a": "text", "n": "int4"}


class Killed(Exception):  # noqa: N818 (nobody's error)
    """A run died."""


class Source:
    """The source as a dictionary, and its changes as they go to the log.

    Rows go by their columns' first names; ``names`` has those by which they are called now.
    """

    def __init__(self, prefix: str) -> None:
        self.rows: Table = {}
        self.changes: list[Change] = []
        self.names = {name: name for name in TYPES}
        self._prefix = prefix
        self._types = dict(TYPES)
        self._numbers = {name: number for number, name in enumerate(TYPES, 1)}
        self._value = 0
        self._dropped: list[EndedRows] = []
        self.schema = self._described(1)
        self.states: list[Table] = []
        """The rows behind each transaction, and which columns there were, in which version."""
        self.live: list[set[str]] = []
        self.schemas: list[TableSchema] = []

    def run(self, lsn: int, steps: list[Step]) -> None:
        """One transaction."""
        for index, (kind, key, other) in enumerate(steps, 1):
            self._value += 1
            position = at(lsn, index)
            if kind in ALTERED and key == 0:  # rarely
                self._alter(kind, other)
            elif kind == "drop":
                self._drop(key, key + other % 3, position)
            else:
                self._change("put" if kind in ALTERED else kind, key, other, position)
        # It is found out later: what came anew meanwhile stays.
        for rows in self._dropped:
            self._tell("p", at(lsn, len(steps) + 1), rows.model_dump(mode="json"))
        self._dropped.clear()
        self.states.append({key: dict(row) for key, row in self.rows.items()})
        self.live.append(set(self.names))
        self.schemas.append(self.schema)

    def _drop(self, first: int, end: int, position: Position) -> None:
        """A partition of some keys is dropped."""
        rows = ended(position, between("id", [first], [end]))
        self.rows = {k: row for k, row in self.rows.items() if not is_within(rows.bounds, row)}
        self._dropped.append(rows)

    def _change(self, kind: str, key: int, other: int, position: Position) -> None:
        row = self.rows.get(key)
        if kind == "truncate" and key == 0:  # rarely
            self.rows.clear()
            self._tell("t", position)
        elif kind == "put" or row is None:
            added = {name: self._value * other for name in self.names if name not in TYPES}
            text = f"a{self._value}" if other else None
            new = {"id": key, "a": text, "n": self._value, **added}
            self.rows[key] = new
            self._tell("c" if row is None else "u", position, new)
        elif kind == "patch" or (kind == "refill" and row["a"] is None):  # no null is left out
            row["n"] = self._value
            self._tell("u", position, {name: row[name] for name in row if name != "a"})
        elif kind == "refill":
            # Read again at another time: whoever has the row knows better.
            row["n"] = self._value
            self._tell("u", position, row | {"a": f"later{self._value}"}, ["a"])
        else:
            del self.rows[key]
            self._tell("d", position, {"id": key})
            if kind in {"move", "refilled move"} and other not in {key, *self.rows}:
                self.rows[other] = {**row, "id": other}
                filled = ["a"] if kind == "refilled move" and row["a"] is not None else []
                self._tell("c", position, self.rows[other], filled)

    def _tell(
        self,
        operation: str,
        position: Position,
        row: dict[str, Any] | None = None,
        filled: Iterable[str] = (),
    ) -> None:
        named = {self.names.get(name, name): value for name, value in (row or {}).items()}
        told = [self.names[name] for name in filled]
        self.changes.append(Change(operation, position, named, told, self.schema))

    def _alter(self, kind: str, other: int) -> None:
        added = sorted(set(self.names) - set(TYPES))
        if kind == "widen":
            self._types["n"] = "int8"
        elif kind == "rename":
            name = [*added, "a"][other % (len(added) + 1)]
            self.names[name] = f"{name}_{self._value}"
        elif kind == "drop" and added:
            name = added[other % len(added)]
            del self.names[name]
            for row in self.rows.values():
                del row[name]
        else:
            name = f"c{self._value}"
            self.names[name], self._types[name] = name, "int4"
            self._numbers[name] = len(self._numbers) + 1
            for row in self.rows.values():
                row[name] = None
        self.schema = self._described(self.schema.version + 1)

    def names_in(self, schema: TableSchema) -> dict[str, str]:
        """First names, and what that version calls these columns."""
        called = {column.number: column.name for column in schema.columns}
        numbers = self._numbers.items()
        return {name: called[number] for name, number in numbers if number in called}

    def _described(self, version: int) -> TableSchema:
        columns = [
            column(
                called,
                self._types[name],
                1 if name == "id" else None,
                number=self._numbers[name],
            )
            for name, called in self.names.items()
        ]
        return table_schema(self._prefix, "t", *columns, version=version, oid=7)


class Change(NamedTuple):
    """What the log gets, under which schema version."""

    operation: str
    position: Position
    row: dict[str, Any]
    filled: list[str]
    schema: TableSchema


def write(log: HandLog, changes: list[Change]) -> None:
    """Changes as the daemon writes them."""
    for operation, position, row, filled, schema in changes:
        if schema.version != log.schema.version:
            log.add_schema(schema)
        if operation == "t":
            log.truncate(position)
        elif operation == "p":
            log.drop(position, EndedRows.model_validate(row))
        elif operation == "d":
            log.row("d", position, None, row)
            log.tombstone(position, row)
        else:
            log.row(operation, position, row, None, filled)


@contextmanager
def dying(where: str) -> Iterator[None]:
    """Runs within die there, if they come so far."""
    apply, calls = Run._applied, count()

    def half(run: Run, *args: Any) -> Any:
        if next(calls) > 1:
            raise Killed
        return apply(run, *args)

    with suppress(Killed), ExitStack() as stack:
        if where == "planned":
            stack.enter_context(patch.object(Run, "_apply", side_effect=Killed))
        elif where == "half":
            stack.enter_context(patch.object(Run, "_applied", half))
        elif where == "applied":
            stack.enter_context(patch.object(Run, "_finished", side_effect=Killed))
        yield


@settings(
    max_examples=EXAMPLES,
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
    batches: list[tuple[int, int, tuple[int, int], str]],
    snapshot_at: int,
) -> None:
    assume(len(history) > TRANSACTIONS_MIN)  # the first one is the simplest, which shows little
    folder: Path = tmp_path_factory.mktemp("lake")
    prefix = f"model-{uuid4().hex[:12]}"
    merge = merge_settings(
        kafka, prefix, folder, kinds=["current", "history", "changes"], tables=[MARKED]
    )
    source = Source(prefix)
    log = HandLog(kafka, prefix, source.schema)
    for number, steps in enumerate(history):
        source.run(number * 10 + 10, steps)
    point = write_snapshot(log, source, snapshot_at)
    written, cut = 0, snapshot_at + 1

    def table(name: str) -> list[dict[str, Any]]:
        return delta_scan(table_path(str(folder), TableName("public", name)))

    last = len(history), 0, (0, 1), "no"
    for more, held_back, (small, few), dies in [*batches, last]:
        upto = min(max(written + more, snapshot_at + 2), len(history))
        between = [c for c in source.changes if written < c.position.commit_lsn // 10 <= upto]
        write(log, between)
        written = upto
        cut = max(upto - held_back, cut)  # a cut never goes back
        log.reached(at(cut * 10, 9) if cut > snapshot_at + 1 else at(point, 0))
        with (
            patch("sinks.delta.keyed.SMALL_BYTES", small),
            patch("sinks.log.changes.RECORDS_FEW", few),
        ):
            if dies != "no":
                with dying(dies):
                    run_once(run_lakehouse, merge, spark)
            summary = run_once(run_lakehouse, merge, spark)
        assert [str(table.error) for table in summary.tables if table.error] == []
        # Columns are the log's, which may be ahead of the cut, and has DDL with the next change;
        # values are those at the cut.
        called = source.names_in(log.schema)
        names = {name: now for name, now in called.items() if name in source.live[cut - 1]}
        require_all_kinds(table, source, names, snapshot_at, cut)


def write_snapshot(log: HandLog, source: Source, at_number: int) -> int:
    """Rows behind the stream's first transactions, whose events follow them; returns their LSN."""
    point = at_number * 10 + 15
    for schema in dict.fromkeys(source.schemas[: at_number + 1]):
        log.add_schema(schema)
    names = source.names_in(log.schema)
    for row in source.states[at_number].values():
        named = {names[name]: value for name, value in row.items()}
        log.row("r", at(point, 0), named)
    log.table(point, Phase.STREAMING)
    return point


def require_all_kinds(
    table: Callable[[str], list[dict[str, Any]]],
    source: Source,
    names: dict[str, str],
    snapshot_at: int,
    cut: int,
) -> None:
    """Compare each kind of derived table with the source at a cut."""
    point = snapshot_at * 10 + 15
    state = by_key(source.states[cut - 1].values(), {name: name for name in names})
    assert by_key(table("t"), names) == state
    marked = table("marked")
    assert by_key([row for row in marked if not row[DELETED]], names) == state
    assert {row["id"] for row in marked if row[DELETED]}.isdisjoint(state)
    history = versions(table("t_history"), point, names)
    assert history == expected(source.states, snapshot_at, cut, names)
    archived = [(row[OP], row[POSITION]) for row in table("t_changes")]
    told = [
        (change.operation, str(change.position))
        for change in source.changes
        if change.position.commit_lsn <= cut * 10
    ]
    read = [("r", str(at(point, 0)))] * len(source.states[snapshot_at])
    assert sorted(archived) == sorted([*told, *read])


def by_key(rows: Iterable[dict[str, Any]], names: dict[str, str]) -> Table:
    """The rows as the source has them."""
    return {row["id"]: {name: row[now] for name, now in names.items()} for row in rows}


def versions(
    rows: list[dict[str, Any]], point: int, names: dict[str, str]
) -> list[tuple[Any, ...]]:
    """What a history has since the snapshot: values, begin and end (commit LSNs)."""
    found = []
    for row in rows:
        begin = Position.parse(row[POSITION]).commit_lsn
        end = Position.parse(row[END]).commit_lsn if row[END] else None
        assert row["is_current"] == (end is None) == (row["valid_to"] is None)
        if end is None or end > point:
            values = (row[now] for now in names.values())
            found.append((*values, max(begin, point), end))
    return sorted(found, key=str)


def expected(
    states: list[Table], snapshot_at: int, cut: int, names: dict[str, str]
) -> list[tuple[Any, ...]]:
    """The same of the source's states, one after each transaction.

    A column that was added since is null in all that was before.
    """
    open_: dict[int, tuple[dict[str, Any], int]] = {}
    found: list[tuple[Any, ...]] = []
    for number in range(snapshot_at, cut):
        lsn = number * 10 + 10 if number > snapshot_at else snapshot_at * 10 + 15
        for key in open_.keys() | states[number].keys():
            row, begun = open_.get(key, (None, 0))
            now = states[number].get(key)
            if _is_same(row, now):
                continue
            if row is not None:
                found.append((*map(row.get, names), begun, lsn))
                del open_[key]
            if now is not None:
                open_[key] = (dict(now), lsn)
    found += [(*map(row.get, names), begun, None) for row, begun in open_.values()]
    return sorted(found, key=str)


def _is_same(row: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    """Whether nothing has changed but columns that rows have."""
    if row is None or now is None:
        return row is now
    return all(row.get(name) == value for name, value in now.items())
