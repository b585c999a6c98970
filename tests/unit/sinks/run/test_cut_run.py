"""Cuts → a toy in memory: it dies anywhere, but has the newest cut in the end.

The toy's server takes one document after another, at its cut, and refuses older ones. It joins
the rows of two tables by their key. Every durable action of a run may be its last.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from cdc.errors import ConfigError, SinkError
from cdc.records.position import Lsn, Position
from sinks.run.cut_run import CutLoad, CutRecord, CutRun, CutTarget
from sinks.run.cuts import CutReader, Instant
from sinks.run.summary import TableVersion
from tests.fixtures.examples import examples

Rows = dict[int, str]
Joined = dict[int, tuple[str, str | None]]
SLICES = 3
KEYS = range(6)


class Death(BaseException):
    """SIGKILL."""


class Stored(BaseModel):
    """A generation: its number, and the table whose rows are joined to those of ``a``."""

    model_config = ConfigDict(frozen=True)

    number: int
    other: str


class MemoryCuts:
    """A lakehouse: the rows of tables at each run's cut. A table that failed has none there."""

    def __init__(self) -> None:
        self.epoch = 1
        self.ids = {"a": 0, "b": 0, "c": 0}
        self.source: dict[str, Rows] = {name: {} for name in self.ids}
        self.runs: list[tuple[Instant, dict[str, Rows]]] = []
        self.kept_from = 0

    def merge(self, failed: Collection[str] = ()) -> None:
        """Take the tables to the next cut."""
        run = len(self.runs) + 1
        rows = {name: dict(rows) for name, rows in self.source.items() if name not in failed}
        versions = {
            name: self._version(name, run, rows[name]) for name in sorted(rows.keys() - failed)
        }
        cut = Position(self.epoch, Lsn(run), 0)
        self.runs.append((Instant(run=run, cut=cut, versions=versions), rows))

    def _version(self, name: str, run: int, rows: Rows) -> TableVersion:
        """A table that nothing came for has its version of before."""
        for instant, before in reversed(self.runs):
            if name in before and instant.versions[name].id == str(self.ids[name]):
                if before[name] == rows:
                    return instant.versions[name]
                break
        return TableVersion(id=str(self.ids[name]), version=run)

    def newest(self, tables: Collection[str]) -> Instant | None:
        for instant, rows in reversed(self.runs):
            if rows.keys() >= set(tables):
                versions = {name: instant.versions[name] for name in sorted(set(tables))}
                return instant.model_copy(update={"versions": versions})
        return None

    def has(self, instant: Instant) -> bool:
        return instant.run >= self.kept_from

    def shapes(self, instant: Instant) -> dict[str, Any]:
        raise NotImplementedError

    def reader(self, *instants: Instant, records: int = 0) -> CutReader:
        raise NotImplementedError

    def joined(self, other: str, instant: Instant) -> Joined:
        _, rows = self.runs[instant.run - 1]
        return {key: (value, rows[other].get(key)) for key, value in rows["a"].items()}


@dataclass
class Server:
    """What outlives a run: documents with their versions by generation, the name's, the record."""

    indexes: dict[int, dict[int, tuple[Position, tuple[str, str | None] | None]]] = field(
        default_factory=dict
    )
    shown: int | None = None
    record: CutRecord[Stored] = field(default_factory=CutRecord[Stored])
    lives: int = -1

    def acts(self) -> None:
        if self.lives == 0:
            raise Death
        self.lives -= 1

    def documents(self) -> Joined:
        assert self.shown is not None
        return {key: row for key, (_, row) in self.indexes[self.shown].items() if row is not None}


