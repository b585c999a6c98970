"""Settings and a sink's name → runs, with one Spark session for all of them."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from cdc.errors import (
    BusyError,
    ConfigError,
    DiskError,
    ExitCode,
    MillraceError,
    SparkEndedError,
)
from cdc.lines import Lines
from cdc.log.reports import ReportWriter
from cdc.settings import Settings
from sinks.delta.target import LakehouseTarget
from sinks.log.topics import MillraceTopics
from sinks.run.engine import Run
from sinks.run.options import PausedTables, Report, RunContext, RunOptions, wait_on
from sinks.run.owner import one_at_a_time
from sinks.run.reported import ReportedRun
from sinks.run.summary import RunSummary, SinkName
from sinks.run.topics import Topics
from sinks.run.wanted import configured_sinks
from sinks.spark.errors import run_error
from sinks.spark.session import RECORDS_FEW, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunSink = Callable[[RunContext, MillraceTopics], RunSummary]
Turn = tuple[str, RunSummary | MillraceError]
"""A sink's name, and the result of its run, or why it could do nothing at all."""


class Jobs:
    """The merge jobs of a configuration. A context manager that stops Spark at its end.

    The first run with work starts Spark. If it is ``lasting``, many runs follow. ``while_waiting``
    is called while brokers don't answer, and between tables. It raises to end the run, which the
    next one finishes.
    """

    def __init__(
        self,
        settings: Settings,
        sink: str,
        options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
        *,
        lasting: bool = False,
        while_waiting: Callable[[], None] = wait_on,
    ) -> None:
        self._settings = settings
        self._while_waiting = while_waiting
        self._options = options
        self._lasting = lasting
        self._session: SparkSession | None = None
        self._reports = ReportWriter(settings, print)
        self._runs = {
            name: run
            for name, run in SINKS.items()
            if sink == name or (sink == "all" and name in configured_sinks(settings))
        }
        _require_readable(settings, self._runs.keys())

    def __enter__(self) -> Self:
        self._reports.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._reports.__exit__()
        if self._session is not None:
            with suppress(Exception):  # a JVM that has ended has reported it already
                self._session.stop()

    def run(self, report: Report = print) -> ExitCode:
        """Run each chosen sink once. Every sink gets its turn, and one line in the report.

        Return the code of the first failure, else OK if there was anything to do.
        """
        codes = []
        for name, done in self.turns(report):
            codes.append(done.exit_code)
            report(done.line() if isinstance(done, RunSummary) else Lines(f"{name}: {done}"))
        failures = [code for code in codes if code not in {ExitCode.OK, ExitCode.NOTHING_TO_DO}]
        return failures[0] if failures else min(codes)

    def turns(
        self,
        report: Report,
        paused: Mapping[str, PausedTables] = MappingProxyType({}),
        next_in_s: float | None = None,
    ) -> Iterator[Turn]:
        """Run each chosen sink once. Yield its name, and its result, or why it could do nothing.

        The next turns begin ``next_in_s`` after this one, if known.

        A request to end leaves the remaining sinks to the next turn.

        ``paused`` tables of a sink stay unchanged. Records that one successful run has read serve
        the next one.
        """
        given = self._options
        context = RunContext(self._settings, self.session, report, given, self._while_waiting)
        log = MillraceTopics(context)
        try:
            for name, run in self._runs.items():
                with ReportedRun(self._reports, name, "merge", next_in_s) as reported:
                    begins, progress = reported.begins, reported.progress
                    options = replace(given, paused=paused.get(name, {}))
                    own = replace(context, options=options, begins=begins, progress=progress)
                    done = _result(run, own, log)
                    reported.end(done)
                if isinstance(done, MillraceError):
                    log.forget()
                yield name, done
                if done.exit_code == ExitCode.INTERRUPTED:
                    return
        finally:
            log.forget()

    def session(self, records: int = RECORDS_FEW) -> "SparkSession":
        """Return the Spark session. Its first use starts it, for this number of records."""
        if self._session is None:
            records = max(records, RECORDS_FEW) if self._lasting else records
            self._session = open_session(self._settings.spark, records=records)
        return self._session

    def cancel(self) -> None:
        """Cancel Spark's jobs, so that their tables fail: for a request to end that can't wait."""
        if self._session is not None:
            with suppress(Exception):  # a JVM that has ended has reported it already
                self._session.sparkContext.cancelAllJobs()


