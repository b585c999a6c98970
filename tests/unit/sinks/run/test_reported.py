"""A run's course → its reports in the log: never of a run that another one excludes."""

from contextlib import suppress
from typing import Any

import pytest

from cdc.errors import BusyError, ExitCode, SinkError, SparkTerminatedError
from cdc.records.reports import RunReport
from sinks.run.reported import ReportedRun
from sinks.run.summary import RunSummary, TableResult


class Written:
    """Takes reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[RunReport, bool]] = []
        self.has_left = False

    def put(self, report: RunReport, _tables: Any = None, *, listed: bool = False) -> None:
        self.reports.append((report, listed))

    def leave(self) -> None:
        self.has_left = True


@pytest.fixture
def written() -> Any:
    return Written()


def test_a_run_that_another_one_keeps_out_is_not_reported(written: Any) -> None:
    """Cron begins one while another is under way: what that says of itself stays."""
    with ReportedRun(written, "lakehouse", "merge") as reported:
        reported.end(BusyError("another run"))
    assert written.reports == []
    assert written.has_left


def test_a_run_is_reported_once_it_has_begun_and_as_it_ends(written: Any) -> None:
    with ReportedRun(written, "lakehouse", "merge") as reported:
        reported.progress(0, 0)
        reported.end(RunSummary("lakehouse", 0, "", 0.1, kept_out=2))
    (begun, _), (ended, listed) = written.reports
    assert (begun.kept_out, ended.kept_out) == (0, 2)
    assert (begun.ended_ms, ended.exit_code, listed) == (None, ExitCode.NOTHING_TO_DO, False)


def test_a_run_that_is_interrupted_or_fails_says_so(written: Any) -> None:
    with suppress(KeyboardInterrupt), ReportedRun(written, "lakehouse", "merge") as reported:
        reported.progress(0, 0)
        raise KeyboardInterrupt
    with pytest.raises(SinkError), ReportedRun(written, "lakehouse", "compact"):
        raise SinkError("full")
    assert [(run.error, run.exit_code) for run, _ in written.reports[1:]] == [
        ("interrupted", ExitCode.INTERRUPTED),
        ("full", ExitCode.SINK),
    ]


@pytest.mark.parametrize("error", [SparkTerminatedError("by SIGTERM"), KeyboardInterrupt()])
def test_a_run_that_is_interrupted_before_it_begins_is_not_reported(
    written: Any, error: BaseException
) -> None:
    with suppress(KeyboardInterrupt), ReportedRun(written, "views", "merge") as reported:
        if not isinstance(error, SparkTerminatedError):
            raise error
        reported.end(error)
    assert written.reports == []
    assert written.has_left


def test_of_very_many_tables_that_fail_some_are_named(written: Any) -> None:
    failed = [TableResult(f"t{n}", error=SinkError("x")) for n in range(60)]
    with ReportedRun(written, "lakehouse", "merge") as reported:
        reported.end(RunSummary("lakehouse", 1, "", 0.1, failed))
    ((run, _),) = written.reports
    assert (len(run.failed), run.failed["…"]) == (51, "and 10 more")
