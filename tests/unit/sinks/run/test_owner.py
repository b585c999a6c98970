"""A sink's contents → the errors with which runs refuse to continue, without Spark."""

import json
from pathlib import Path

import pytest

from cdc.errors import ConfigError, LogForgottenError
from cdc.records.position import Lsn, Position
from cdc.settings.lakehouse import LakehouseSettings
from sinks.changes.derived import derived_tables
from sinks.run.owner import application, foreign_tables, require_same_writer
from sinks.run.plan import RunPlan, TablePlan, require_same_log

NAME = "public.t"


def _plan(table: TablePlan | None = None) -> RunPlan:
    return RunPlan(
        run=3,
        prefix="p",
        log="one",
        cut=Position(1, Lsn(9), 0),
        cut_ts_us=1,
        ts_ms=1,
        tables={} if table is None else {NAME: table},
    )


def _table(base: int) -> TablePlan:
    return TablePlan(
        source=NAME,
        kind="current",
        topic=f"p.{NAME}",
        start={},
        end={},
        next={},
        after=None,
        base=base,
        first_version=1,
        schema_version=1,
        events=0,
        fresh_ms=1,
    )


def _delta(folder: Path, run: int | None) -> None:
    """A Delta table whose newest commit is of a run, or nobody's."""
    log = folder / "public" / "t" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    transaction = {"txn": {"appId": application("p", NAME), "version": run}}
    lines = [{"commitInfo": {}}, *([transaction] if run is not None else [])]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, lines)))


def test_a_plan_of_other_topics_or_another_log_is_refused() -> None:
    require_same_writer(_plan(), "lakehouse", "p", "millrace")
    require_same_log(_plan(), "one")
    with pytest.raises(ConfigError, match=r"the lakehouse belongs to topic\.prefix p"):
        require_same_writer(_plan(), "lakehouse", "q", "millrace")
    with pytest.raises(ConfigError, match="was created for topics written by millrace"):
        require_same_writer(_plan(), "lakehouse", "p", "debezium")
    with pytest.raises(LogForgottenError, match="was created again"):
        require_same_log(_plan(), "two")


@pytest.mark.parametrize(
    ("run", "plan", "words"),
    [
        (None, None, "wasn't written by Millrace"),
        (2, None, "has run 2"),
        (None, _plan(_table(0)), "wasn't written by Millrace"),
        (2, _plan(_table(0)), "has run 2"),
        (3, _plan(), "has run 3"),
        (3, _plan(_table(0)), ""),
        (2, _plan(_table(2)), ""),
    ],
    ids=[
        "somebody else's",
        "of a lakehouse before this one",
        "in the way of a first run",
        "of a run before, which nobody knows",
        "not in the plan",
        "committed by the last run",
        "gone on from",
    ],
)
def test_a_delta_table_in_the_place_of_one_that_is_new_is_refused(
    tmp_path: Path, run: int | None, plan: RunPlan | None, words: str
) -> None:
    tables = derived_tables(LakehouseSettings(path=str(tmp_path)), [NAME])
    assert list(foreign_tables(tables, plan, "p")) == []
    _delta(tmp_path, run)
    found = list(foreign_tables(tables, plan, "p"))
    assert [words in each.what for each in found] == [True] * bool(words)


def test_what_only_a_checkpoint_tells_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    tables = derived_tables(LakehouseSettings(path=str(tmp_path)), [NAME])
    _delta(tmp_path, None)
    (tmp_path / "public" / "t" / "_delta_log" / "_last_checkpoint").write_text("{}")
    assert list(foreign_tables(tables, _plan(_table(0)), "p")) == []
    assert len(list(foreign_tables(tables, None, "p"))) == 1
