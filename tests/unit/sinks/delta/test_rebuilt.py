"""A table's rows in the log and an archive → the source of its rebuild, or why there is none."""

from pathlib import Path
from typing import Any

import pytest

from cdc.errors import LogForgottenError
from cdc.log.offsets import LogState
from cdc.records.position import Lsn
from cdc.records.state import Phase, TableState
from cdc.records.topics import Cleanup
from cdc.settings.lakehouse import TableKind
from sinks.delta.rebuilt import Kept, kept, rebuilt_from
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunOptions
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.summary import RunOutcome
from tests.fixtures.made_plans import NAME, TOPIC, table_plan
from tests.fixtures.made_states import streaming
from tests.fixtures.spark import column, table_schema
from tests.unit.sinks.delta.test_target import AT, lakehouse

TABLE = str(NAME)
SCHEMA = table_schema("p", NAME.name, column("id", "int4", 1), version=2)
NEITHER = "neither"


@pytest.mark.parametrize(
    ("kind", "has_all", "has_keys", "archive", "of"),
    [
        ("current", True, True, None, None),
        ("current", False, True, "a", None),
        ("current", False, False, "a", "a"),
        ("current", False, False, None, NEITHER),
        ("history", True, True, None, None),
        ("history", True, True, "a", "a"),
        ("history", False, True, "a", "a"),
        ("history", False, True, None, NEITHER),
        ("changes", True, True, None, None),
        ("changes", True, True, "a", None),
        ("changes", False, True, "a", NEITHER),
    ],
)
def test_a_table_is_rebuilt_of_what_has_all_that_it_needs(
    kind: TableKind, has_all: bool, has_keys: bool, archive: str | None, of: str | None
) -> None:
    has = Kept(has_all, has_keys, archive, read_again="read it again")
    if of != NEITHER:
        assert rebuilt_from(TABLE, kind, has) == of
        return
    with pytest.raises(LogForgottenError) as refused:
        rebuilt_from(TABLE, kind, has)
    assert TABLE in refused.value.where
    says = {
        "current": f"read it again; then `millrace rebuild lakehouse {TABLE}`",
        "history": "An archive",
    }
    assert says.get(kind, "restore damaged files") in refused.value.remedy


def test_a_topic_of_debeziums_is_read_again_by_debezium() -> None:
    with pytest.raises(LogForgottenError) as refused:
        rebuilt_from(TABLE, "current", Kept(False, False, None, written_by="debezium"))
    assert "have Debezium write the table to a new topic" in refused.value.remedy


class Topics(MillraceTopics):
    """A log whose compaction may have taken records, or hasn't."""

    def __init__(self, *, forgets: bool) -> None:
        self._forgets = forgets

    def require_retained(
        self, name: str, table: TablePlan, state: LogState, *, fresh: bool
    ) -> None:
        assert set(table.start.values()) == {0}
        assert not fresh
        if self._forgets:
            raise LogForgottenError("it has forgotten", where=name)


def log_state(cleanup: Cleanup, first: int, read_at: int = 1) -> LogState:
    captured = TableState(
        namespace=NAME.namespace,
        table=NAME.name,
        topic=TOPIC,
        partitions=1,
        cleanup=cleanup,
        epoch=1,
        phase=Phase.STREAMING,
        snapshot_lsn=Lsn(read_at),
    )
    return LogState(streaming(AT), {TABLE: captured}, {TABLE: ()}, {TOPIC: {0: first}}, {})


@pytest.mark.parametrize(
    ("cleanup", "forgets", "first", "read_at", "has_all", "has_keys"),
    [
        ("compact", False, 0, 1, True, True),
        ("compact", True, 0, 1, False, True),
        ("compact", False, 5, 10, False, False),
        ("delete", True, 0, 1, True, True),
        ("delete", True, 5, 9, False, False),
        ("delete", True, 5, 10, False, True),
        ("delete", True, 7, 10, False, True),
    ],
)
def test_what_a_topic_still_has(
    cleanup: Cleanup, forgets: bool, first: int, read_at: int, has_all: bool, has_keys: bool
) -> None:
    """The table has applied all up to LSN 9; the records tell whether a read of them is whole."""
    state, topics = log_state(cleanup, first, read_at), Topics(forgets=forgets)
    table = table_plan(base=3, after=AT, start={0: 6})
    has = kept(topics, TABLE, table, state, None)
    assert (has.has_all, has.has_keys) == (has_all, has_keys)


def standing(**more: Any) -> TablePlan:
    made: dict[str, Any] = {"base": 3, "after": AT, "start": {0: 9}, "schema_version": 2}
    return table_plan(**{**made, "applied_version": 2, "lacks": "before", **more, "debezium": None})


def test_a_rebuild_that_fails_leaves_the_table_where_it_stood() -> None:
    stood = standing(gaps=())
    again = stood.rebuilt({0: 0})
    assert (again.start, again.after, again.base, again.lacks) == ({0: 0}, None, 3, "nothing")
    assert again.begins
    assert again.commits, "also where the topic is empty"
    plan = RunPlan(run=4, prefix="p", log="", cut=AT, cut_ts_us=0, ts_ms=0, tables={TABLE: again})
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan
    failed = RunOutcome(run=4, ts_ms=1, failed={TABLE: "it is full"})
    assert goes_on(plan, failed) == {TABLE: stood}
    done = goes_on(plan, RunOutcome(run=4, ts_ms=1, failed={}))[TABLE]
    assert (done.base, done.after, done.instead_of) == (4, AT, None)


def test_all_are_rebuilt_that_can_be_or_those_that_are_named(tmp_path: Path) -> None:
    target = lakehouse(tmp_path)
    names = {"current": TABLE, "history": f"{TABLE}_history", "changes": f"{TABLE}_changes"}
    before = {name: standing(kind=kind, lacks="nothing") for kind, name in names.items()}
    state, topics = log_state("compact", 0), Topics(forgets=True)
    target._options = RunOptions(rebuilds_all=True)
    tables, refused = target.rebuilt(before, (), state, topics)
    assert tables.keys() == {names["current"]}
    assert refused.keys() == {names["history"], names["changes"]}
    target._options = RunOptions(rebuilt=frozenset({names["history"], "public.new"}))
    tables, refused = target.rebuilt(before, (), state, topics)
    assert not tables
    assert refused.keys() == {names["history"]}
