"""Tables that are gone at the source → when their derived data is emptied, and when not."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.log.offsets import LogState
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Doubt, Phase, SnapshotRequest, TableState
from cdc.settings import CaptureSettings
from cdc.settings.drops import DropRule
from sinks.changes.ends import RowsEnd
from sinks.run.drops import (
    Drop,
    any_to_empty,
    find_drops,
    not_read_again,
    refusal,
    with_emptied,
)
from sinks.run.plan import RunPlan, TablePlan, goes_on, proposed
from sinks.run.summary import RunOutcome
from sinks.run.wanted import WantedTable
from tests.fixtures.made_plans import table_plan as made_plan
from tests.fixtures.made_states import streaming, table_state

GONE_MS, DELAY_MS = 1_000_000, 500
WATCHED_MS = 70
"""How long the daemon had watched as it saw that a table was gone."""
CUT = Position(1, Lsn(50), 0)
EMPTIED = RowsEnd(position=CUT, ts_us=GONE_MS * 1_000)
DELETE = DropRule("delete", DELAY_MS)
CAPTURE = CaptureSettings.model_validate({"topic.prefix": "p"})


def gone(name: str, **more: object) -> TableState:
    """A table that is missing in the cluster that is captured."""
    update = {"gone_ms": GONE_MS, "gone_system": "here", "gone_watched_ms": WATCHED_MS}
    return table_state(TableName("public", name), **(update | more))


def log_state(
    *states: TableState,
    now_ms: int = GONE_MS + DELAY_MS,
    away_ms: int = 0,
    epoch: int = 1,
) -> LogState:
    """A log with these tables, at a time of the daemon's clock, with nine records of each.

    Since it has seen that they are gone the daemon was ``away_ms`` of that time.
    """
    position = Position(epoch, CUT.commit_lsn, CUT.index)
    progress = streaming(
        position,
        system_identifier="here",
        watched_ms=WATCHED_MS + now_ms - GONE_MS - away_ms,
        ts_ms=now_ms,
    )
    tables = {str(state.name): state for state in states}
    return LogState(progress, tables, {}, {}, {state.topic: {0: 9} for state in states})


def table_plan(name: str = "a", **more: Any) -> TablePlan:
    """A derived table that has all nine records."""
    table = TableName("public", name)
    own = {"source": str(table), "topic": f"pre.{table}", "debezium": None, "base": 3, "after": CUT}
    return made_plan(**{**own, "start": {0: 9}, **more})


def found(
    state: LogState,
    *plans: TablePlan,
    capture: CaptureSettings = CAPTURE,
    rule: DropRule = DELETE,
) -> dict[str, Drop]:
    """What becomes of a derived table of each, after these plans."""
    wanted = {name: WantedTable(name, drop=rule) for name in state.tables}
    before = {plan.source: plan for plan in plans}
    return find_drops(wanted, before, state, capture)


OTHERS = [table_state(TableName("public", name)) for name in "bcdefgh"]


def test_rows_go_once_a_table_was_seen_to_be_gone_for_the_delay() -> None:
    table = gone("a")
    early = found(log_state(table, *OTHERS, now_ms=GONE_MS + DELAY_MS - 1))
    assert early == {"public.a": Drop(GONE_MS, GONE_MS + DELAY_MS)}
    assert not early["public.a"].acts
    due = found(log_state(table, *OTHERS))["public.a"]
    assert due == Drop(GONE_MS, GONE_MS + DELAY_MS, is_due=True)
    assert due.acts
    at_once = found(log_state(table, *OTHERS, now_ms=GONE_MS), rule=DropRule("delete", 0))
    assert at_once["public.a"].acts


def test_time_in_which_nobody_looked_is_no_delay() -> None:
    """The daemon was down, its checks failed, its stream was behind, or its clock has leapt."""
    back = log_state(gone("a"), *OTHERS, now_ms=GONE_MS + 9 * DELAY_MS, away_ms=8 * DELAY_MS + 1)
    drop = found(back)["public.a"]
    assert drop == Drop(GONE_MS, back.progress.ts_ms + 1)
    assert not drop.acts


def test_rows_stay_where_the_policy_says_so_and_where_the_table_is_there() -> None:
    kept = found(log_state(gone("a"), *OTHERS), rule=DropRule())
    assert kept == {"public.a": Drop(GONE_MS)}
    assert not kept["public.a"].acts
    assert found(log_state(*OTHERS)) == {}


def test_an_archive_keeps_its_rows() -> None:
    wanted = {"public.a_changes": WantedTable("public.a", "changes", drop=DELETE)}
    assert find_drops(wanted, {}, log_state(gone("a"), *OTHERS), CAPTURE) == {}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"gone_system": "elsewhere"}, "it is missing in another cluster"),
        ({"gone_system": ""}, "the daemon can't check in which cluster it is missing"),
        ({"epoch": 2}, "it is missing in another cluster"),
        ({"is_name_taken": True}, "another table or view has its name"),
        ({"phase": Phase.SNAPSHOT}, "it was dropped while its rows were being read"),
    ],
)
def test_rows_stay_where_nobody_can_tell_that_the_table_is_gone(
    table: dict[str, object], reason: str
) -> None:
    drop = found(log_state(gone("a", **table), *OTHERS))["public.a"]
    assert drop.held.startswith(reason)
    assert drop.is_due
    assert not drop.acts


def test_rows_stay_where_the_lists_leave_the_table_out() -> None:
    capture = CAPTURE.model_copy(update={"table_exclude_list": ("public.a",)})
    drop = found(log_state(gone("a"), *OTHERS), capture=capture)["public.a"]
    assert drop.held == "the lists leave it out, so the daemon doesn't check whether it is back"


@pytest.mark.parametrize(
    ("missing", "captured", "acts"),
    [(2, 2, True), (3, 15, True), (3, 14, False), (20, 100, True), (21, 100, False)],
)
def test_many_missing_tables_take_the_users_word(missing: int, captured: int, acts: bool) -> None:
    """As many as three, and more than a fifth."""
    names = [f"t{number:02}" for number in range(captured)]
    states = [
        gone(name) if number < missing else table_state(TableName("public", name))
        for number, name in enumerate(names)
    ]
    drops = found(log_state(*states))
    assert [drop.acts for drop in drops.values()] == [acts] * missing
    words = " ".join(f"--accept-drop public.{name}" for name in names[:missing])
    told = refusal(drops, {}, "search")
    assert told.endswith(f"millrace merge search {words}") or acts
    assert bool(told) != acts


def test_the_users_word_is_for_the_tables_that_it_names() -> None:
    state = log_state(gone("a"), gone("b"), gone("c"))
    wanted = {name: WantedTable(name, drop=DELETE) for name in state.tables}
    drops = find_drops(wanted, {}, state, CAPTURE, {"public.a"})
    assert [name for name, drop in drops.items() if drop.acts] == ["public.a"]
    with pytest.raises(ConfigError, match=r"unknown captured table: public\.x"):
        find_drops(wanted, {}, state, CAPTURE, {"public.x"})


def test_what_was_emptied_is_no_sign_of_something_wrong() -> None:
    """Tables that are dropped one after the other take nobody's word."""
    state = log_state(gone("a"), gone("b"), gone("c"), *OTHERS[2:])
    assert not found(state)["public.c"].acts
    plans = table_plan("a", emptied=EMPTIED), table_plan("b")
    assert found(state, *plans)["public.c"].acts