class Toy(CutTarget[Stored]):
    """Documents of the rows of ``a`` with those of another table."""

    name = "toy"
    what = "index"
    where = "the toy"

    def __init__(self, cuts: MemoryCuts, server: Server, other: str) -> None:
        self.said: list[str] = []
        self.report = self.said.append
        self.record = server.record
        self._cuts = cuts
        self._server = server
        self._other = other

    def write(self, record: CutRecord[Stored]) -> None:
        self._server.acts()
        stored = CutRecord[Stored].model_validate_json(record.model_dump_json())
        self.record = self._server.record = stored

    def tables(self, generation: Stored | None) -> set[str]:
        return {"a", self._other if generation is None else generation.other}

    def is_there(self, generation: Stored) -> bool:
        return generation.number in self._server.indexes

    def is_shown(self, generation: Stored) -> bool:
        return self._server.shown == generation.number

    def suits(self, generation: Stored, at: Instant) -> bool:
        return True

    def unfit(self, generation: Stored, at: Instant, newest: Instant) -> str | None:
        return None

    def adapted(self, generation: Stored, newest: Instant) -> Stored | str:
        return generation if generation.other == self._other else "its definition has changed"

    def begin(self, at: Instant, after: Stored | None) -> CutLoad[Stored]:
        self._server.acts()
        used = [*self._server.indexes, after.number if after is not None else 0]
        into = Stored(number=max(used) + 1, other=self._other)
        self._server.indexes[into.number] = {}
        return CutLoad[Stored](into=into, slices=SLICES)

    def load(self, loading: CutLoad[Stored], at: Instant) -> None:
        for key, row in self._cuts.joined(loading.into.other, at).items():
            if key % loading.slices == loading.done:
                self._write_row(loading.into, key, row, at)

    def write_changed(self, generation: Stored, at: Instant, to: Instant) -> None:
        # Versions that both cuts have are there as long as the later one is.
        names = self.tables(generation)
        is_same = all(at.versions.get(name) == to.versions.get(name) for name in names)
        if not is_same and not self._cuts.has(at):
            raise SinkError("the cut is gone")
        before, after = (self._cuts.joined(generation.other, instant) for instant in (at, to))
        for key in KEYS:
            if before.get(key) != after.get(key):
                self._write_row(generation, key, after.get(key), to)

    def _write_row(
        self, generation: Stored, key: int, row: tuple[str, str | None] | None, at: Instant
    ) -> None:
        self._server.acts()
        documents = self._server.indexes[generation.number]
        if key not in documents or documents[key][0] <= at.cut:
            documents[key] = (at.cut, row)

    def publish(self, generation: Stored) -> None:
        self._server.acts()
        self._server.shown = generation.number
        self._server.acts()
        self._server.indexes = {generation.number: self._server.indexes[generation.number]}


def run(cuts: MemoryCuts, server: Server, other: str, lives: int = -1, **options: bool) -> Toy:
    """One run, which may die at one of its actions."""
    server.lives = lives
    toy = Toy(cuts, server, other)
    CutRun(cuts, toy).once(**options)
    return toy


def assert_newest(cuts: MemoryCuts, server: Server, other: str) -> None:
    newest = cuts.newest({"a", other})
    assert newest is not None
    assert server.documents() == cuts.joined(other, newest)
    record = server.record
    assert record.at is not None
    assert record.at.run == newest.run
    assert (record.to, record.loading, record.frozen) == (None, None, False)


def fill(cuts: MemoryCuts, mark: str) -> None:
    cuts.source = {
        name: {key: f"{name}{key}{mark}" for key in KEYS if (key + len(mark)) % 4}
        for name in cuts.ids
    }


@pytest.mark.parametrize("begun", ["first", "changed", "redefined", "rebuilt", "gone", "anew"])
def test_a_run_that_dies_anywhere_is_finished_by_the_next(begun: str) -> None:
    """Where each of its actions was the last, and rows came by the cut that died, to go again."""
    deaths, is_done = 0, False
    while not is_done:
        cuts, server = MemoryCuts(), Server()
        fill(cuts, "")
        cuts.merge()
        other, options = "b", {}
        if begun != "first":
            run(cuts, server, "b")
        fill(cuts, "!")
        match begun:
            case "redefined":
                other = "c"
            case "rebuilt":
                options = {"rebuilt": True}
            case "gone":
                server.indexes.clear()
                server.shown = None
            case "anew":
                cuts.ids["b"] += 1
        cuts.merge()
        before = server.shown
        try:
            run(cuts, server, other, deaths, **options)
        except Death:
            deaths += 1
        else:
            is_done = True
        published = server.shown
        fill(cuts, "")
        cuts.merge()
        run(cuts, server, other)
        assert published in {before, server.shown}, "what serves already isn't loaded again"
        assert_newest(cuts, server, other)
    assert deaths > SLICES


