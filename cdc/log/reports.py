"""Reports of runs, tables and the daemon ⇄ their topics: one writer, one reader.

A reporter never waits. A thread connects, creates missing topics, and writes. A failure is reported
once, and costs nothing else.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.errors import LogError, LogMissingError, LogUnreachableError, MillraceError
from cdc.kafka import options
from cdc.kafka.admin import do_nothing
from cdc.kafka.errors import log_error, reason
from cdc.kafka.topics import LogTopics
from cdc.lines import Lines
from cdc.log.following import NewMessages
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.log.state import FIRST_STEP, STEP_GROWTH
from cdc.records.reports import (
    GONE_S,
    RENEW_S,
    DaemonReport,
    RunReport,
    StateReport,
    TableReport,
    report_kind,
)
from cdc.records.state import parse_state
from cdc.records.topics import runs_topic, status_topic
from cdc.settings import Settings

CLOSE_S: Final = 2.0
"""How long the end of a process waits for its last reports."""
_FLUSH_S: Final = 0.05
_AGAIN_S: Final = 60.0
"""After a failure, the next attempt is this much later."""
_PRODUCER: Final = {"linger.ms": "0", "message.timeout.ms": "30000"}


@dataclass(slots=True)
class Reports:
    """The newest reports.

    Runs by sink and job: the last that ended, and active ones. Tables by sink and name, daemons by
    slot.
    """

    ended: dict[tuple[str, str], RunReport] = field(default_factory=dict)
    running: dict[tuple[str, str], RunReport] = field(default_factory=dict)
    tables: dict[tuple[str, str], TableReport] = field(default_factory=dict)
    daemons: dict[str, DaemonReport] = field(default_factory=dict)

    def take(self, report: StateReport) -> None:
        """Add a report, unless one of a newer run exists."""
        match report:
            case RunReport():
                runs, name = self._runs(report), (report.sink, report.job)
                before_run = runs.get(name)
                if before_run is None or _is_newer_run(report, before_run):
                    runs[name] = report
            case TableReport():
                table = report.sink, report.table
                before = self.tables.get(table)
                if before is None or _is_newer_table(report, before):
                    self.tables[table] = report
            case DaemonReport():
                self.daemons[report.slot] = report

    def _runs(self, report: RunReport) -> dict[tuple[str, str], RunReport]:
        return self.running if report.ended_ms is None else self.ended

    def drop(self, key: bytes) -> None:
        """Remove the report with a tombstone's key."""
        match json.loads(key):
            case {"slot": slot}:
                self.daemons.pop(slot, None)
            case {"running": sink, "job": job}:
                self.running.pop((sink, job), None)
            case {"sink": sink, "job": job}:
                self.ended.pop((sink, job), None)
            case {"sink": sink, "table": table}:
                self.tables.pop((sink, table), None)

    def has(self, report: TableReport) -> bool:
        """Whether a table's report has nothing new."""
        before = self.tables.get((report.sink, report.table))
        if before is None:
            return False
        # A run without news of a table doesn't have the commit time of its cut.
        committed_us = report.cut_ts_us or before.cut_ts_us
        same = {"reported_ms": before.reported_ms, "cut_ts_us": committed_us}
        return before == report.model_copy(update=same)

    def of_log(self, log: str) -> "Reports":
        """Return the reports of one log: offsets and cuts of different logs don't compare."""
        return Reports(
            {name: run for name, run in self.ended.items() if run.log in {"", log}},
            self.running,
            {name: table for name, table in self.tables.items() if table.log == log},
            self.daemons,
        )

    def of_sink(self, sink: str) -> list[TableReport]:
        """Return the tables of a sink."""
        return [report for (name, _), report in self.tables.items() if name == sink]

    def sources(self, table: TableReport) -> dict[str, TableReport | None]:
        """Return all sources of a table, also through views. None: no report of it exists.

        Derived tables have ``views.<name>`` as a view's name.
        """
        sources: dict[str, TableReport | None] = {}
        names = [*table.made_of]
        while names:
            if (name := names.pop()) not in sources:
                view = "views", name.removeprefix("views.")
                source = self.tables.get(("lakehouse", name)) or self.tables.get(view)
                names += source.made_of if source is not None else ()
                sources[name] = source
        return sources


