"""Runs of many tables → records of moved tables only → every plan and outcome, unchanged."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.records.position import Lsn, Position
from sinks.delta.cuts import cut_at, cuts
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.plans import Plans
from sinks.run.records import parent_of
from sinks.run.summary import RunOutcome, TableVersion
from sinks.spark.files import DamagedError, LocalFiles
from tests.fixtures.few import few

RUNS = 70


def plans_in(folder: Path) -> Plans:
    """As another process sees them."""
    return Plans(LocalFiles(folder), str(folder))


def table_plan(name: str, run: int) -> TablePlan:
    return TablePlan(
        topic=name,
        start={0: 0},
        end={0: run},
        next={0: run},
        after=None,
        schema_version=1,
        base=0,
        events=run,
        fresh_ms=run,
        source=name,
    )


class Lake:
    """Runs over tables of which any moves, fails, waits, goes or comes; and what they were."""

    def __init__(self, folder: Path, seed: int, tables: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)  # noqa: S311 (no secret)
        self.names = [f"s.t{number}" for number in range(tables)]
        self.plans: dict[int, RunPlan] = {}
        self.outcomes: dict[int, RunOutcome] = {}
        self.left: dict[str, TablePlan] = {}
        self.versions: dict[str, TableVersion] = {}

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def planned(self, run: int) -> RunPlan:
        tables, waiting = dict[str, TablePlan](), dict[str, TablePlan]()
        share = self.chance.choice([0.02, 0.02, 0.3, 1])
        for name in self.names:
            table = self.left.get(name)
            if table is None:
                if self.often(share):
                    tables[name] = table_plan(name, run)
            elif self.often(0.02):
                continue  # nobody wants it any more
            elif self.often(0.05):
                waiting[name] = table
            elif self.often(share):
                news = {"end": {0: run}, "next": {0: run}, "events": 1, "fresh_ms": run}
                tables[name] = table.model_copy(update=news)
            else:
                stale = self.often(0.05)
                tables[name] = table.model_copy(update={"fresh_ms": 7 if stale else 1_000 + run})
        return RunPlan(
            run=run,
            prefix="p",
            log="one",
            cut=Position(1, Lsn(10 * run), 0),
            cut_ts_us=run,
            ts_ms=run,
            tables=tables,
            waiting=waiting,
            read_ms=1_000 + run,
        )

    def ended(self, plan: RunPlan) -> RunOutcome:
        failed = {name: "why" for name in plan.tables if self.often(0.05)}
        versions: dict[str, TableVersion] = {}
        for name, table in plan.tables.items():
            moves = bool(table.events) or self.often(0.02)  # compaction has made a version
            if name in failed or self.often(0.02):  # nobody could read which it is
                continue
            old = self.versions.get(name)
            new = TableVersion(id=name, version=plan.run)
            versions[name] = new if moves or old is None else old
        covered = tuple(name for name in plan.tables if self.often(0.01))
        return RunOutcome(
            run=plan.run, ts_ms=plan.run, failed=failed, versions=versions, covered=covered
        )

    def run(self, number: int) -> None:
        """One run, each step of which may be another process's."""
        plan = self.planned(number)
        plans_in(self.folder).start(plan)
        self.plans[number] = plan
        assert plans_in(self.folder).last() == plan, "what a death leaves is finished"
        assert plans_in(self.folder).outcome(plan) is None
        outcome = self.ended(plan)
        plans_in(self.folder).finish(outcome)
        self.outcomes[number] = outcome
        self.left = {n: t for n, t in goes_on(plan, outcome).items() if n in self.names}
        self.versions |= outcome.versions


def assert_kept(lake: Lake, since: int) -> None:
    """Every plan and outcome from a run on is what it was, and so are its parts."""
    plans = plans_in(lake.folder)
    for run in range(since, max(lake.plans) + 1):
        whole = lake.plans[run]
        assert plans.plan_of(run) == whole, run
        assert plans.outcome_of(run) == lake.outcomes[run], run
        names = {*lake.chance.sample(lake.names, 2)}
        some = plans.plan_of(run, names)
        assert some is not None
        assert some.tables == {n: t for n, t in whole.tables.items() if n in names}
        assert some.waiting == {n: t for n, t in whole.waiting.items() if n in names}
        outcome = plans.outcome_of(run, names)
        assert outcome is not None
        own = lake.outcomes[run].versions
        assert outcome.versions == {n: of for n, of in own.items() if n in names}
    assert [cut.run for cut in cuts(plans)] == [*range(since, max(lake.plans) + 1)]