class Step(BaseModel):
    """A change of the source and of all else, and a run, which may die."""

    changes: list[tuple[str, int, str | None]]
    failed: set[str] = set()
    other: str
    lives: int
    event: str | None


STEPS = st.lists(
    st.builds(
        Step,
        changes=st.lists(
            st.tuples(
                st.sampled_from("abc"), st.sampled_from(KEYS), st.sampled_from([None, "x", "y"])
            ),
            max_size=5,
        ),
        failed=st.sets(st.sampled_from("abc"), max_size=1),
        other=st.sampled_from("bbbc"),
        lives=st.integers(-1, 25),
        event=st.sampled_from([None] * 8 + ["gone", "anew", "epoch", "expired", "rebuilt"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_happens_it_is_the_newest_cut_in_the_end_and_never_goes_back(
    steps: list[Step],
) -> None:
    cuts, server = MemoryCuts(), Server()
    for step in steps:
        happen(cuts, server, step)
        before, shown = server.record, server.shown
        documents = dict(server.indexes[shown]) if shown is not None else {}
        try:
            run(cuts, server, step.other, step.lives, rebuilt=step.event == "rebuilt")
        except (Death, ConfigError):
            pass
        else:
            assert server.shown is not None
            assert_newest(cuts, server, step.other)
        now = server.record
        if before.at is not None and now.at is not None:
            assert now.at.cut >= before.at.cut or not cuts.has(before.at), "it goes back"
        if shown is not None and server.shown == shown:
            assert all(server.indexes[shown][key][0] >= cut for key, (cut, _) in documents.items())
    cuts.merge()
    run(cuts, server, "b")
    assert_newest(cuts, server, "b")


def happen(cuts: MemoryCuts, server: Server, step: Step) -> None:
    """What comes between two runs."""
    for table, key, value in step.changes:
        cuts.source[table].pop(key, None)
        if value is not None:
            cuts.source[table][key] = value
    match step.event:
        case "gone":
            server.indexes.clear()
            server.shown = None
        case "anew":
            cuts.ids[step.other] += 1
        case "epoch":
            cuts.epoch += 1
        case "expired":
            cuts.kept_from = len(cuts.runs) + 1
    cuts.merge(step.failed)


def test_a_cut_that_not_all_tables_have_is_waited_for() -> None:
    cuts, server = MemoryCuts(), Server()
    with pytest.raises(ConfigError, match="no cut of the lakehouse has all of a, b"):
        run(cuts, server, "b")
    fill(cuts, "")
    cuts.merge()
    run(cuts, server, "b")
    fill(cuts, "!")
    cuts.merge(failed={"b"})
    run(cuts, server, "b")
    assert_newest(cuts, server, "b")
    assert server.record.at is not None
    assert server.record.at.run == 1


def test_what_serves_stays_as_it_is_while_its_own_tables_fail() -> None:
    """Another definition is loaded beside it, and serves in the end."""
    cuts, server = MemoryCuts(), Server()
    fill(cuts, "")
    cuts.merge(failed={"c"})
    run(cuts, server, "b")
    before = server.documents()
    fill(cuts, "!")
    cuts.merge(failed={"b"})
    with pytest.raises(Death):
        run(cuts, server, "c", lives=5)
    assert server.record.frozen
    assert server.documents() == before
    run(cuts, server, "c")
    assert_newest(cuts, server, "c")


def test_a_run_that_has_nothing_to_do_says_so() -> None:
    cuts, server = MemoryCuts(), Server()
    fill(cuts, "")
    for is_changed in (True, False):
        cuts.merge()
        assert CutRun(cuts, Toy(cuts, server, "b")).once() is is_changed
    assert server.record.at is not None
    assert server.record.at.run == cuts.runs[-1][0].run