def run_lakehouse(context: RunContext, log: MillraceTopics) -> RunSummary:
    """Apply the log to the lakehouse. Tables that fail are in the summary.

    Reads a real Debezium's topics instead of the ``log``, if configured. Raise MillraceError if no
    table could be applied at all (the log or the lakehouse can't be reached, another run).
    """
    lakehouse = context.settings.require_lakehouse()
    started = time.monotonic()
    topics: Topics = log
    with one_at_a_time(lakehouse.path) as kept_out:
        if lakehouse.topics_written_by == "debezium":
            from sinks.debezium.topics import DebeziumTopics

            topics = DebeziumTopics(context, lakehouse)
        ended = Run(context, topics, LakehouseTarget(context, lakehouse)).once()
        others = kept_out.count()
    summary = ended.summary(LakehouseTarget.sink, time.monotonic() - started)
    return replace(summary, kept_out=others)


def _views(context: RunContext, log: MillraceTopics) -> RunSummary:
    context.settings.require_views()
    from sinks.views.run import run_views

    return run_views(context, log)


def _search(context: RunContext, log: MillraceTopics) -> RunSummary:
    from sinks.search.run import run_search

    return run_search(context, log)


SINKS: Final[Mapping[SinkName, RunSink]] = {
    "lakehouse": run_lakehouse,
    "views": _views,
    "search": _search,
}
"""In the order of a turn: views and joined documents are made of the lakehouse's newest cut."""


def _result(run: RunSink, context: RunContext, log: MillraceTopics) -> RunSummary | MillraceError:
    """What a run did, or why it could do nothing."""
    try:
        context.while_waiting()
        try:
            return run(context, log)
        except (SparkEndedError, BusyError):
            raise
        except Exception:
            context.while_waiting()  # whose jobs are cancelled isn't in error
            raise
    except MillraceError as error:
        return error
    except Exception as error:
        of_disk = DiskError.of(error) if isinstance(error, OSError) else None
        if (of_machine := of_disk or run_error(error)) is None:
            raise
        return of_machine


def _require_readable(settings: Settings, sinks: Collection[str]) -> None:
    """Refuse topics that these sinks can't read, and a configuration without sinks."""
    if not sinks:
        raise ConfigError(
            "no sink is configured",
            where="[lakehouse], [search]",
            remedy="add one of these sections",
        )
    lakehouse = settings.lakehouse
    if lakehouse is None or lakehouse.topics_written_by == "millrace":
        _require_own(settings)
        return
    if "search" in sinks:
        raise ConfigError(
            "indexes need Millrace's own log, but Debezium wrote these topics",
            where="[search]",
            remedy="remove the section, or run `millrace merge lakehouse`",
        )
    _require_debeziums(settings)


def _require_debeziums(settings: Settings) -> None:
    """Refuse options with which a connector's topics can't be read. Raise ConfigError."""
    from sinks.debezium.described import connector_options

    connector_options(settings)
    if settings.transforms:
        raise ConfigError(
            "topics of a real Debezium need its own envelope, which transforms can change",
            where="[transforms]",
            remedy="let the connector write envelopes to topics named by prefix, schema and table",
        )


def _require_own(settings: Settings) -> None:
    """Refuse a log that merges can't read: they need native JSON, with its position header."""
    changed = settings.foreign_forms
    if settings.capture.toast_unavailable == "placeholder":
        changed.append("toast.unavailable")
    if changed:
        raise ConfigError(
            "merges read Millrace's own form of the log, which these options change:"
            f" {', '.join(changed)}",
            where="the configuration",
            remedy="capture again without them, with another topic.prefix and another slot; or, for"
            ' topics of a real Debezium, set topics_written_by = "debezium" in [lakehouse]',
        )
