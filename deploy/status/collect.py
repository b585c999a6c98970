"""Settings → the state of all parts: the source, the log, the daemon and each sink.

It only reads, and each part has two seconds. A part that doesn't answer is *unknown*, with the
reason, and the rest is still shown. Everything that needs an action is a problem.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from cdc.errors import LogAccessError, LogFormatError, LogMissingError, MillraceError
from cdc.kafka.admin import LogAdmin
from cdc.kafka.grants import grants
from cdc.lines import Lines
from cdc.log.following import read_dead_letters
from cdc.log.offsets import log_missing
from cdc.log.reports import ReportReader, Reports
from cdc.log.state import StateReader
from cdc.log.tails import LastRecord, PartitionKey, last_records
from cdc.postgres.checks.standby import why_unread
from cdc.records.reports import RunReport
from cdc.records.schema import TableSchema
from cdc.records.state import Progress, TableState
from cdc.records.topics import (
    dead_letter_topic,
    progress_topic,
    schema_topic,
    status_topic,
    table_topic,
    tables_of,
)
from cdc.settings import Settings
from deploy.asking import Questions
from deploy.status.lag import Lag, SinkLags, capture_lag, missing_from, worst
from deploy.status.model import Status
from deploy.status.patience import PATIENCE_S, give_up_after, only_answer
from deploy.status.problems import found_problems, unanswered
from deploy.status.sinks import SinkStatus, lakehouse_status, search_status
from deploy.status.source import SourceStatus, source_status
from deploy.status.tables import table_status
from deploy.status.views import views_status
from sinks.run.summary import SINK_NAMES, SinkName
from sinks.run.wanted import CapturedTables, configured_sinks, names_in_log, newest_schemas

_SINKS_WAIT_S: Final = 1.0
"""How long a sink's own state waits for the log's. The rest is for the sink itself."""
_ASK_AGAIN: Final = (
    "run this again; if it repeats, find out what delays the brokers: millrace check"
)
_READING: Final = ("DESCRIBE", "READ")
_MAKING: Final = ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")


class LogAnswer(NamedTuple):
    """The log's state, and the reports in it."""

    progress: Progress | None
    states: list[TableState]
    dead_letters: dict[str, int]
    captured: CapturedTables
    reports: Reports
    last: dict[PartitionKey, LastRecord]
    unreported: MillraceError | None = None
    """Why runs' reports are unknown."""


def collect(settings: Settings) -> Status:
    """Ask all parts side by side."""
    if settings.search is not None:
        with suppress(ImportError):  # the user of it reports the error
            import sinks.search.progress  # noqa: F401 (the import's time isn't the server's)
    asked: Questions[Any] = Questions(PATIENCE_S)
    if settings.captures_itself:
        asked.ask("source", lambda: [source_status(settings)])
    asked.ask("log", lambda: [_log(settings)])
    if settings.standby is not None:
        asked.ask("standby", lambda: [(why_unread(settings),)])
    for sink in configured_sinks(settings):
        asked.ask(sink, partial(_sinks, asked, settings, sink))
    names = ("source", "log", "standby", *SINK_NAMES)
    given = {name: only_answer(asked, name) for name in names}
    problems = unanswered(given)
    answers = {
        name: None if isinstance(each, MillraceError) else each for name, each in given.items()
    }
    status = _status(settings, answers)
    status.problems = [*problems, *found_problems(settings, status, answers)]
    return status