@pytest.mark.parametrize("seed", few(range(40), 0, 1))
def test_every_plan_and_outcome_is_what_it_was(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.run.records.WHOLE_EVERY", 32)
    lake = Lake(tmp_path, seed, tables=6)
    for run in range(1, RUNS + 1):
        lake.run(run)
    assert_kept(lake, 1)
    for before in (lake.chance.randrange(2, 30), lake.chance.randrange(31, RUNS)):
        plans_in(tmp_path).forget(before)
        assert plans_in(tmp_path).ended() == [*range(before, RUNS + 1)]
        assert_kept(lake, before)
    for run in range(RUNS + 1, RUNS + 20):
        lake.run(run)
    assert_kept(lake, before)


def chain(run: int) -> Iterator[int]:
    while run:
        yield run
        run = parent_of(run)


def idle_lake(folder: Path, tables: int, runs: int) -> tuple[Plans, list[int]]:
    """Runs that move one table of many after the first one; and how large each one's record is."""
    names, plans = [f"s.t{number}" for number in range(tables)], plans_in(folder)
    left = {name: table_plan(name, 1) for name in names}
    versions = {name: TableVersion(id=name, version=0) for name in names}
    sizes = []
    for run in range(1, runs + 1):
        read_ms = 1_000 + run
        tables_now = {name: t.model_copy(update={"fresh_ms": read_ms}) for name, t in left.items()}
        if run > 1:
            news = {"end": {0: run}, "next": {0: run}, "events": 1}
            tables_now["s.t1"] = tables_now["s.t1"].model_copy(update=news)
            versions["s.t1"] = TableVersion(id="s.t1", version=run)
        plan = RunPlan(
            run=run,
            prefix="p",
            log="one",
            cut=Position(1, Lsn(10 * run), 0),
            cut_ts_us=1_000_000 * run,
            ts_ms=run,
            tables=tables_now,
            read_ms=read_ms,
        )
        plans.start(plan)
        outcome = RunOutcome(run=run, ts_ms=run, failed={}, versions={**versions})
        plans.finish(outcome)
        left = goes_on(plan, outcome)
        files = folder.glob(f"{run:020}.*json")
        sizes.append(sum(path.stat().st_size for path in files))
    return plans_in(folder), sizes


def test_a_record_is_as_large_as_what_has_moved(tmp_path: Path) -> None:
    """A run whose number is a power of two has all tables once more."""
    sums = []
    for tables in (5, 50):
        _, sizes = idle_lake(tmp_path / str(tables), tables, 16)
        sums.append(sum(size for run, size in enumerate(sizes, 1) if run & (run - 1)))
    few_tables, many_tables = sums
    assert many_tables <= 1.5 * few_tables


def test_a_cut_is_found_by_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 100
    idle_lake(tmp_path, 3, runs)
    read: list[str] = []
    of_file = LocalFiles.read

    def counted(files: LocalFiles, name: str) -> str | None:
        read.append(name)
        return of_file(files, name)

    monkeypatch.setattr(LocalFiles, "read", counted)
    lsn, moment = str(Lsn(10 * 77 + 5)), "1970-01-01T00:01:17.5"
    for at, run in (("latest", runs), ("77", 77), (lsn, 77), (moment, 77)):
        read.clear()
        assert cut_at(plans_in(tmp_path), at).run == run
        bits = runs.bit_length()
        assert len(read) <= (2 * bits + 2 if at == "latest" else 4 * bits + 4), read
        assert len(set(read)) == len(read), "none is read twice"


def test_a_record_that_is_gone_is_told(tmp_path: Path) -> None:
    plans, _ = idle_lake(tmp_path, 3, 13)
    assert [*chain(13)] == [13, 12, 8]
    (tmp_path / f"{12:020}.json").unlink()
    with pytest.raises(DamagedError, match="a record that later ones need is missing"):
        plans.last()
    plan = plans.plan_of(11)
    assert plan is not None
    assert len(plan.tables) == 3
    assert "before" in json.loads((tmp_path / f"{8:020}.json").read_text())
