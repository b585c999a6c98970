"""Answers of all parts → problems: only those that a person must solve."""

from typing import Any

import pytest

from cdc.log.reports import Reports
from cdc.records.position import Lsn, Position
from cdc.records.state import Phase
from cdc.settings import Settings
from deploy.status.collect import LogAnswer
from deploy.status.lag import Lag
from deploy.status.model import Status
from deploy.status.problems import found_problems
from deploy.status.shown import Outlook, Watched
from deploy.status.sinks import DropStatus, IndexStatus, SinkStatus
from deploy.status.source import SourceStatus
from sinks.run.wanted import CapturedTables
from tests.fixtures.made_states import streaming

KNOWN = Lag(seconds=0.0)


def _settings(**capture: Any) -> Settings:
    return Settings(
        source={},
        capture={"topic.prefix": "p", **capture},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        lakehouse={"path": "/nowhere"},
    )


def _problems(status: Status, phase: Phase = Phase.STREAMING, **capture: Any) -> str:
    """The problems of a pipeline whose slot isn't there, or of sinks alone."""
    progress = streaming(Position(1, Lsn(9), 0)).model_copy(update={"phase": phase})
    log = LogAnswer(progress, [], {}, CapturedTables.of((), {}), Reports(), {})
    answers = {"source": SourceStatus(), "log": log, "standby": None}
    return "\n".join(map(str, found_problems(_settings(**capture), status, answers)))


def test_a_slot_that_is_gone_is_a_gap_unless_it_has_to_be_gone() -> None:
    status = Status(capture_lag=Lag(unknown="no change or heartbeat has come"))
    assert "is missing, and the log has a gap" in _problems(status)
    assert "gap" not in _problems(status, Phase.CREATING)
    once = {"snapshot.mode": "initial_only"}
    assert _problems(status, Phase.STREAMING, **once) == ""


def test_rows_that_a_sink_lacks_or_may_have_wrong_are_problems() -> None:
    drop = DropStatus(
        name="t", table="public.t", policy="delete", due_ms=1, held="too many", needs_word=True
    )
    refused = IndexStatus(name="public.u", index="u", cut=None, refused=3)
    sink = SinkStatus(
        sink="search",
        sink_lag=KNOWN,
        lag=KNOWN,
        drops=[drop],
        indexes=[refused],
        doubts={"public.v": "rows may be wrong"},
    )
    said = _problems(Status(capture_lag=KNOWN, sinks=[sink]), Phase.CREATING)
    for words in ("refused 3 documents", "rows may be wrong", "--accept-drop public.t"):
        assert words in said


def test_an_instant_of_another_timeline_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted standby's LSNs may be below what the log has of the timeline before."""
    progress = streaming(Position(1, Lsn(0x50), 0))
    watched = Watched(_settings(), ("lakehouse",), 1.0)
    monkeypatch.setattr(Watched, "progress", lambda _: progress)
    (lacking,) = watched.lacking(Lsn(0x10), progress.timeline + 1)
    assert (lacking.part, lacking.outlook) == ("the log", Outlook.LATER)
    assert "the source was promoted" in lacking.why
