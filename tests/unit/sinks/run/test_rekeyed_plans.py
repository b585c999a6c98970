"""A captured table with another key → a run's plan for it, before and after its new read."""

from typing import NoReturn

import pytest

from cdc.log.offsets import LogState
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Doubt, SnapshotRequest, TableState
from cdc.settings import Settings
from sinks.changes.ends import RowsEnd
from sinks.log.topics import MillraceTopics
from sinks.run.drops import not_read_again
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import TablePlan, proposed
from sinks.run.wanted import WantedTable
from tests.fixtures.made_states import streaming, table_state
from tests.fixtures.spark import at, column, table_schema

WANTED = {
    "public.t": WantedTable("public.t"),
    "public.t_history": WantedTable("public.t", "history"),
}
V1 = table_schema("p", "t", column("id", "int4", 1, number=1), column("n", "int8", number=2))
V2 = table_schema(
    "p", "t", column("id", "int4", number=1), column("n", "int8", 1, number=2), version=2
).model_copy(update={"since": str(at(30))})
DOUBT = Doubt(reason="the key has other columns", since_ms=1, replaces=True)
REFUSED = DOUBT.model_copy(update={"refused": "too large"})
RESET = SnapshotRequest(kind="incremental", signal="s", reset=True)


def log_state(cut: Position, captured: TableState) -> LogState:
    offsets = {captured.topic: {0: 9}}
    progress = streaming(cut, log="l", slot="s", system_identifier="7")
    return LogState(
        progress, {"public.t": captured}, {"public.t": (V1, V2)}, {captured.topic: {0: 0}}, offsets
    )


def captured(snapshot_lsn: int = 10, **more: object) -> TableState:
    name = TableName("public", "t")
    return table_state(name, snapshot_lsn=Lsn(snapshot_lsn), **more)


def before() -> dict[str, TablePlan]:
    return {
        name: TablePlan(
            topic=captured().topic,
            source="public.t",
            kind=wanted.kind,
            start={0: 5},
            end={0: 5},
            next={0: 5},
            base=3,
            after=at(20),
            first_version=1,
            schema_version=1,
            applied_version=1,
            events=0,
            fresh_ms=1,
        )
        for name, wanted in WANTED.items()
    }


def no_session(_records: int = 0) -> NoReturn:
    pytest.fail("nothing is there for Spark to do")


def test_up_to_the_change_a_table_goes_on_under_its_old_key() -> None:
    plans = proposed(before(), log_state(at(29), captured()), WANTED)
    assert {plan.schema_version for plan in plans.values()} == {1}


def test_a_read_that_nobody_makes_holds_up_nothing_before_the_change() -> None:
    state = log_state(at(29), captured(doubt=REFUSED))
    assert [*proposed(before(), state, WANTED)] == [*WANTED]
    assert not_read_again(before(), state, WANTED) == {}


def test_a_read_that_the_user_asks_for_is_waited_for() -> None:
    """Without a doubt, if the daemon isn't to read such tables."""
    state = log_state(at(35), captured(requests=(RESET,)))
    for plans in (before(), {}):
        assert proposed(plans, state, WANTED) == {}
        assert not_read_again(plans, state, WANTED) == {}


def test_behind_it_a_table_waits_until_it_was_read_and_complains_where_nobody_reads_it() -> None:
    for doubt, complaints in (
        (DOUBT, []),
        (REFUSED, [*WANTED]),
    ):
        state = log_state(at(35), captured(doubt=doubt))
        assert proposed(before(), state, WANTED) == {}
        errors = not_read_again(before(), state, WANTED)
        assert [*errors] == complaints
        assert all("the key of public.t has changed" in str(error) for error in errors.values())


def test_once_it_was_read_a_current_table_begins_anew_and_a_history_goes_on() -> None:
    plans = proposed(before(), log_state(at(50), captured(45)), WANTED)
    assert {plan.schema_version for plan in plans.values()} == {2}
    assert [plan.first_version for plan in plans.values()] == [2, 1]


def test_a_table_that_is_new_or_was_removed_begins_with_the_new_read_as_well() -> None:
    """Whatever the topic keeps: of rows that nobody has changed since it has the old keys alone."""
    removed = {name: plan.begun_again({0: 0}) for name, plan in before().items()}
    for plans in ({}, removed):
        waiting, stuck = captured(doubt=DOUBT), captured(doubt=REFUSED)
        for table in (waiting, stuck):
            assert proposed(plans, log_state(at(35), table), WANTED) == {}
        assert not_read_again(plans, log_state(at(35), waiting), WANTED) == {}
        errors = not_read_again(plans, log_state(at(35), stuck), WANTED)
        assert [*errors] == [*WANTED]
        # A doubt that came later has nothing to do with the key, which was read.
        read = log_state(at(50), captured(45, doubt=REFUSED))
        assert [*proposed(plans, read, WANTED)] == [*WANTED]
        assert not_read_again(plans, read, WANTED) == {}


def test_a_new_table_is_refused_where_the_whole_log_tells_of_no_new_read() -> None:
    sections = {"source": {}, "capture": {"topic.prefix": "p"}, "kafka": {"bootstrap.servers": "h"}}
    settings = Settings.model_validate(sections)
    topics = MillraceTopics(RunContext(settings, no_session, print, RunOptions()))
    for cleanup in ("compact", "delete"):
        state = log_state(at(50), captured(45, cleanup=cleanup))
        (plan, _) = proposed({}, state, WANTED).values()
        (error,) = topics.unread({"public.t": plan}, state).values()
        assert "has no new read of it" in str(error)
        read = plan.model_copy(update={"ends": (RowsEnd(position=at(40), ts_us=0),)})
        assert topics.unread({"public.t": read}, state) == {}
    state.starts[plan.topic] = {0: 4}
    assert topics.unread({"public.t": plan}, state) == {}, "the end of rows may be gone"