def _log(settings: Settings) -> LogAnswer:
    """Return everything about the log. Raise a log's error if it can't be read."""
    kafka, prefix = settings.kafka, settings.capture.topic_prefix
    wait = give_up_after()
    reader = StateReader(kafka, wait)
    slot = settings.capture.slot_name
    progress = reader.last_progress(progress_topic(prefix), slot)
    if progress is None and settings.captures_itself:
        raise log_missing(prefix, slot, kafka.get("bootstrap.servers", ""))
    states = reader.read_all(table_topic(prefix), TableState)
    dead_letters = read_dead_letters(kafka, dead_letter_topic(prefix), wait)
    reports, unreported = _reports(settings, ReportReader(kafka, prefix, wait))
    if progress is not None:
        reports = reports.of_log(progress.log)
    return LogAnswer(
        progress,
        states,
        Counter(each.table for each in dead_letters.values() if each.outcome is None),
        _captured(settings, reader, states, wait),
        reports,
        last_records(kafka, missing_from(reports), wait),
        unreported,
    )


def _captured(
    settings: Settings,
    reader: StateReader,
    states: Iterable[TableState],
    wait: Callable[[], None],
) -> CapturedTables:
    """Return the tables that a sink can use. A real Debezium's are its topics' names."""
    prefix = settings.capture.topic_prefix
    if settings.lakehouse is None and settings.search is None:
        return CapturedTables.of((), {})
    if settings.captures_itself:
        newest = newest_schemas(reader.read_all(schema_topic(prefix), TableSchema))
        return CapturedTables.of(names_in_log(states), newest)
    admin = LogAdmin(settings.kafka, wait)
    partitions = admin.partitions()
    tables = tables_of(partitions, prefix, settings.capture.captures)
    offsets = admin.offsets({topic: partitions[topic] for topic in tables.values()})
    # A topic that never had a record makes no table.
    written = [name for name, topic in tables.items() if any(end for _, end in offsets[topic])]
    return CapturedTables.of(map(str, written), {})


def _reports(settings: Settings, reader: ReportReader) -> tuple[Reports, MillraceError | None]:
    """Return runs' reports, or why they are unknown: they need a topic that the daemon creates."""
    prefix, servers = settings.capture.topic_prefix, settings.kafka.get("bootstrap.servers", "")
    name = status_topic(prefix)
    try:
        if reader.has_topic() or not settings.captures_itself:  # merges create it in this case
            return reader.read(), None
    except LogAccessError as error:
        allow = grants(servers, prefix, [name], _READING)
        return Reports(), LogAccessError(error.what, where=error.where, remedy=allow)
    except LogFormatError as error:  # a newer Millrace writes reports
        return Reports(), error
    missing = LogMissingError(
        f"no run can report: the topic {name} is missing; the daemon creates it when it starts",
        where=f"bootstrap.servers {servers}",
        remedy=Lines(
            "restart the daemon; if its log says that it lacks the right to create the topic,"
            f" {grants(servers, prefix, [name], _MAKING)}"
        ),
    )
    return Reports(), missing


def _sinks(asked: Questions[Any], settings: Settings, name: SinkName) -> list[SinkStatus | None]:
    """Return a sink's own state once the log has answered.

    Without the log, some of it is missing.
    """
    log = only_answer(asked, "log", _SINKS_WAIT_S)
    if isinstance(log, LogAnswer):
        return [_sink_beside(settings, name, log)]
    nothing = LogAnswer(None, [], {}, CapturedTables.of((), {}), Reports(), {})
    sink = _sink_beside(settings, name, nothing)
    return [None if sink is None else sink.model_copy(update={"expected": None})]


def _sink_beside(settings: Settings, name: SinkName, log: LogAnswer) -> SinkStatus | None:
    """Return a sink's own state, combined with the log's."""
    if name == "views":
        return views_status(settings, log.reports.of_sink(name))
    if name == "search":
        return search_status(settings, log.progress, log.states, log.captured)
    reported = [each.table for each in log.reports.of_sink(name)]
    return lakehouse_status(settings, log.progress, log.states, log.captured, reported)


