"""Everything that can be wrong → a problem that names the command, or SQL, that solves it."""

import re
import shlex
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.errors import LogMissingError, SourceSettingError
from cdc.log.reports import Reports
from cdc.postgres.slot import SlotState, concerns
from cdc.records.position import Lsn, Position
from cdc.records.reports import DaemonReport, RunReport
from cdc.records.state import Phase
from cdc.settings import Settings
from deploy.asking import SilentError
from deploy.status import problems
from deploy.status.collect import LogAnswer
from deploy.status.lag import Lag, capture_lag
from deploy.status.model import Problem, Status
from deploy.status.problems import found_problems, unanswered
from deploy.status.sinks import DropStatus, IndexStatus, SinkStatus
from deploy.status.source import SlotConcern, SourceStatus
from deploy.status.tables import RequestStatus, TableStatus, state_text
from sinks.run.wanted import CapturedTables
from tests.fixtures.made_states import streaming

REMEDY: Final = re.compile(
    r"millrace [a-z]+|(?:SELECT|ALTER SYSTEM|CHECKPOINT)\b[^;]*;|in \[capture\]|NTP|report this bug"
)
"""A command, SQL, a setting, or who can do something about it."""
NOW_MS: Final = time.time_ns() // 1_000_000
PROGRESS: Final = streaming(Position(1, Lsn(9), 0))
UNKNOWN: Final = Lag(unknown="no run has reported")
SETTINGS: Final = Settings(
    source={},
    capture={"topic.prefix": "p"},
    kafka={"bootstrap.servers": "127.0.0.1:1"},
    lakehouse={"path": "/nowhere"},
)
SLOT: Final = SlotState(
    name="s",
    active=False,
    active_pid=None,
    database="d",
    plugin="pgoutput",
    temporary=False,
    confirmed_flush_lsn=Lsn(1),
    lag_bytes=100 << 20,
    retained_bytes=100 << 20,
    wal_status="reserved",
    safe_wal_size=None,
    invalidation_reason=None,
    failover=False,
    synced=False,
    limits={},
)


def _table(**more: Any) -> TableStatus:
    made = {"table": "public.t", "topic": "t", "percent": 100, "snapshot_rows": 1}
    return TableStatus.model_validate({**made, "phase": Phase.STREAMING, **more})


def _told(status: Status, **answers: Any) -> list[Problem]:
    log = LogAnswer(PROGRESS, [], {}, CapturedTables.of((), {}), Reports(), {})
    whole = {"source": SourceStatus(is_captured=True), "log": log, "standby": None, **answers}
    return list(found_problems(SETTINGS, status, whole))


def _of_sink(**more: Any) -> list[Problem]:
    known = {"sink": "search", "sink_lag": Lag(seconds=0.0), "lag": Lag(seconds=0.0)}
    sink = SinkStatus.model_validate({**known, **more})
    return _told(Status(capture_lag=Lag(seconds=0.0), sinks=[sink]))


def _run(**more: Any) -> RunReport:
    return RunReport.model_validate({"sink": "search", "started_ms": NOW_MS - 600_000, **more})


def _of_capture() -> Iterator[tuple[str, list[Problem]]]:
    level = Status(capture_lag=Lag(seconds=0.0))
    for name, error in {
        "missing": LogMissingError("no log", remedy="millrace run"),
        "silent": SilentError("no answer within 2 s"),
        "bug": SilentError("internal error: KeyError", remedy="report this bug"),
    }.items():
        yield name, unanswered({"log": error})
    standby = SourceSettingError("is no standby")
    yield "standby", _told(level, standby=(standby,))
    held = SourceStatus(is_captured=True, concerns=[SlotConcern(text="held", remedy="CHECKPOINT;")])
    yield "concern", _told(level, source=held)
    yield "no daemon", _told(level, source=SourceStatus())
    yield "slot gone", _told(level, source=SourceStatus(is_captured=True))
    daemon = DaemonReport(slot="s", fault="it can't", since_ms=NOW_MS)
    yield "fault", _told(level.model_copy(update={"daemon": daemon}))
    yield "capture lag", _told(Status(capture_lag=Lag(unknown="why")))
    missing = LogMissingError("no topic", remedy="millrace run")
    log = LogAnswer(PROGRESS, [], {}, CapturedTables.of((), {}), Reports(), {}, missing)
    unreported = level.model_copy(update={"sinks": [SinkStatus(sink="search")]})
    yield "unreported", _told(unreported, log=log)
    yield "letters", _told(level.model_copy(update={"dead_letters": {"public.t": 2}}))
    request = RequestStatus(
        signal="",
        type="initial",
        paused=False,
        percent=1,
        rows=1,
        rows_per_s=None,
        left_s=None,
        obstacle="no right",
    )
    tables: dict[str, dict[str, Any]] = {
        "doubtful": {"doubt": "why"},
        "set aside": {"doubt": "why", "set_aside": True},
        "not reread": {"doubt": "why", "not_reread": "it is too large"},
        "left unread": {"left_unread": True},
        "obstacle": {"requests": [request]},
    }
    for name, more in tables.items():
        yield name, _told(level.model_copy(update={"tables": [_table(**more)]}))


