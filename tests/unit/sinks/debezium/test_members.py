"""Members that differ from before → possible changes of rows, and whether they are covered."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from sinks.debezium.forms import column_of
from sinks.debezium.members import Members, differences, doubt_of, newest_rows
from sinks.debezium.records import RecordGroup, Written
from sinks.debezium.schemas import read_json_schema
from sinks.run.debezium_topic import TURNS_MIN, DebeziumTopic, MemberDoubt, RowMembers
from sinks.run.doubts import accepted, new_doubt
from sinks.run.plan import goes_on
from sinks.run.summary import RunOutcome, TableResult
from tests.fixtures.made_plans import table_plan
from tests.unit.sinks.debezium.test_described import DECLARED, envelope, key, made
from tests.unit.sinks.run.test_plans import plan

CASES = Path(__file__).parents[3] / "golden" / "cases"
DDL = {
    "ddl_midstream": {
        "d appeared: added with a default?",
        "a disappeared as alpha appeared: renamed?",
        "e, f, g appeared: added with a default?",
    },
    "ddl_rapid": {"c appeared: added with a default?", "c disappeared as d appeared: renamed?"},
    "ddl_same_tx": {"c appeared: added with a default?", "a disappeared as z appeared: renamed?"},
}
ID, A, B = ("id", "int4"), ("a", "text"), ("b", "text")


@pytest.mark.parametrize(
    ("was", "now", "changes", "columns"),
    [
        ((ID, A), (ID, A), [], ""),
        ((ID, A, B), (ID, B), [], ""),
        ((ID, A), (ID, B), ["a disappeared as b appeared"], "b"),
        ((ID, A), (ID, A, B), ["b appeared"], "b"),
        ((ID, A, B), (ID, B, A), ["a, b changed places"], "a b"),
        ((ID, A), (ID, ("a", "int4")), ["a became int4, which was text"], "a"),
        ((ID, A), (ID, ("a", "")), [], ""),
        ((("n", "numeric(5,2)"),), (("n", "numeric(9,2)"),), [], ""),
        ((("n", "numeric(5,2)"),), (("n", "numeric(9,3)"),), ["n became"], "n"),
    ],
    ids=[
        "the same", "dropped", "renamed", "added", "exchanged", "another type",
        "a type that nobody tells", "more digits", "other digits",
    ],
)  # fmt: skip
def test_what_may_have_given_rows_other_values_without_an_event(
    was: Members, now: Members, changes: list[str], columns: str
) -> None:
    found, lacking = differences(was, now)
    assert [text.startswith(start) for text, start in zip(found, changes, strict=True)] == [
        True for _ in changes
    ]
    assert lacking == tuple(columns.split())


def recorded_members(case: Path) -> dict[str, list[Members]]:
    """The members of rows that a real Debezium wrote, topic by topic, each time they differ."""
    found: dict[str, list[Members]] = {}
    for line in (case / "expected.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        record = json.loads(line)
        value = record["value"] if isinstance(record["value"], dict) else {}
        event = value.get("payload", value)
        row = event.get("after") or event.get("before") if "op" in event else None
        if not row:
            continue
        members: Members = tuple((name, "") for name in row)
        if "schema" in value:
            fields = read_json_schema(json.dumps(value["schema"])).of_field("after")
            assert fields is not None
            each = ((f.name, column_of(f.name, f.schema, None).declared) for f in fields.fields)
            members = tuple(each)
        if (of_topic := found.setdefault(record["topic"], []))[-1:] != [members]:
            of_topic.append(members)
    return found


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda case: case.name)
def test_a_real_debezium_changes_members_where_ddl_has_and_nowhere_else(case: Path) -> None:
    changes = {
        text
        for members in recorded_members(case).values()
        for was, now in pairwise(members)
        for text in differences(was, now)[0]
    }
    assert changes == DDL.get(case.name, set())


def records(last: int, *names: str) -> RecordGroup:
    """Records of rows with these members, up to an offset."""
    fields = [(name, "int32" if name == "id" else "string") for name in names]
    return RecordGroup(
        topic="p.public.t",
        events=1,
        last=(last, last),
        key=Written("json", 7, key(("id", "int32"))),
        value=Written("json", hash(names), envelope(*fields)) if names else None,
        first_ms=last,
        end=last + 1,
    )


def doubt(*groups: RecordGroup, before: Members = ()) -> MemberDoubt | None:
    layout = made(*groups)
    assert layout is not None
    return doubt_of(groups, layout, rows(before) if before else ())


def rows(*members: Members) -> tuple[RowMembers, ...]:
    return tuple(RowMembers(members=each) for each in members)


def test_rows_are_covered_by_events_behind_the_last_one_of_before() -> None:
    first, later, tombstones = records(5, "id", "a"), records(9, "id", "b"), records(12)
    found = doubt(later, first, tombstones)
    assert found is not None
    assert (found.since, found.columns, found.ts_ms) == (6, ("b",), 9)
    again = doubt(records(5, "id", "a"), later, records(7, "id", "a"))
    assert again is not None
    assert again.since == 8, "a connector that crashed has sent some again"


def test_what_was_renamed_in_an_earlier_run_is_held_against_what_that_saw() -> None:
    groups = [records(9, "id", "b")]
    layout = made(*groups)
    assert layout is not None
    assert newest_rows(groups, layout, ()) == rows((ID, B))
    found = doubt_of(groups, layout, rows((ID, A)), 7)
    assert found is not None
    assert found.since == 7, "where this run begins to read"
    assert doubt(*groups, before=(ID, B)) is None


def test_records_without_schemas_have_the_names_that_their_rows_have() -> None:
    groups = [
        RecordGroup("p.public.t", 1, (n, n), None, Written("plain", 0, json.dumps(names)), end=n)
        for n, names in enumerate((["id", "v"], ["v", "id"]))
    ]
    layout = made(*groups, declared=DECLARED)
    assert layout is not None
    found = doubt_of(groups, layout, ())
    assert found is not None
    assert found.columns == ("id", "v")


ORDERED, OTHERWISE, NEW = ("id", "a", "b"), ("id", "b", "a"), ("id", "b", "a", "c")
TURNS: list[list[tuple[str, ...]]] = [[ORDERED, OTHERWISE]] * (TURNS_MIN + 1)


def merged(
    merges: list[list[tuple[str, ...]]],
) -> tuple[tuple[RowMembers, ...], list[MemberDoubt | None]]:
    """What merges know at their end, and what each doubts, whose rows came in this order."""
    before: tuple[RowMembers, ...] = ()
    found: list[MemberDoubt | None] = []
    for number, names in enumerate(merges):
        groups = [records(10 * number + at, *each) for at, each in enumerate(names)]
        layout = made(*groups)
        assert layout is not None
        found.append(doubt_of(groups, layout, before, 10 * number))
        before = newest_rows(groups, layout, before)
    return before, found


def test_members_that_come_by_turns_merge_after_merge_are_no_change() -> None:
    known, found = merged([*TURNS, [OTHERWISE, ORDERED], [ORDERED], [OTHERWISE]])
    assert [each is not None for each in found] == [True] * TURNS_MIN + [False] * 4
    assert [row.takes_turns for row in known] == [True, True]


def test_members_of_ddl_are_new_also_where_others_come_by_turns() -> None:
    known, found = merged([*TURNS, [ORDERED, OTHERWISE, NEW]])
    assert found[-1] is not None
    assert (found[-1].since, "c" in found[-1].columns) == (10 * len(TURNS) + 2, True)
    assert not any(row.takes_turns for row in known)


@pytest.mark.parametrize(
    "merges",
    [
        [[ORDERED], [OTHERWISE], [ORDERED], [OTHERWISE]] * TURNS_MIN,
        [[ORDERED], [ORDERED, OTHERWISE], [ORDERED, OTHERWISE], [OTHERWISE], [ORDERED]],
    ],
    ids=["there and back", "events that a connector sends again"],
)
def test_ddl_and_a_connector_that_crashes_are_no_turns(merges: list[list[tuple[str, ...]]]) -> None:
    _, found = merged(merges)
    assert found[-1] is not None


DOUBT = MemberDoubt(changes=("v appeared",), columns=("v",), since=8, ts_ms=0)
TOPIC = DebeziumTopic(topic_id="id", doubt=DOUBT)


def test_a_doubt_ends_by_an_outcome_and_is_told_once() -> None:
    done = plan(covered=table_plan(debezium=TOPIC), bad=table_plan(debezium=TOPIC),
                left=table_plan(debezium=TOPIC))  # fmt: skip
    after = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={"bad": "x"}, covered=("covered",)))
    doubts = {name: table.debezium and table.debezium.doubt for name, table in after.items()}
    told = DOUBT.model_copy(update={"is_new": False})
    assert doubts == {"covered": None, "bad": None, "left": told}, "bad will find it again"
    table = done.tables["left"]
    text = new_doubt(table, TableResult("left"), "public.signals")
    assert text is not None
    assert "INSERT INTO public.signals VALUES ('reread-8', 'execute-snapshot', '{" in text
    assert new_doubt(table, TableResult("left", is_covered=True), None) is None
    assert new_doubt(after["left"], TableResult("left"), None) is None


def test_a_table_that_failed_reads_its_records_again_with_what_was_known_before() -> None:
    before, after = rows((ID, A)), rows((ID, A), (ID, B))
    shown = DOUBT.model_copy(update={"since": 2, "is_new": False})
    planned = DebeziumTopic(
        topic_id="id", rows=after, doubt=DOUBT, rows_before=before, doubt_before=shown
    )
    done = plan(t=table_plan(debezium=planned))
    failed = RunOutcome(run=4, ts_ms=0, failed={"t": "x"})
    left = goes_on(done, failed)["t"].debezium
    assert left is not None
    assert (left.rows, left.doubt) == (before, shown)
    outcome = accepted(done, failed, {"t"}, lambda _: None)
    left = goes_on(done, outcome)["t"].debezium
    assert left is not None
    assert (left.rows, left.doubt, left.doubt_before) == (before, None, None)
    applied = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={}))["t"].debezium
    assert applied is not None
    assert (applied.rows, applied.rows_before) == (after, after)


def test_the_user_can_take_a_table_for_right() -> None:
    done = plan(t=table_plan(debezium=TOPIC), u=table_plan())
    lines: list[str] = []
    outcome = accepted(done, RunOutcome(run=4, ts_ms=0, failed={}), {"t", "u", "v"}, lines.append)
    assert outcome.covered == ("t",)
    assert len(lines) == 1
    assert accepted(done, outcome, {"t"}, lines.append) == outcome