def _status(settings: Settings, answers: dict[str, Any]) -> Status:
    source: SourceStatus | None = answers["source"]
    log: LogAnswer | None = answers["log"]
    status = Status(
        slot=source.slot if source else None, is_captured=source.is_captured if source else None
    )
    of_sinks = [answers[name] for name in SINK_NAMES]
    status.sinks = [sink for sink in of_sinks if sink is not None]
    if log is None:
        why = Lag(unknown="the log wasn't read")
        lags = {"sink_lag": why, "lag": why}
        status.sinks = [sink.model_copy(update=lags) for sink in status.sinks]
        return status
    now_ms = time.time_ns() // 1_000_000
    rows = source.rows if source else {}
    status.tables = [table_status(state, now_ms, rows.get(str(state.name))) for state in log.states]
    status.dead_letters = log.dead_letters
    status.daemon = log.reports.daemons.get(settings.capture.slot_name)
    if (progress := log.progress) is not None:
        status.position = str(progress.position.commit_lsn)
        status.epoch, status.timeline = progress.position.epoch, progress.timeline
        status.events = progress.events
    status.capture_lag = _capture_lag(settings, source, log)
    by_sink = SinkLags(log.reports, log.last)
    status.sinks = [_with_lags(sink, status.capture_lag, log, by_sink) for sink in status.sinks]
    return status


def _capture_lag(settings: Settings, source: SourceStatus | None, log: LogAnswer) -> Lag:
    if not settings.captures_itself:
        return Lag(unknown="a real Debezium captures the source, and doesn't report its lag")
    slot = source.slot if source is not None else None
    return capture_lag(
        log.progress,
        settings.capture.heartbeat_source_interval_ms / 1_000,
        streams=slot is not None and slot.active,
        waiting_bytes=slot.lag_bytes if slot is not None else None,
    )


def _with_lags(sink: SinkStatus, capture: Lag, log: LogAnswer, lags: SinkLags) -> SinkStatus:
    """Return a sink with its reported state."""
    reports = log.reports
    tables = {report.table: lags.of(report) for report in reports.of_sink(sink.sink)}
    last = reports.ended.get((sink.sink, "merge"))
    sink_lag = sink.sink_lag
    if last is not None:
        late = Lag(unknown="the log answered too late", remedy=_ASK_AGAIN)
        missing = sink.expected
        sink_lag = late if missing is None else worst(_with_missing(tables, missing, log.states))
    if sink.is_read and last is not None and last.run == sink.run:
        # Only the run knows about joined documents, and about indexes that are being loaded.
        sink = sink.model_copy(update={"failed": {**last.failed, **sink.failed}})
    if not sink.is_read and last is not None:
        reported = {"run": last.run, "tables": last.tables, "failed": last.failed}
        cut = str(last.cut.commit_lsn) if last.cut is not None else None
        sink = sink.model_copy(update={**reported, "cut": cut})
    if sink.is_read and sink.run < (newest := _newest_run(reports, sink, last)):
        what = f"its reports are of run {newest}, but its state is of run {sink.run}"
        sink_lag = Lag(unknown=f"{what}: it was created again since")
    return sink.model_copy(
        update={
            "table_lags": tables,
            "sink_lag": sink_lag,
            "lag": sink_lag + capture,
            "running": reports.running.get((sink.sink, "merge")),
            "last_run": last,
            "verified": reports.ended.get((sink.sink, "verify")),
        }
    )


def _newest_run(reports: Reports, sink: SinkStatus, last: RunReport | None) -> int:
    """Return the sink's newest reported run. Joined documents have the lakehouse's numbers."""
    own = [table.run for table in reports.of_sink(sink.sink) if not table.made_of]
    return max([*own, last.run if last is not None else 0])


def _with_missing(
    tables: Mapping[str, Lag], expected: Mapping[str, Collection[str]], states: Iterable[TableState]
) -> Iterable[Lag]:
    """Yield the lags of all tables, and of expected ones that no run has created yet."""
    yield from tables.values()
    gone = {str(state.name) for state in states if state.gone_ms}
    for name, sources in expected.items():
        is_gone = bool(sources) and gone.issuperset(sources)
        if name not in tables and not is_gone:
            yield Lag(unknown=f"no run has loaded {name} yet")