def _is_newer_run(report: RunReport, before: RunReport) -> bool:
    """Whether a run is newer, even if its machine's clock is behind."""
    return report.run > before.run or report.started_ms >= before.started_ms


def _is_newer_table(report: TableReport, before: TableReport) -> bool:
    if report.reported_ms >= before.reported_ms:
        return True
    is_further = report.cut is not None and (before.cut is None or report.cut > before.cut)
    return is_further and report.log == before.log


class ReportReader:
    """Reads the newest reports. A repeated read fetches those written since."""

    def __init__(
        self,
        kafka_options: Mapping[str, str],
        prefix: str,
        while_waiting: Callable[[], None] = do_nothing,
    ) -> None:
        self._client = StateConsumer(kafka_options, while_waiting)
        self._topic = status_topic(prefix)
        self._runs_topic = runs_topic(prefix)
        self._messages = NewMessages(self._client, self._topic)
        self._reports = Reports()

    def has_topic(self) -> bool:
        """Whether the topic exists."""
        return PartitionReader(self._client, self._topic).exists()

    def read(self) -> Reports:
        """Return all current reports. Without the topic, there are none."""
        for message in self._messages.read(self._begin_again):
            key, value = message.key() or b"", message.value()
            kind = report_kind(key)
            if kind is None:
                continue
            if value is None:
                self._reports.drop(key)
            else:
                self._reports.take(parse_state(kind, value, self._topic))
        return self._reports

    def _begin_again(self) -> None:
        self._reports = Reports()

    def last_runs(self, count: int) -> list[RunReport]:
        """Return the reports of the runs that ended last, the newest first."""
        reader = PartitionReader(self._client, self._runs_topic)
        low, stop = reader.bounds()
        runs: list[RunReport] = []
        step = max(FIRST_STEP, count)
        while stop > low and len(runs) < count:
            start = max(low, stop - step)
            values = [message.value() for message in reader.read(start, stop)]
            older = [parse_state(RunReport, value, self._runs_topic) for value in values if value]
            runs += reversed(older)
            stop, step = start, step * STEP_GROWTH
        return runs[:count]


class _Queued(NamedTuple):
    """A report to write, with all tables of its sink if the run knows them.

    None: the active run isn't reported any longer.
    """

    report: RunReport | DaemonReport | None
    tables: tuple[TableReport, ...] | None = None
    listed: bool = False


