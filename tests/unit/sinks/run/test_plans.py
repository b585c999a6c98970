"""Plans → files → plans: one run gets a number, and each table continues after its applied part."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from cdc.errors import BusyError, LogForgottenError, LogFormatError, SinkUnreachableError
from cdc.log.offsets import LogState
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import Gap
from cdc.settings.lakehouse import TableKind
from sinks.changes.ends import RowsEnd
from sinks.log.counts import with_census
from sinks.run.debezium_topic import DebeziumTopic
from sinks.run.plan import RunPlan, TablePlan, goes_on, proposed
from sinks.run.plans import Plans
from sinks.run.summary import RunOutcome
from sinks.run.topics import PartitionCensus
from sinks.run.wanted import WantedTable
from sinks.spark.files import DamagedError, LocalFiles
from tests.fixtures.ended_rows import listed
from tests.fixtures.made_changes import table as made_table
from tests.fixtures.made_states import streaming, table_state

TABLE = table_state(TableName("s", "a"), topic="t", snapshot_lsn=Lsn(7))
WANTED = {"s.a": WantedTable("s.a")}


def position(lsn: int, epoch: int = 1) -> Position:
    return Position(epoch, Lsn(lsn), 0)


def table_plan(**changes: object) -> TablePlan:
    plan = TablePlan(
        topic="t",
        start={0: 5},
        end={0: 9},
        next={0: 8},
        after=position(10),
        schema_version=1,
        base=3,
        events=2,
        fresh_ms=1,
        source="s.a",
    )
    return plan.model_copy(update=changes)


def truncated(lsn: int) -> RowsEnd:
    return RowsEnd(position=position(lsn), ts_us=1)


def dropped(lsn: int) -> RowsEnd:
    return RowsEnd(position=position(lsn), ts_us=1, bounds=(listed("day", 5),), schema_version=1)


TRUNCATED, DROPPED = truncated(9), dropped(9)


def plan(run: int = 4, **tables: TablePlan) -> RunPlan:
    return RunPlan(
        run=run, prefix="p", log="one", cut=position(20), cut_ts_us=0, ts_ms=0, tables=tables
    )


def test_the_newest_plan_is_found_without_a_look_at_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    plans = Plans(LocalFiles(folder), "here")
    plans.start(plan(1))
    before = (folder / "last.json").read_text()
    for run in (2, 3):
        plans.start(plan(run))
    (folder / "last.json").write_text(before)  # as if it had been killed right then
    assert plans.last() == plan(3)
    (folder / "last.json").write_text("")
    assert plans.last() == plan(3)
    (folder / "last.json").unlink()  # as one left it that didn't know of this
    assert plans.last() == plan(3)
    plans.start(plan(4))
    with patch.object(LocalFiles, "names", side_effect=AssertionError):
        assert plans.last() == plan(4)


def test_plans_are_for_nobody_elses_eyes(tmp_path: Path) -> None:
    plans = Plans(LocalFiles(tmp_path / "runs"), "here")
    plans.start(plan())
    plans.finish(RunOutcome(run=4, ts_ms=0, failed={}))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "runs").iterdir()}
    assert len(modes) >= 2
    assert set(modes.values()) == {0o600}


def test_a_plan_is_made_once(tmp_path: Path) -> None:
    plans = Plans(LocalFiles(tmp_path / "runs"), "here")
    assert plans.last() is None
    schema = made_table("id int4")
    debezium = DebeziumTopic(topic_id="id", schemas=(schema,), key_forms=("json 1",))
    made = plan(a=table_plan(debezium=debezium, ends=(TRUNCATED, DROPPED)))
    plans.start(made)
    with pytest.raises(BusyError):
        plans.start(made)
    assert plans.last() == made
    assert plans.outcome(plan()) is None
    plans.finish(RunOutcome(run=4, ts_ms=0, failed={"a": "why"}))
    assert plans.outcome(plan()) is not None
    assert plans.runs() == [4]
    assert plans.forget(5) == 1
    assert plans.last() is None


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{1:020}.json").write_text('{"format": 2}')
    with pytest.raises(LogFormatError):
        Plans(LocalFiles(tmp_path), "here").last()


def test_a_plan_that_is_no_text_is_refused_and_named(tmp_path: Path) -> None:
    plans = Plans(LocalFiles(tmp_path), str(tmp_path))
    plans.start(plan(1))
    (tmp_path / "last.json").write_bytes(b"\xff\x00")
    assert plans.last() == plan(1), "the folder says it, too"
    (made,) = tmp_path.glob("*1.json")
    made.write_bytes(b"\xff\x00")
    with pytest.raises(LogFormatError, match="it isn't text") as refused:
        Plans(LocalFiles(tmp_path), str(tmp_path)).last()
    assert refused.value.where == str(made)


def test_a_damaged_outcome_counts_as_none_and_one_of_a_newer_format_is_refused(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    plans = Plans(LocalFiles(tmp_path), str(tmp_path), said.append)
    plans.start(plan(1))
    outcome = tmp_path / f"{1:020}.done.json"
    for damaged in (b"", b"{", b"[]", b"\xff\x00", b'{"format": 1, "run": 1}'):
        outcome.write_bytes(damaged)
        assert plans.outcome_of(1) is None
        assert str(outcome) in said.pop()
        with pytest.raises(DamagedError, match="can't read a run's state"):
            plans.require_undamaged(1)
    outcome.write_text('{"format": 2, "run": 1}')
    with pytest.raises(LogFormatError, match="can't read a run's state"):
        plans.outcome_of(1)


def test_an_applied_table_goes_on_above_the_cut_and_a_failed_one_stays() -> None:
    done = plan(good=table_plan(), bad=table_plan())
    after = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={"bad": "why"}))
    assert (after["good"].start, after["good"].after, after["good"].base) == (
        {0: 8},
        position(20),
        4,
    )
    assert (after["bad"].start, after["bad"].after, after["bad"].base) == ({0: 5}, position(10), 3)


def test_what_a_table_lacks_is_over_once_it_is_applied_and_remembered() -> None:
    tables = {
        "current": table_plan(lacks="now"),
        "archive": table_plan(lacks="now", kind="changes"),
        "failed": table_plan(lacks="now", kind="history"),
        "whole": table_plan(),
    }
    done = plan(4, **tables)
    assert [(table.rebuilds, table.gap) for table in tables.values()] == [
        (True, None),
        (False, position(10)),
        (False, position(10)),
        (False, None),
    ]
    after = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={"failed": "why"}))
    assert {name: table.lacks for name, table in after.items()} == {
        "current": "before",
        "archive": "before",
        "failed": "now",
        "whole": "nothing",
    }
    assert after["failed"].gap == position(10), "the next plan marks it"
    assert not after["current"].rebuilds


def test_a_gap_is_marked_by_the_plan_whose_cut_reaches_its_end_and_by_no_later_one() -> None:
    gaps = tuple(
        Gap(start=position(end - 5), end=position(end), reason="rewritten", ts_ms=0, number=number)
        for number, end in enumerate((15, 20, 25), 1)
    )
    state = whole_table(made_table("id int4"))
    state.tables["s.a"] = TABLE.model_copy(update={"gaps": gaps})
    kinds: tuple[TableKind, ...] = ("current", "history", "changes")
    wanted = {str(kind): WantedTable("s.a", kind) for kind in kinds}
    first = proposed({}, state, wanted)
    assert {name: table.marks for name, table in first.items()} == {
        "current": (),
        "history": gaps[:2],
        "changes": gaps[:2],
    }
    done = plan(4, **first)
    after = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={"changes": "why"}))
    assert (after["history"].gaps, after["history"].marks) == (gaps[:2], ())
    assert "changes" not in after, "it isn't there: the next plan has all for it"

    later = replace(state, progress=state.progress.model_copy(update={"cut": position(30)}))
    second = proposed(after, later, wanted)
    assert second["history"].marks == gaps[2:]
    assert second["history"].commits, "though there may be nothing to read"
    assert second["changes"].marks == gaps
    waits = second["history"].left_alone()
    assert proposed({"history": waits}, later, wanted)["history"].marks == gaps[2:]
    again = second["history"].begun_again({0: 0})
    assert proposed({"history": again}, later, wanted)["history"].marks == gaps


def test_gaps_that_the_state_keeps_no_more_are_part_of_the_oldest_that_it_keeps() -> None:
    gaps = [
        Gap(
            start=position(end - 5), end=position(end), reason="rewritten", ts_ms=end, number=number
        )
        for number, end in enumerate((15, 25, 35, 45), 1)
    ]
    state = whole_table(made_table("id int4"))
    wanted = {"changes": WantedTable("s.a", "changes")}

    def planned(before: dict[str, TablePlan], cut: int, kept: list[Gap]) -> dict[str, TablePlan]:
        state.tables["s.a"] = TABLE.model_copy(update={"gaps": tuple(kept)})
        progress = state.progress.model_copy(update={"cut": position(cut)})
        return proposed(before, replace(state, progress=progress), wanted)

    idle = goes_on(plan(4, **planned({}, 15, [])), RunOutcome(run=4, ts_ms=0, failed={}))
    assert planned(idle, 15, gaps[:1])["changes"].marks == (gaps[0],), "it ends where that has"
    first = planned({}, 20, gaps[:1])
    done = plan(4, **first).model_copy(update={"cut": position(20)})
    after = goes_on(done, RunOutcome(run=4, ts_ms=0, failed={}))
    assert planned(after, 50, gaps[1:])["changes"].marks == tuple(gaps[1:])
    (older, newest) = planned(after, 50, gaps[2:])["changes"].marks
    assert newest == gaps[3]
    assert (older.start, older.end) == (gaps[0].start, gaps[2].end)
    assert older.reason == "1 older gaps; rewritten"


def test_a_gap_that_was_accepted_is_marked_up_to_the_cut() -> None:
    accepted = table_plan(kind="history", lacks="now")
    done = plan(4, a=accepted)
    (gap,) = done.marks("a")
    assert (gap.start, gap.end) == (position(10), position(20))
    assert goes_on(done, RunOutcome(run=4, ts_ms=0, failed={}))["a"].gaps == (gap,)


def test_an_archive_that_waited_still_knows_what_it_has_read() -> None:
    read = goes_on(plan(a=table_plan(kind="changes")), RunOutcome(run=4, ts_ms=0, failed={}))["a"]
    assert (read.start, read.read_end) == ({0: 8}, {0: 9})
    without = plan(run=5).model_copy(update={"waiting": {"a": read}})
    after = goes_on(without, RunOutcome(run=5, ts_ms=0, failed={}))["a"]
    assert (after.start, after.read_end, after.after) == ({0: 8}, {0: 9}, position(20))


def test_an_archive_that_reads_less_than_before_still_knows_what_it_has_read() -> None:
    bounded = plan(a=table_plan(kind="changes", end={0: 7}, next={0: 7}, read_end={0: 9}))
    assert goes_on(bounded, RunOutcome(run=4, ts_ms=0, failed={}))["a"].read_end == {0: 9}


def test_a_truncate_counts_within_the_cut_only() -> None:
    above = {0: PartitionCensus(8, 2, (truncated(30),))}
    assert with_census(table_plan(), above, position(20), TABLE, keyed=True).truncated is None
    within = {0: PartitionCensus(None, 2, (truncated(15),))}
    planned = with_census(table_plan(), within, position(20), TABLE, keyed=True)
    assert (planned.truncated, planned.next) == (position(15), {0: 9})


def test_a_truncate_of_a_table_made_anew_may_stand_at_the_cut_that_was_reached() -> None:
    at_cut = {0: PartitionCensus(None, 1, (truncated(10),))}
    planned = with_census(table_plan(), at_cut, position(20), TABLE, keyed=True)
    assert planned.truncated == table_plan().after == position(10)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("current", (truncated(15), dropped(16), dropped(17))),
        ("history", (dropped(9), truncated(14), truncated(15), dropped(16), dropped(17))),
        ("changes", ()),
    ],
)
def test_ends_within_bounds_count_but_for_those_before_the_last_end_of_all(
    kind: TableKind, ends: tuple[RowsEnd, ...]
) -> None:
    copies = {
        0: PartitionCensus(None, 2, (dropped(16), dropped(9), truncated(15))),
        1: PartitionCensus(None, 2, (truncated(14), dropped(17), dropped(16))),
    }
    start = {"start": {0: 5, 1: 5}, "end": {0: 9, 1: 9}}
    planned = with_census(table_plan(kind=kind, **start), copies, position(20), TABLE, keyed=True)
    assert planned.ends == ends


def test_an_end_that_cannot_be_read_is_of_a_newer_millrace() -> None:
    with pytest.raises(LogFormatError, match="op p"):
        RowsEnd.of_record(str(position(9)), 1, '{"bounds": "all"}', 1)


@pytest.mark.parametrize(
    ("keyed", "after", "snapshot", "replaces"),
    [
        (True, None, position(15), False),
        (False, None, position(15), True),
        (True, position(10), position(15), False),
        (False, position(10), position(15), True),
        (True, position(10), position(5, epoch=2), True),
        (False, position(10), position(5, epoch=2), True),
        (False, position(10), position(7), False),
        (False, position(10)._replace(index=3), position(10), False),
        (False, position(10), position(10), False),
        (True, position(10, epoch=2), position(5, epoch=2), False),
    ],
)
def test_a_new_snapshot_replaces_what_has_no_key_or_another_history(
    *, keyed: bool, after: Position | None, snapshot: Position, replaces: bool
) -> None:
    captured = TABLE.model_copy(
        update={"epoch": snapshot.epoch, "snapshot_lsn": snapshot.commit_lsn}
    )
    cut = position(20, epoch=2)
    truncated = with_census(table_plan(after=after), {}, cut, captured, keyed=keyed).truncated
    assert (truncated is not None) == replaces
    assert truncated is None or truncated < snapshot


def whole_table(*versions: TableSchema) -> LogState:
    """The state of a log with one table, all of which is there."""
    progress = streaming(position(20))
    schemas = {"s.a": versions} if versions else {}
    return LogState(progress, {"s.a": TABLE}, schemas, {"t": {0: 0}}, {"t": {0: 4}})


def test_a_log_made_anew_is_never_applied_on() -> None:
    with pytest.raises(LogForgottenError, match="created again"):
        proposed({"s.a": table_plan()}, whole_table(made_table("id int4")), WANTED)


def test_a_table_whose_columns_the_log_doesnt_know_yet_holds_nobody_up() -> None:
    assert proposed({}, whole_table(), WANTED) == {}
    assert [*proposed({}, whole_table(made_table("id int4")), WANTED)] == ["s.a"]


def test_a_table_that_is_not_written_to_has_the_columns_of_the_cut() -> None:
    """The log has had another version since 25, and no record of it."""
    first = made_table("id int4").model_copy(update={"version": 1, "since": str(position(1))})
    second = first.model_copy(update={"version": 2, "since": str(position(25))})
    state = whole_table(first, second)
    idle = {"s.a": table_plan(start={0: 4}, end={0: 4}, next={0: 4}, events=0, applied_version=1)}
    (waits,) = proposed(idle, state, WANTED).values()
    assert (waits.schema_version, waits.commits) == (1, False)

    above_the_cut = table_plan(schema_version=2, events=0, applied_version=1)
    assert not above_the_cut.at_cut((first, second), position(20)).commits
    with_records = above_the_cut.model_copy(update={"events": 1})
    assert with_records.at_cut((first, second), position(20)) == with_records, "it may be theirs"

    later = replace(state, progress=state.progress.model_copy(update={"cut": position(30)}))
    (due,) = proposed(idle, later, WANTED).values()
    assert (due.schema_version, due.evolves, due.commits, due.writes) == (2, True, True, False)
    failed = goes_on(plan(4, **{"s.a": due}), RunOutcome(run=4, ts_ms=0, failed={"s.a": "why"}))
    assert not failed["s.a"].commits
    assert proposed(failed, later, WANTED) == {"s.a": due}
    done = goes_on(plan(4, **{"s.a": due}), RunOutcome(run=4, ts_ms=0, failed={}))
    assert not proposed(done, later, WANTED)["s.a"].commits


def test_columns_are_removed_once_by_each_policy_and_its_options() -> None:
    """Also where nobody writes; a run that fails leaves it to the next one."""
    tables = {"s.a": table_plan(start={0: 4}, end={0: 4}, next={0: 4}, events=0, applied_version=1)}
    state = whole_table(made_table("id int4").model_copy(update={"version": 1}))
    evolved = []
    for removes in ("", "one", "one", "other", "", "other"):
        wanted = {"s.a": WantedTable("s.a", removes=removes)}
        due = proposed(tables, state, wanted)
        evolved.append(due["s.a"].evolves)
        failed = goes_on(plan(4, **due), RunOutcome(run=4, ts_ms=0, failed={"s.a": "why"}))
        assert not failed["s.a"].commits
        assert proposed(failed, state, wanted) == due
        tables = goes_on(plan(4, **due), RunOutcome(run=4, ts_ms=0, failed={}))
    assert evolved == [False, True, False, True, False, True]


def test_a_folder_that_cannot_be_used_is_no_other_run(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    files = LocalFiles(tmp_path / "runs")
    for use in (
        files.names,
        lambda: files.read("a"),
        lambda: files.create("a", ""),
        lambda: files.replace("a", ""),
    ):
        with pytest.raises(SinkUnreachableError):
            use()