@pytest.mark.parametrize("other", [{"drop": DropRule()}, {"kind": "changes", "drop": DELETE}])
def test_tables_whose_rows_stay_anyway_are_not_counted(other: dict[str, Any]) -> None:
    """Neither as missing, as they would be for ever, nor as there."""
    state = log_state(*map(gone, "abcd"), *OTHERS[3:])
    wanted = {name: WantedTable(name, **other) for name in state.tables}
    wanted |= {name: WantedTable(name, drop=DELETE) for name in ("public.a", "public.b")}
    assert all(drop.acts for drop in find_drops(wanted, {}, state, CAPTURE).values() if drop.due_ms)
    wanted["public.c"] = WantedTable("public.c", drop=DELETE)
    drops = find_drops(wanted, {}, state, CAPTURE)
    assert not any(drop.acts for drop in drops.values())
    assert drops["public.a"].missing == ("public.a", "public.b", "public.c")


def test_nobody_is_asked_before_the_delay_has_passed_nor_afterwards() -> None:
    states = gone("a"), gone("b"), gone("c")
    assert refusal(found(log_state(*states, now_ms=GONE_MS)), {}, "search") == ""
    before = {f"public.{name}": table_plan(name, emptied=EMPTIED) for name in "abc"}
    assert refusal(found(log_state(*states)), before, "search") == ""


def emptying(table: TablePlan, state: LogState) -> tuple[TablePlan, list[str]]:
    said = list[str]()
    plans = with_emptied({"public.a": table}, found(state), state, lambda _: 7, said.append)
    return plans["public.a"], said