def _of_sinks() -> Iterator[tuple[str, list[Problem]]]:
    index = IndexStatus(name="public.t", index="t", cut=None, refused=3)
    drop = DropStatus(
        name="t", table="public.t", policy="delete", due_ms=1, held="many", needs_word=True
    )
    sinks: dict[str, dict[str, Any]] = {
        "failed": {"failed": {"public.t": "it is full"}},
        "failed run": {"last_run": _run(ended_ms=NOW_MS, error="why", exit_code=30)},
        "differs": {"verified": _run(ended_ms=NOW_MS, failed={"public.t": "1 of 2 rows differ"})},
        "overdue": {"last_run": _run(ended_ms=1, next_due_ms=NOW_MS - 600_000)},
        "gone run": {"running": _run(deadline_ms=NOW_MS - 60_000)},
        "sink lag": {"sink_lag": UNKNOWN},
        "refused": {"indexes": [index]},
        "doubts": {"doubts": {"public.t": "rows may be wrong"}},
        "drop": {"drops": [drop]},
        "keep": {"keep_left_s": timedelta(hours=1).total_seconds()},
    }
    for name, more in sinks.items():
        yield name, _of_sink(**more)


KINDS: Final = dict([*_of_capture(), *_of_sinks()])
FORMS: Final = {"missing", "silent", "bug", "doubtful", "set aside", "not reread"}
"""Those that share a line of code with another one; it counts them as two (all parts) and one."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_says_what_mends_it(kind: str) -> None:
    assert KINDS[kind]
    for problem in KINDS[kind]:
        assert REMEDY.search(problem.remedy), problem


def test_a_name_that_a_shell_reads_otherwise_is_pasted_as_it_is() -> None:
    name = 'public.it\'s $HOME; "x"'
    drop = DropStatus(name=name, table=name, policy="delete", due_ms=1, held="", needs_word=True)
    doubtful = _table(table=name, doubt="why", not_reread="it is too large", gone_partitions=1)
    dropped = _of_sink(drops=[drop])[-1]
    again = _told(Status(capture_lag=Lag(seconds=0.0), tables=[doubtful]))[-1]
    assert shlex.split(dropped.remedy)[-1] == shlex.split(again.remedy)[-1] == name
    assert state_text(doubtful).count(f"--reset {shlex.quote(name)}") == 2


def test_no_kind_of_problem_is_left_out_of_these() -> None:
    """Whoever adds a kind adds it above."""
    code = Path(problems.__file__).read_text("utf-8")
    places = re.findall(r"\bProblem(?:\.of|\.of_text)?\(", code)
    assert len(places) == len(KINDS.keys() - FORMS) + 3


def test_what_was_reported_with_its_remedy_keeps_it() -> None:
    for arrow in ("\n  → ", "\n    → "):
        problem = Problem.of_text("search", f"it is full{arrow}free some space", "millrace merge")
        assert (problem.what, problem.remedy) == ("it is full", "free some space")


@pytest.mark.parametrize(
    ("progress", "heartbeat_s", "waiting"),
    [
        (None, 10, 0),
        (PROGRESS.model_copy(update={"phase": Phase.SNAPSHOT}), 10, 0),
        (PROGRESS, 10, 0),
        (PROGRESS.model_copy(update={"cut_ts_us": (NOW_MS + 3_600_000) * 1_000}), 10, 0),
        (PROGRESS, 0, None),
        (PROGRESS, 0, 8),
    ],
)
def test_a_capture_lag_that_is_unknown_says_what_makes_it_known(
    progress: Any, heartbeat_s: float, waiting: int | None
) -> None:
    lag = capture_lag(progress, heartbeat_s, streams=True, waiting_bytes=waiting)
    assert lag.seconds is None
    assert REMEDY.search(lag.remedy), lag


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (SLOT, "millrace run"),
        (SLOT._replace(active=True), "millrace check"),
        (SLOT._replace(lag_bytes=1), "FROM pg_stat_activity"),
        (SLOT._replace(safe_wal_size=1), "max_slot_wal_keep_size = '200MB'; SELECT pg_reload_conf"),
        (SLOT._replace(wal_status="unreserved", safe_wal_size=1), "ALTER SYSTEM SET"),
        (SLOT._replace(wal_status="lost"), "millrace new-epoch"),
    ],
)
def test_wal_that_is_held_back_comes_with_what_lets_it_go(state: SlotState, words: str) -> None:
    remedies = [each.remedy for each in concerns(state, 100 << 20)]
    assert remedies
    assert any(words in remedy for remedy in remedies)
    assert all(REMEDY.search(remedy) for remedy in remedies)
