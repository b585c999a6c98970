"""Runs that update a view, or fail → what status, runs and waits report of it."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from cdc.errors import ExitCode, SinkError
from cdc.log.offsets import LogReader
from cdc.log.reports import ReportWriter
from deploy.commands.wait import NotShownError, wait
from sinks.job import Jobs
from sinks.run.cuts import Instant
from sinks.run.options import RunContext
from sinks.run.summary import RunSummary, Standing, TableResult
from sinks.views.records import ViewGeneration, ViewRecord, ViewsAtCut, view_records
from tests.fixtures.command_line import CommandLine
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run
from tests.fixtures.view_lake import finished_runs
from tests.integration.deploy.status.test_wait import NAME, SmallSink
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
VIEW: Final = "by_kind"


@pytest.fixture
def made(pipeline: Any, database: dict[str, str]) -> Iterator[RunningPipeline]:
    """A daemon that streams one table, over which there is a view."""
    run(database, "CREATE TABLE orders (id int PRIMARY KEY, kind text)")
    view = {"name": VIEW, "query": "SELECT kind, count(*) AS orders FROM orders GROUP BY 1"}
    running: RunningPipeline = pipeline(
        sections={"views": [view]}, **{"heartbeat.source.interval.ms": 500}
    )
    daemon = running.catch_up()
    yield running
    running.stop(daemon)


class SmallViews:
    """Brings the view to where the lakehouse is, as a run of views does, without Spark."""

    def __init__(self) -> None:
        self.error: SinkError | None = None
        self._last: Standing | None = None

    def run(self, context: RunContext, _log: object) -> RunSummary:
        settings = context.settings
        capture = settings.capture
        context.progress(0, 1)
        state = LogReader(settings.kafka).state(capture.topic_prefix, capture.slot_name)
        lake = settings.require_lakehouse().path
        records = view_records(lake, pytest.fail)
        number, cut = (records.runs() or [0])[-1] + 1, state.progress.cut
        finished_runs(lake, number)
        if self.error is None:
            at = Instant(run=number, cut=cut, versions={}, committed_us=state.progress.cut_ts_us)
            records.write(VIEW, ViewRecord(serves=ViewGeneration(query=""), at=at))
            self._last = Standing(made_of=(NAME,), run=number, cut=cut, cut_ts_us=at.committed_us)
        standing = self._last or Standing(shown=False)
        why = "" if self.error is None else str(self.error)
        records.finish(ViewsAtCut(run=number, ts_ms=1, failed={VIEW: why} if why else {}))
        return RunSummary(
            "views",
            number,
            str(cut.commit_lsn),
            0.1,
            [TableResult(VIEW, inserted=1, error=self.error)],
            standing={VIEW: standing._replace(error=why)},
            reached=cut,
            last_run=number,
            log=state.progress.log,
        )


def test_a_view_is_shown_once_it_is_there_and_lacks_what_the_lakehouse_has_since(
    made: RunningPipeline,
    database: dict[str, str],
    typed: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    views, lakehouse = SmallViews(), SmallSink(made)
    monkeypatch.setattr("sinks.views.run.run_views", views.run)

    def merged(*sinks: str) -> list[str]:
        lines: list[str] = []
        if "lakehouse" in sinks:
            with ReportWriter(made.settings, pytest.fail) as reports:
                lakehouse.merge(reports)
        if "views" in sinks:
            with Jobs(made.settings, "views") as jobs:
                jobs.run(lines.append)
        return lines

    def of_views() -> Any:
        shown = json.loads(typed(made.config, "status", "--json").stdout)
        return next(sink for sink in shown["sinks"] if sink["sink"] == "views")

    def lacking() -> str:
        with pytest.raises(NotShownError) as ended:
            wait(made.config, now=True, sink="views", timeout="1s")
        return str(ended.value)

    # The position at which streaming began has no commit time; a change's has.
    run(database, "INSERT INTO orders VALUES (1, 'a')")
    wait_for_log(made)
    assert "views: no run has reported its cut" in lacking()
    (line,) = merged("lakehouse", "views")
    assert "views: run 1 to " in line
    assert "1 of 1 views" in line
    wait(made.config, now=True, sink="views", timeout="30s")
    there = of_views()
    assert (there["run"], there["sink_lag"]["seconds"], there["failed"]) == (1, 0.0, {})
    assert [(view["name"], view["loads"]) for view in there["views"]] == [(VIEW, False)]

    run(database, "INSERT INTO orders VALUES (2, 'a')")
    wait_for_log(made)
    merged("lakehouse")
    assert f"views, {VIEW}: its cut is" in lacking(), "the lakehouse alone has it"
    # Unknown is an answer as well, while the log is asked for the newest change.
    wait_for(lambda: (of_views()["sink_lag"]["seconds"] or 0) > 0)

    views.error = SinkError("a number is too large", where=f"[[views]] {VIEW}", remedy="cast it")
    merged("views")
    assert "the last run failed to apply changes to it: a number is too large" in lacking()
    failed = typed(made.config, "status").stdout
    assert f"PROBLEM views, {VIEW}: a number is too large ([[views]] {VIEW})" in failed
    assert_names_are_shown_or_refused(typed, made, "→ cast it")
    listed = json.loads(typed(made.config, "runs", "--json").stdout)
    assert [(each["sink"], [*each["failed"]]) for each in listed[:1]] == [("views", [VIEW])]

    views.error = None
    merged("views")
    wait(made.config, now=True, timeout="30s")
    assert of_views()["failed"] == {}


def assert_names_are_shown_or_refused(
    typed: CommandLine, made: RunningPipeline, remedy: str
) -> None:
    """Problems are shown whatever the name."""
    named = typed(made.config, "status", NAME)
    assert (named.returncode, named.stdout.count(NAME)) == (ExitCode.OK, 1)
    assert remedy in named.stdout
    unknown = typed(made.config, "status", "public.nowhere")
    assert unknown.returncode == ExitCode.CONFIG
    assert "no table, view or index has this name: public.nowhere" in unknown.stderr


def wait_for_log(made: RunningPipeline) -> None:
    """Until the log has what the source has by now."""
    made.wait_until_logged(made.wal_end(), made.daemons[-1])
