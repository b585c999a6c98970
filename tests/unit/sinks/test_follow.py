"""Runs that succeed, fail, or have nothing to do → the start and tables of the next one."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cdc.errors import (
    ExitCode,
    LogMissingError,
    LogUnreachableError,
    SinkError,
    SparkEndedError,
    SparkTerminatedError,
)
from cdc.settings import Settings
from sinks import follow
from sinks.run.options import PausedTables
from sinks.run.summary import RunSummary, TableResult

SETTINGS = Settings(
    source={}, capture={"topic.prefix": "shop"}, kafka={"bootstrap.servers": "nowhere"}
)
ERROR = SinkError("no")
APPLIED = RunSummary("lakehouse", 1, "0/1", 0.1, [TableResult("public.good", 1)])
NOTHING = RunSummary("lakehouse", 0, "", 0.1)
BAD = TableResult("public.bad", 1, error=ERROR)
BROKEN = RunSummary("lakehouse", 2, "0/2", 0.1, [TableResult("public.good", 1), BAD])


class Followed:
    """Jobs whose turns are told beforehand, and what was asked of them; the last one stops all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *turns: Any, pause_s: float = 0.0) -> None:
        self.events: list[Any] = []
        self.held: list[dict[str, list[str]]] = []
        self.lines: list[str] = []
        self._turns = list(turns)
        self._stop = threading.Event()
        monkeypatch.setattr(follow, "News", lambda *_: self)
        monkeypatch.setattr(follow, "_pause_s", lambda _: pause_s)

    def turns(
        self, report: Any, paused: Mapping[str, PausedTables], _next_in_s: float
    ) -> Iterator[tuple[str, Any]]:
        report("the same every time")
        self.held.append({sink: sorted(tables) for sink, tables in paused.items()})
        self.events.append(sorted(name for tables in paused.values() for name in tables))
        turn = self._turns.pop(0)
        if not self._turns:
            self._stop.set()
        yield from turn.items() if isinstance(turn, dict) else [("lakehouse", turn)]

    def wait(self, _stop: threading.Event, seconds: float, _interval_s: float) -> None:
        assert 0 < seconds <= follow.IDLE_MAX_S
        self.events.append("waits")

    def session(self) -> None:
        self.events.append("Spark")

    def run(self) -> ExitCode:
        jobs: Any = self
        return follow.follow(jobs, SETTINGS, self._stop, 0, self.lines.append)


def test_news_are_waited_for_once_a_run_has_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch, APPLIED, NOTHING, APPLIED, NOTHING)
    assert followed.run() == ExitCode.OK
    assert followed.events == ["Spark", [], [], "waits", [], [], "waits"]
    assert followed.lines == ["the same every time", APPLIED.line(), APPLIED.line()]


def test_a_table_that_fails_is_held_for_a_while_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_bad = RunSummary("lakehouse", 2, "0/2", 0.1, [BAD])
    followed = Followed(monkeypatch, BROKEN, only_bad, NOTHING, pause_s=5.0)
    followed.run()
    assert followed.events == [
        "Spark",
        [],
        ["public.bad"],
        "waits",
        ["public.bad"],
        "waits",
    ]
    assert followed.lines == ["the same every time", BROKEN.line()]


def test_a_name_that_fails_in_one_sink_is_held_in_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = RunSummary("views", 2, "0/2", 0.1, [TableResult("public.good", error=ERROR)])
    turns: list[dict[str, Any]] = [{"lakehouse": APPLIED, "views": failed}]
    turns.append({"lakehouse": NOTHING, "views": failed})
    followed = Followed(monkeypatch, *turns, pause_s=5.0)
    followed.run()
    assert followed.held == [{}, {"lakehouse": [], "views": ["public.good"]}]
    assert followed.lines == ["the same every time", APPLIED.line(), failed.line()]


def test_what_fails_as_a_whole_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    error = LogUnreachableError("Kafka doesn't answer")
    followed = Followed(monkeypatch, error, error, APPLIED, NOTHING)
    assert followed.run() == ExitCode.OK
    assert followed.events == ["Spark", [], [], [], [], "waits"]
    assert followed.lines[1:] == ["lakehouse: Kafka doesn't answer", APPLIED.line()]


def test_a_log_that_isnt_there_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = LogMissingError("no log")
    followed = Followed(monkeypatch, missing, missing, APPLIED, NOTHING, pause_s=60.0)
    assert followed.run() == ExitCode.OK
    assert followed.events == ["Spark", [], "waits", [], "waits", [], [], "waits"]
    assert followed.lines[1:] == ["lakehouse: no log", APPLIED.line()]


def test_what_lasts_is_reported_again_each_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = LogMissingError("no log")
    monkeypatch.setattr(follow, "REPEAT_S", 0.0)
    followed = Followed(monkeypatch, missing, missing, NOTHING)
    followed.run()
    assert followed.lines.count("lakehouse: no log") == 2


def test_it_ends_with_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch, SparkEndedError("ended"), APPLIED)
    assert followed.run() == ExitCode.SINK_UNREACHABLE
    assert followed.events == ["Spark", []]


def test_a_jvm_that_was_told_to_end_with_the_command_is_an_orderly_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = SparkTerminatedError("told")
    assert Followed(monkeypatch, APPLIED, ended).run() == ExitCode.OK
    alone = Followed(monkeypatch, ended, APPLIED)  # somebody told nobody but the JVM
    assert alone.run() == ExitCode.INTERRUPTED