def test_a_table_is_emptied_at_the_cut_and_named_with_its_rows_first() -> None:
    state = log_state(gone("a", renamed_to="public.z"), *OTHERS)
    plan, said = emptying(table_plan(), state)
    assert (plan.truncated, plan.commits) == (CUT, True)
    (line,) = said
    assert line.startswith("public.a: public.a was renamed to public.z at the source (seen 1970-")
    assert "its 7 rows are deleted" in line


def test_a_table_waits_while_the_log_has_more_of_it_than_the_cut() -> None:
    """That may be of another table of its name."""
    state = log_state(gone("a"), *OTHERS)
    for plan in (table_plan(next={0: 8}), table_plan(end={0: 8}, next={0: 8})):
        assert emptying(plan, state) == (plan, [])


def test_a_table_is_emptied_once_and_again_if_it_is_dropped_again() -> None:
    state = log_state(gone("a"), *OTHERS)
    plan, _ = emptying(table_plan(), state)
    run = RunPlan(
        run=4, prefix="p", log="one", cut=CUT, cut_ts_us=0, ts_ms=0, tables={"public.a": plan}
    )
    applied = goes_on(run, RunOutcome(run=4, ts_ms=0, failed={}))["public.a"]
    assert (applied.base, applied.ends) == (4, ())
    assert not any_to_empty({"public.a": applied}, found(state))
    assert emptying(applied, state) == (applied, [])
    later = log_state(gone("a", gone_ms=GONE_MS + 1), *OTHERS, now_ms=GONE_MS + DELAY_MS + 1)
    assert any_to_empty({"public.a": applied}, found(later))
    failed = goes_on(run, RunOutcome(run=4, ts_ms=0, failed={"public.a": "why"}))["public.a"]
    assert any_to_empty({"public.a": failed}, found(state))


def test_what_brings_rows_back_from_the_log_is_emptied_again() -> None:
    state = log_state(gone("a"), *OTHERS)
    done = table_plan(emptied=EMPTIED)
    rebuilt = done.model_copy(update={"start": {0: 0}, "lacks": "now"})
    for plan in (done.begun_again({0: 0}), rebuilt):
        assert any_to_empty({"public.a": plan}, found(state))
        assert emptying(plan, state)[0].truncated == CUT


BACK = Doubt(reason="it was gone for a while", since_ms=1, replaces=True)


def test_what_was_emptied_waits_until_its_table_is_back_and_was_read_again() -> None:
    """Meanwhile the log gets changes alone, of rows that aren't there."""
    was = table_plan(emptied=EMPTIED)
    wanted = {"public.a": WantedTable("public.a", drop=DELETE)}

    def planned(captured: TableState) -> tuple[list[str], list[str]]:
        """What a run goes on with, and what it complains of."""
        state = log_state(captured)
        state.schemas["public.a"], state.starts[captured.topic] = (), {0: 0}
        before = {"public.a": was}
        refused = not_read_again(before, state, wanted)
        return list(proposed(before, state, wanted)), list(refused)

    back = gone("a", gone_ms=0, doubt=BACK)
    refused = BACK.model_copy(update={"refused": "it is too large"})
    assert planned(back) == ([], []), "the daemon reads it soon"
    assert planned(gone("a", gone_ms=0, doubt=refused)) == ([], ["public.a"])
    reset = SnapshotRequest(kind="initial", reset=True)
    assert planned(gone("a", gone_ms=0, doubt=refused, requests=(reset,))) == ([], [])
    assert planned(gone("a", doubt=refused)) == (["public.a"], []), "it is gone again"
    assert planned(gone("a", gone_ms=0)) == (["public.a"], []), "it was read"
    adds = refused.model_copy(update={"replaces": False})
    assert planned(gone("a", gone_ms=0, doubt=adds)) == (["public.a"], [])


def test_what_was_emptied_and_read_again_is_like_any_other_table() -> None:
    state = log_state(table_state(TableName("public", "a")))
    state.schemas["public.a"], state.starts["pre.public.a"] = (), {0: 0}
    was = table_plan(emptied=EMPTIED)
    (plan,) = proposed({"public.a": was}, state, {"public.a": WantedTable("public.a")}).values()
    assert plan.emptied is None


def test_a_table_that_came_back_is_not_emptied() -> None:
    state = log_state(table_state(TableName("public", "a")), *OTHERS)
    assert emptying(table_plan(), state) == (table_plan(), [])
