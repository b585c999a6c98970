"""A table's plan, and records missing from the log → the lakehouse's action."""

from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from cdc.errors import LogForgottenError
from cdc.records.position import Lsn, Position
from cdc.settings import Settings
from sinks.delta.target import LakehouseTarget
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import Rows
from sinks.run.target import Forgotten
from tests.fixtures.made_plans import NAME, table_plan

TABLE = str(NAME)
AT = Position(1, Lsn(9), 0)


def lakehouse(tmp_path: Path, *accepted: str) -> LakehouseTarget:
    settings = Settings(
        source={},
        capture={"topic.prefix": "p"},
        kafka={"bootstrap.servers": "nowhere"},
        lakehouse={"path": str(tmp_path)},
    )
    assert settings.lakehouse is not None
    options = RunOptions(accepted_gaps=frozenset(accepted))
    return LakehouseTarget(RunContext(settings, Mock(), print, options), settings.lakehouse)


def test_a_table_that_has_nothing_to_commit_reads_nothing(tmp_path: Path) -> None:
    """All of its new records are above the cut."""

    def read(*_: Any) -> NoReturn:
        raise AssertionError("it was read")

    table = table_plan(base=1, after=AT, start={0: 3}, next={0: 3}, debezium=None)
    plan = RunPlan(run=2, prefix="p", log="", cut=AT, cut_ts_us=0, ts_ms=0, tables={TABLE: table})
    spark = Mock()
    assert lakehouse(tmp_path).apply(spark, TABLE, plan, read) == Rows()
    assert not spark.mock_calls


@pytest.mark.parametrize(
    ("table", "compacted", "can_mark", "lacks", "says"),
    [
        ({"base": 1}, True, True, "now", ""),
        ({"base": 1}, False, True, None, ""),
        ({"base": 1, "kind": "history"}, True, True, None, "marks the gap"),
        ({"base": 1, "kind": "history"}, False, True, None, "read it again; then"),
        ({"base": 1, "kind": "changes"}, False, True, None, "marks the gap"),
        ({"base": 1, "kind": "history"}, True, False, None, ""),
        ({}, False, True, None, "begins with what the log has"),
        ({}, False, False, None, ""),
        ({"replay": "a"}, False, True, None, ""),
    ],
)
def test_a_gap_rebuilds_current_rows_or_waits_for_the_user(
    tmp_path: Path,
    table: dict[str, Any],
    compacted: bool,
    can_mark: bool,
    lacks: str | None,
    says: str,
) -> None:
    planned = table_plan(after=AT, debezium=None, **table)
    gap = forgotten(planned, compacted=compacted, can_mark=can_mark)
    answer = lakehouse(tmp_path).behind_gap(TABLE, planned, gap)
    assert (answer.lacks if answer is not None else None) == lacks
    assert says in gap.error.remedy
    assert bool(says) == ("--accept-gap" in gap.error.remedy)


@pytest.mark.parametrize(
    ("table", "compacted", "can_mark", "lacks"),
    [
        ({"base": 1, "kind": "history"}, True, True, "now"),
        ({"base": 1, "kind": "history"}, False, True, None),
        ({"base": 1, "kind": "changes"}, False, True, "now"),
        ({"base": 1, "kind": "changes"}, False, False, None),
        ({}, False, False, "before"),
        ({"replay": "a"}, False, True, None),
    ],
)
def test_a_gap_that_the_user_accepts_is_marked_or_begun_with(
    tmp_path: Path, table: dict[str, Any], compacted: bool, can_mark: bool, lacks: str | None
) -> None:
    planned = table_plan(after=AT, debezium=None, **table)
    gap = forgotten(planned, compacted=compacted, can_mark=can_mark)
    answer = lakehouse(tmp_path, TABLE).behind_gap(TABLE, planned, gap)
    assert (answer.lacks if answer is not None else None) == lacks


def test_rows_that_were_read_again_take_the_place_of_those_that_the_log_has_forgotten(
    tmp_path: Path,
) -> None:
    stands = table_plan(base=1, after=AT, debezium=None)
    gap = forgotten(stands, compacted=False, can_mark=True)
    gap = gap._replace(replaced=stands.rebuilt({0: 2}))
    answer = lakehouse(tmp_path).behind_gap(TABLE, stands, gap)
    assert answer is not None
    assert (answer.start, answer.after, answer.base) == ({0: 2}, None, 1)
    assert answer.rebuilds
    assert answer.left_alone() == stands.left_alone(), "where the log lacks rows nevertheless"
    history = stands.model_copy(update={"kind": "history"})
    gap = gap._replace(again=history.model_copy(update={"start": {0: 2}}))
    assert lakehouse(tmp_path).behind_gap(TABLE, history, gap) is None
    accepted = lakehouse(tmp_path, TABLE).behind_gap(TABLE, history, gap)
    assert accepted is not None
    assert (accepted.gap, accepted.start) == (AT, {0: 2})


def forgotten(table: TablePlan, *, compacted: bool, can_mark: bool) -> Forgotten:
    again = table.model_copy(update={"start": {0: 2}})
    error = LogForgottenError("it came late", remedy="take a new read")
    return Forgotten(error, again, compacted, can_mark, read_again="read it again")
