"""A table's state → its part of ``millrace status``."""

from unittest.mock import Mock

import pytest

from cdc.records.fingerprint import EndedPartition, TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Doubt, Phase, SnapshotRequest, TableState
from deploy.status.sinks import DropStatus, SinkStatus, with_documents
from deploy.status.tables import state_text, table_status
from sinks.run.cuts import Instant
from sinks.search.progress import DocumentRecord
from tests.fixtures.made_states import table_state

NOW_MS = 11_000


def _state(phase: Phase, *requests: SnapshotRequest) -> TableState:
    read = {"rows_sent": 500, "pages_total": 10, "pages_done": 5}
    times = {"begun_ms": 1_000, "ts_ms": 9_000}
    return table_state(TableName("public", "t"), phase=phase, requests=requests, **read, **times)


def test_a_tables_own_pace_is_that_of_its_first_snapshot() -> None:
    first = table_status(_state(Phase.SNAPSHOT, SnapshotRequest(kind="initial")), NOW_MS)
    assert (first.rows_per_s, first.left_s) == (50.0, 10.0)
    assert state_text(first) == "50 %, 50 rows/s, 10.0 s left"
    again = table_status(
        _state(Phase.STREAMING, SnapshotRequest(kind="incremental", order=1)), NOW_MS
    )
    assert (again.rows_per_s, again.left_s) == (None, None)


def test_a_table_that_went_while_it_was_read_has_no_progress_to_show() -> None:
    read = table_status(_state(Phase.SNAPSHOT, SnapshotRequest(kind="initial")), NOW_MS)
    assert (read.left_unread, state_text(read)[:4]) == (False, "50 %")
    gone = table_status(_state(Phase.SNAPSHOT), NOW_MS)
    assert gone.left_unread
    assert (
        state_text(gone) == "incomplete: the table no longer exists, or was left out of the capture"
    )
    assert not table_status(_state(Phase.STREAMING), NOW_MS).left_unread


def test_a_table_that_is_gone_says_since_when_and_under_which_name() -> None:
    shown = table_status(table_state(TableName("public", "t"), gone_ms=60_000), NOW_MS)
    assert state_text(shown).endswith("\ndropped at the source, seen 1970-01-01 00:01:00")
    away = {"gone_ms": 60_000, "renamed_to": "public.u"}
    shown = table_status(table_state(TableName("public", "t"), **away), NOW_MS)
    assert state_text(shown).endswith("renamed to public.u at the source, seen 1970-01-01 00:01:00")


@pytest.mark.parametrize(
    ("drop", "says"),
    [
        ({"policy": "keep", "due_ms": None}, 'stay; table.drop.policy = "delete" deletes them'),
        ({}, "are deleted by the first merge after 1970-01-01 00:01:00 UTC"),
        ({"held": "why"}, "00:01:00 UTC, but not while this holds: why"),
        ({"held": "why", "needs_word": True}, "with --accept-drop public.t: why"),
        ({"emptied": True}, "were deleted"),
    ],
)
def test_what_becomes_of_rows_whose_table_is_gone_is_said(
    drop: dict[str, object], says: str
) -> None:
    usual = {"name": "public.t_history", "table": "public.t", "policy": "delete", "due_ms": 60_000}
    drops = [DropStatus.model_validate(usual | drop)]
    (line,) = SinkStatus(sink="lakehouse", drops=drops).drop_texts()
    assert line.startswith(
        "lakehouse, public.t_history: public.t no longer exists at the source; its rows "
    )
    assert line.endswith(says)


@pytest.mark.parametrize(
    ("also", "waits"),
    [
        (
            {},
            "all transactions that may have written to them have ended and the source has answered",
        ),
        (
            {"requests": (SnapshotRequest(kind="incremental"),)},
            "the snapshots of the table are complete",
        ),
        ({"doubt": Doubt(reason="why", since_ms=1)}, "the daemon has read the table again"),
        ({"gone_ms": 60_000}, "the table exists again"),
    ],
)
def test_of_dropped_partitions_it_says_whose_rows_stay_and_whose_go(
    also: dict[str, object], waits: str
) -> None:
    ended = (EndedPartition((), ("b1", "b2")),)
    gone = ("b1", "b2", "b3", "b4", "b5")
    fingerprint = TableFingerprint(columns="", identity="", gone_bounds=gone, seen="1:1:")
    update = {"fingerprint": fingerprint, "ended": ended, **also}
    state = _state(Phase.STREAMING).model_copy(update=update)
    lines = state_text(table_status(state, NOW_MS)).split("\n")
    reset = f"millrace snapshot --reset {state.name}"
    assert f"the log has rows of 3 dropped partitions: {reset} deletes them" in lines
    assert f"the daemon deletes the rows of 2 dropped partitions once {waits}" in lines


def test_a_table_that_is_set_aside_says_why_and_one_that_nothing_is_known_of_too() -> None:
    doubt = Doubt(reason="it has no key: add one", since_ms=0, set_aside=True)
    for phase in (Phase.STREAMING, Phase.CREATING):
        state = _state(phase).model_copy(update={"doubt": doubt})
        shown = state_text(table_status(state, NOW_MS))
        assert shown.endswith("SET ASIDE since 1970-01-01 00:00:00: it has no key: add one")
        assert "left out" not in shown


def _instant(lsn: int) -> Instant:
    position = Position(1, Lsn(lsn), 0)
    return Instant(run=lsn, cut=position, versions={}, committed_us=lsn * 1_000_000)


@pytest.mark.parametrize(
    ("at", "to", "cut", "finished"),
    [(30, None, 30, True), (20, 30, 20, False), (20, None, 20, True)],
    ids=["they are where the lakehouse is", "they are being written", "nothing has begun yet"],
)
def test_a_search_sink_is_no_further_than_its_joined_documents(
    at: int, to: int | None, cut: int, finished: bool
) -> None:
    tables = SinkStatus(sink="search", cut=str(Lsn(30)))
    record = DocumentRecord.model_construct(
        serves=Mock(), at=_instant(at), to=_instant(to) if to else None
    )
    status = with_documents(tables, [record, DocumentRecord()])
    assert (status.cut, status.finished) == (str(Lsn(cut)), finished)
