"""A table's state → what ``millrace status`` tells of it."""

from cdc.records.schema import TableName
from cdc.records.state import Doubt, Phase, SnapshotRequest, TableState
from deploy.commands.status import _snapshot_text, table_status
from tests.fixtures.made_states import table_state

NOW_MS = 11_000


def _state(phase: Phase, *requests: SnapshotRequest) -> TableState:
    read = {"rows_sent": 500, "pages_total": 10, "pages_done": 5}
    times = {"begun_ms": 1_000, "ts_ms": 9_000}
    return table_state(TableName("public", "t"), phase=phase, requests=requests, **read, **times)


def test_a_tables_own_pace_is_that_of_its_first_snapshot() -> None:
    first = table_status(_state(Phase.SNAPSHOT, SnapshotRequest(kind="initial")), NOW_MS)
    assert (first.rows_per_s, first.left_s) == (50.0, 10.0)
    assert _snapshot_text(first) == "50 %, 50 rows/s, 10.0 s left"
    again = table_status(
        _state(Phase.STREAMING, SnapshotRequest(kind="incremental", order=1)), NOW_MS
    )
    assert (again.rows_per_s, again.left_s) == (None, None)


def test_a_table_that_went_while_it_was_read_has_no_progress_to_show() -> None:
    read = table_status(_state(Phase.SNAPSHOT, SnapshotRequest(kind="initial")), NOW_MS)
    assert (read.left_unread, _snapshot_text(read)[:4]) == (False, "50 %")
    gone = table_status(_state(Phase.SNAPSHOT), NOW_MS)
    assert gone.left_unread
    assert _snapshot_text(gone) == "not all of it was read: it is gone, or was left out"
    assert not table_status(_state(Phase.STREAMING), NOW_MS).left_unread


def test_a_table_that_is_set_aside_says_why_and_one_that_nothing_is_known_of_too() -> None:
    doubt = Doubt(reason="it has no key: add one", since_ms=0, set_aside=True)
    for phase in (Phase.STREAMING, Phase.CREATING):
        state = _state(phase).model_copy(update={"doubt": doubt})
        shown = _snapshot_text(table_status(state, NOW_MS))
        assert shown.endswith("SET ASIDE since 1970-01-01 00:00:00: it has no key: add one")
        assert "left out" not in shown