class ReportWriter:
    """Writes reports in the background. A context manager that ends with its block.

    ``warn`` gets a line with the reason if none are written.
    """

    def __init__(self, settings: Settings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._closing = threading.Event()
        self._running: RunReport | None = None
        self._topics: _ReportTopics | None = None
        self._again_at = 0.0
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._closing.set()
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def put(
        self,
        report: RunReport | DaemonReport,
        tables: Iterable[TableReport] | None = None,
        *,
        listed: bool = False,
    ) -> None:
        """Queue a report, without a wait.

        A run may bring all tables of its sink, and an ended run can be ``listed``.
        """
        self._queue.put(_Queued(report, None if tables is None else tuple(tables), listed))

    def leave(self) -> None:
        """Stop reporting the active run: another process continues and reports it."""
        self._queue.put(_Queued(None))

    def _run(self) -> None:
        with suppress(Exception):  # nothing is lost yet, and the first report says why
            self._open()  # while the run continues
        while True:
            messages = self._taken()
            is_last = messages[-1:] == [None]
            try:
                if (topics := self._open()) is not None:
                    self._write(topics, [each for each in messages if each is not None])
                    topics.flush(CLOSE_S if is_last else _FLUSH_S)
            except MillraceError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 (a report that fails ends no run)
                self._fail(LogError(f"internal error: {type(error).__name__}"))
            if is_last:
                return

    def _open(self) -> "_ReportTopics | None":
        """Return the topics, unless a recent attempt failed."""
        if self._topics is None and time.monotonic() >= self._again_at:
            self._topics = _ReportTopics(self._settings, self._give_up)
        return self._topics

    def _taken(self) -> list[_Queued | None]:
        """Return the queued reports, or nothing after a while. None ends the queue."""
        messages: list[_Queued | None] = []
        with suppress(Empty):
            messages.append(self._queue.get(timeout=RENEW_S))
            while True:
                messages.append(self._queue.get_nowait())
        return messages

    def _write(self, topics: "_ReportTopics", messages: list[_Queued]) -> None:
        """Write the newest of each state. An active run repeats its report."""
        states: dict[bytes, RunReport | DaemonReport | None] = {}
        for message in messages:
            report = message.report
            if report is None:
                states.pop(self._running.key if self._running is not None else b"", None)
                self._running = None
                continue
            states[report.key] = report
            if isinstance(report, RunReport):
                is_running = report.ended_ms is None
                self._running = report if is_running else None
                if not is_running:
                    states[report.running_key] = None
                topics.write_tables(report.sink, message.tables)
                if message.listed:
                    topics.add_run(report)
        if not messages and self._running is not None:
            states[self._running.key] = self._running
        deadline_ms = time.time_ns() // 1_000_000 + int(GONE_S * 1_000)
        for key, state in states.items():
            is_running = isinstance(state, RunReport) and state.ended_ms is None
            renewed = {"deadline_ms": deadline_ms}
            topics.write(key, state.model_copy(update=renewed) if state and is_running else state)

    def _give_up(self) -> None:
        """Raise when the writer closes, while brokers don't answer."""
        if self._closing.is_set():
            raise LogUnreachableError("the brokers don't answer")

    def _fail(self, error: MillraceError) -> None:
        self._topics = None
        self._again_at = time.monotonic() + _AGAIN_S
        warning = Lines(f"warning: the runs can't report to the log: {error}")
        is_told_by_run = isinstance(error, LogUnreachableError | LogMissingError)
        if not is_told_by_run and warning not in self._warned:
            self._warned.add(warning)
            with suppress(OSError):  # nothing reads the output
                self._warn(warning)


class _ReportTopics:
    """The topics, until an error. Raises a log's error if they aren't available."""

    def __init__(self, settings: Settings, while_waiting: Callable[[], None]) -> None:
        kafka, prefix = settings.kafka, settings.capture.topic_prefix
        self._status, self._runs = status_topic(prefix), runs_topic(prefix)
        self._refusal: KafkaError | None = None
        ignored: dict[str, Any] = {"error_cb": lambda _error: None}
        config = {**options.producer_options({**kafka, **_PRODUCER}, None), **ignored}
        self._producer = options.client(Producer, config, kafka)  # it connects in the background
        self._reader = ReportReader(kafka, prefix, while_waiting)
        if not self._reader.has_topic():
            if settings.captures_itself:  # the daemon creates them, if this is the log's name
                raise LogMissingError(f"the topic {self._status} is missing")
            LogTopics(settings, while_waiting).ensure_report_topics()
        self._written = self._reader.read()
        self._is_behind = False

    def write(self, key: bytes, report: StateReport | None) -> None:
        """Write a state, or its removal."""
        self._produce(self._status, key, report)

    def write_tables(self, sink: str, tables: Iterable[TableReport] | None) -> None:
        """Write changed tables. Remove those that the sink no longer has.

        None: the run doesn't know its tables.
        """
        if tables is None:
            return
        reports = {report.key: report for report in tables}
        if self._is_behind:  # the topic may have been created again since the run before
            self._written = self._reader.read()
        for report in reports.values():
            if not self._written.has(report):
                self.write(report.key, report)
        for before in self._written.of_sink(sink):
            if before.key not in reports:
                self.write(before.key, None)
        self._is_behind = True

    def add_run(self, report: StateReport) -> None:
        """Add a run to the list."""
        self._produce(self._runs, report.key, report)

    def flush(self, timeout_s: float) -> None:
        """Wait for the brokers for a short time. librdkafka continues on its own."""
        self._producer.flush(timeout_s)
        if (refusal := self._refusal) is not None:
            raise log_error(refusal, "writing", f"topic {self._status}")

    def _produce(self, topic: str, key: bytes, report: StateReport | None) -> None:
        value = None if report is None else report.model_dump_json().encode()
        try:
            self._producer.produce(topic, value, key, 0, on_delivery=self._delivered)
        except KafkaException as error:  # it exceeds the user's message.max.bytes
            raise log_error(reason(error), "writing", f"topic {topic}") from None
        except BufferError:
            raise LogUnreachableError("the brokers refuse further reports") from None

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._refusal = error or self._refusal
