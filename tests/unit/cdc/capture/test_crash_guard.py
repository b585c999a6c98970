"""Crashes of the server → the daemon ends if the stream makes no progress after them."""

import pytest

from cdc.capture.crash_guard import CrashGuard
from cdc.errors import DecodingCrashError, ExitCode, SourceUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.state import Progress
from tests.fixtures.made_states import streaming

LOST = SourceUnreachableError("the replication connection was lost", where="there:5432/db")


def progress(lsn: int) -> Progress:
    return streaming(Position(1, Lsn(lsn), 0), flush_lsn=Lsn(lsn))


def test_the_third_crash_without_a_step_forward_ends_the_daemon() -> None:
    guard = CrashGuard()
    guard.note_progress(progress(16))
    guard.note_crash(LOST, Lsn(16))
    guard.note_crash(LOST, Lsn(16))
    assert guard.is_suspicious
    guard.note_progress(progress(16))
    guard.note_progress(progress(16).model_copy(update={"events": 5}))  # a heartbeat of ours, say
    with pytest.raises(DecodingCrashError, match=r"3 times in a row .* after 0/10") as ended:
        guard.note_crash(LOST, Lsn(16))
    assert ended.value.exit_code == ExitCode.GAP
    assert ended.value.where == LOST.where
    assert "millrace new-epoch" in ended.value.remedy
    assert not ended.value.retry


def test_so_does_one_that_comes_before_the_stream_has_begun() -> None:
    """PostgreSQL decodes as soon as the slot is taken, and the log is read after that."""
    guard = CrashGuard()
    guard.note_crash(LOST, Lsn(16))
    guard.note_crash(LOST, Lsn(16))
    guard.note_progress(progress(16))
    with pytest.raises(DecodingCrashError):
        guard.note_crash(LOST, Lsn(16))


def test_any_number_of_crashes_with_progress_in_between_is_borne() -> None:
    guard = CrashGuard()
    for lsn in range(16, 24):
        guard.note_progress(progress(lsn))
        guard.note_progress(progress(lsn + 1))
        assert not guard.is_suspicious
        guard.note_crash(LOST, Lsn(lsn + 1))
