"""A settled doubt → a gap, where changes may be missing."""

from dataclasses import replace

import pytest

from cdc.records.fingerprint import PublicationFingerprint, TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.state import GAPS_MAX, Doubt, Gap, Phase, SnapshotRequest, TableState
from cdc.tables.tables import Tables
from tests.fixtures.made_tables import COLUMNS, END, STATE, tables
from tests.unit.cdc.tables.test_tables import described

NAME = STATE.name


def at(lsn: int) -> Position:
    return Position(1, Lsn(lsn), 0)


def settled(made: Tables, *doubts: Doubt, end: int) -> TableState:
    """The table's state once a read has settled these doubts."""
    for doubt in doubts:
        made.reads.doubt(NAME, doubt)
    made.reads.ask({NAME: None}, "")
    (request,) = made.states[NAME].requests
    made.reads.finish(NAME, request, at(end), 1)
    return made.states[NAME]


def lacking(reason: str, right_until: int | None) -> Doubt:
    position = None if right_until is None else at(right_until)
    return Doubt(reason=reason, since_ms=1, right_until=position)


def listed(entries: str) -> TableFingerprint:
    """A fingerprint of a table that is published so."""
    publication = PublicationFingerprint(oid=1, entries=entries)
    return TableFingerprint(columns="", identity="", publication=publication, seen="1:1:")


def spans(state: TableState) -> list[tuple[Position, Position]]:
    return [(gap.start, gap.end) for gap in state.gaps]


def test_a_read_leaves_a_gap_where_changes_may_be_missing() -> None:
    made = tables()
    assert settled(made, lacking("columns were altered", None), end=300).gaps == ()
    both = lacking("columns were altered", None), lacking("labels were renamed", 310)
    state = settled(made, *both, lacking("rewritten", 320), end=400)
    assert spans(state) == [(at(310), at(400))]
    assert [gap.reason for gap in state.gaps] == [
        "columns were altered; labels were renamed; rewritten"
    ]
    for number in range(GAPS_MAX):
        state = settled(made, lacking("rewritten", 500 + number), end=501 + number)
    assert (len(state.gaps), state.gaps_total) == (GAPS_MAX, GAPS_MAX + 1)
    assert spans(state)[0] == (at(500), at(501))


def test_ddl_during_a_first_read_leaves_a_gap_only_if_the_table_was_whole_before() -> None:
    made = tables()
    new = described(*COLUMNS)
    for table, missing in ((new, []), (replace(new, oid=7, name=NAME), [(at(250), at(400))])):
        first = SnapshotRequest(kind="initial")
        made.begin_anew(table, at(300), (first,))
        made.reads.doubt(table.name, lacking("labels were renamed", 250))
        state = made.states[table.name]
        assert (state.doubt is not None) == bool(missing), "others' re-reads wait for doubtful ones"
        (request,) = state.requests
        assert request.begun_ms, "it begins anew"
        made.reads.finish(table.name, request, at(400), 1)
        assert spans(made.states[table.name]) == missing


def test_another_table_in_a_tables_place_leaves_a_gap_from_before_it_was_waited_for() -> None:
    made = tables()
    made.states.checked = at(1_000)
    other = replace(described(*COLUMNS), name=NAME)
    made.join(other, at(1_010), read=True)
    made.states.checked = at(1_500)  # checks don't look at a table that waits
    assert made.begin_waiting(Position(1, END, 0)).records
    (request,) = made.states[NAME].requests
    made.reads.finish(NAME, request, at(2_100), 1)
    state = made.states[NAME]
    assert (state.oid, state.doubt, spans(state)) == (other.oid, None, [(at(1_000), at(2_100))])


@pytest.mark.parametrize(
    ("before", "entry", "seen", "reason"),
    [
        ({}, 9, "a", ""),
        ({}, 9, "b", "how the publication lists the table was changed"),
        ({}, 10, "a", "it left the publication or the lists, and came back"),
        ({"right_until": at(200)}, 9, "a", "its changes weren't followed for a while"),
        ({"phase": Phase.SNAPSHOT, "was_whole": True, "right_until": at(200), "oid": 0, "entry": 0},
         9, "a", "its changes weren't followed for a while"),
        ({"phase": Phase.SNAPSHOT}, 10, "b", ""),
    ],
)  # fmt: skip
def test_a_table_that_is_read_again_at_a_start_may_lack_changes_that_no_check_has_told_of(
    before: dict[str, object], entry: int, seen: str, reason: str
) -> None:
    made = tables()
    made.states.checked = at(250)
    made.states.put(STATE.model_copy(update={"fingerprint": listed("a"), **before}))
    table = replace(described(*COLUMNS), oid=7, name=NAME, entry=entry, fingerprint=listed(seen))
    made.begin_anew(table, at(300), (SnapshotRequest(kind="initial"),))
    (request,) = made.states[NAME].requests
    made.reads.finish(NAME, request, at(300), 1)
    gaps = made.states[NAME].gaps
    assert [gap.reason[: len(reason)] for gap in gaps] == [reason] * bool(reason)
    start = before.get("right_until", at(250))
    assert [(gap.start, gap.end) for gap in gaps] == [(start, at(300))] * bool(reason)


def test_before_any_check_nothing_is_sure_but_what_was_before_the_epoch() -> None:
    made = tables()
    assert made.states.right_until(NAME) == Position(1, Lsn(0), 0)
    made.states.checked = Position(2, Lsn(5), 0)
    assert made.states.right_until(NAME) == Position(1, Lsn(0), 0)
    made.states.checked = at(50)
    assert made.states.right_until(NAME) == at(50)
    made.states.put(STATE.model_copy(update={"right_until": at(40)}))
    assert made.states.right_until(NAME) == at(40)


def test_a_gap_is_the_same_after_it_was_in_the_log() -> None:
    gap = Gap(start=at(1), end=at(2), reason="rewritten", ts_ms=3)
    state = STATE.model_copy(update={"gaps": (gap,), "right_until": at(4)})
    assert TableState.model_validate_json(state.model_dump_json()) == state
