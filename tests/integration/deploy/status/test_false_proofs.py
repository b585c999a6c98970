"""Reports that prove nothing → a wait that doesn't succeed, and a status that says unknown."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.admin import LogAdmin
from cdc.kafka.sending import send
from cdc.kafka.topics import LogTopics
from cdc.log.reports import ReportReader, ReportWriter
from cdc.records.position import Lsn, Position
from cdc.records.reports import RunReport, TableReport
from cdc.records.state import Progress
from cdc.records.topics import status_topic
from cdc.settings import Settings
from deploy.local.kafka import Kafka
from deploy.status import collect as collecting
from deploy.status.collect import LogAnswer, collect
from deploy.status.model import Status
from deploy.status.shown import Outlook, Watched
from sinks.run.summary import SinkName
from tests.fixtures.pipeline import RunningPipeline, is_delayed
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
NAME: Final = "public.orders"
TIME_S: Final = 3.5
"""Two seconds, and what a busy machine may add."""


@pytest.fixture
def made(pipeline: Any, database: dict[str, str]) -> Iterator[RunningPipeline]:
    """A daemon that streams a table with a key, and one without."""
    run(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE keyless (id int)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
    )
    running: RunningPipeline = pipeline(**{"heartbeat.source.interval.ms": 500})
    daemon = running.catch_up()
    yield running
    running.stop(daemon)


@pytest.fixture
def unused(pipeline: Any) -> Settings:
    """A log that has the topics of reports, and no daemon."""
    settings: Settings = pipeline().settings
    LogTopics(settings).ensure_report_topics()
    return settings


def lacking(settings: Settings, sink: SinkName) -> dict[str, Outlook]:
    """What doesn't show an instant that the log has."""
    return {str(each): each.outlook for each in Watched(settings, (sink,), 10).lacking(Lsn(1))}


def answered(settings: Settings) -> Status:
    """The status once brokers answer in time: the machine may be busy."""
    deadline = time.monotonic() + 20
    while True:
        shown = collect(settings)
        told = is_delayed("\n".join(map(str, shown.problems)))
        if not told or time.monotonic() > deadline:
            return shown


def why_unknown(settings: Settings) -> str:
    """Why the lakehouse's lag is unknown."""
    return answered(settings).sinks[0].sink_lag.unknown


def reported(settings: Settings, *tables: TableReport, sink: str = "lakehouse", **run: Any) -> None:
    """Report a run as merges do."""
    now_ms = time.time_ns() // 1_000_000
    ended = RunReport(sink=sink, started_ms=now_ms, ended_ms=now_ms, exit_code=0)
    with ReportWriter(settings, pytest.fail) as reports:
        reports.put(ended.model_copy(update=run), tables)


def table(progress: Progress, **more: Any) -> TableReport:
    """A table that is behind the log's cut, and lacks nothing of its topic, as it says."""
    made = TableReport(sink="lakehouse", table=NAME, source=NAME, log=progress.log, run=0)
    return made.model_copy(update={"cut": Position(1, Lsn(0), 0), **more})


def with_search(settings: Settings, **options: Any) -> Settings:
    """With search indexes, too, by a server that nobody asks."""
    search = {"url": "http://127.0.0.1:1", **options}
    parts = {name: getattr(settings, name) for name in ("source", "kafka")}
    for name in ("capture", "lakehouse"):
        section = getattr(settings, name)
        parts[name] = section.model_dump(by_alias=True, exclude_unset=True)
    return Settings.model_validate({**parts, "search": search})


def test_reports_that_prove_nothing_show_nothing(made: RunningPipeline) -> None:
    settings, progress = made.settings, made.progress()
    assert progress is not None
    keyless = table(progress, table="public.keyless", source="public.keyless")

    # The first run of all has begun, or has failed, and no index is reported yet.
    searching = with_search(settings)
    reported(searching, sink="search", exit_code=31, error="the log was made again")
    assert lacking(searching, "search") == {f"search, {NAME}: no run has loaded it yet": "later"}

    reported(settings, keyless, table(progress))
    assert lacking(settings, "lakehouse") == {}

    # A table without a key has no history, so nobody waits for one.
    both = settings.require_lakehouse().model_copy(update={"kinds": ("current", "history")})
    histories = settings.model_copy(update={"lakehouse": both})
    history = table(progress, table=f"{NAME}_history")
    assert str(lacking(histories, "lakehouse")).count("no run has loaded it yet") == 1
    reported(histories, keyless, table(progress), history)
    assert lacking(histories, "lakehouse") == {}
    assert "no run has loaded" not in why_unknown(histories)

    # A topic that isn't there, or can't be read, isn't one in which nothing is missing.
    reported(settings, keyless, table(progress, offsets={"nowhere": {0: 1}}))
    assert "its cut is" in str(lacking(settings, "lakehouse"))
    assert "topic nowhere: " in why_unknown(settings)

    # Another log of the same name has other offsets.
    other: dict[str, Any] = {"log": "before", "cut": Position(1, Lsn(1 << 40), 0)}
    reported(settings, keyless, table(progress, **other), **other)
    assert "no run has reported" in str(lacking(settings, "lakehouse"))
    assert "no run has reported" in why_unknown(settings)

    # The lakehouse was removed: its reports are of runs that it doesn't know.
    reported(settings, keyless, table(progress, run=7), log=progress.log, run=7)
    assert "it was created again since" in why_unknown(settings)
    # A first run begins: what was reported before is of another lakehouse.
    with ReportWriter(settings, pytest.fail) as reports:
        reports.put(RunReport(sink="lakehouse", started_ms=time.time_ns() // 1_000_000), [])
    assert "no run has loaded it yet" in str(lacking(settings, "lakehouse"))


@pytest.mark.proof
def test_a_log_that_answers_late_does_not_hide_that_a_table_is_missing(
    made: RunningPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lakehouse is asked without the log's word of which tables there are to be."""
    settings, progress = made.settings, made.progress()
    assert progress is not None
    reported(settings, table(progress), log=progress.log)
    real = collecting._log

    def late(settings: Settings) -> LogAnswer:
        answer = real(settings)
        time.sleep(1.1)
        return answer

    assert "no run has loaded public.keyless yet" in why_unknown(settings)
    monkeypatch.setattr(collecting, "_SINKS_WAIT_S", 0.1)
    monkeypatch.setattr(collecting, "_log", late)
    monkeypatch.setattr(collecting, "PATIENCE_S", 10)
    assert why_unknown(settings) == "the log answered too late"


@pytest.mark.proof
def test_a_topic_of_reports_that_is_made_again_gets_tables_that_have_not_moved(
    made: RunningPipeline, kafka_admin: AdminClient
) -> None:
    """While a merge follows the log: it knows what it has reported to the one before."""
    settings, progress = made.settings, made.progress()
    assert progress is not None
    topic = status_topic(settings.capture.topic_prefix)
    ended = RunReport(sink="lakehouse", started_ms=1, ended_ms=2, exit_code=0, log=progress.log)
    reader = ReportReader(settings.kafka, settings.capture.topic_prefix)

    def tables() -> list[TableReport]:
        deadline = time.monotonic() + 20
        while not (reports := reader.read()).ended and time.monotonic() < deadline:
            time.sleep(0.05)
        return reports.of_sink("lakehouse")

    with ReportWriter(settings, pytest.fail) as reports:
        reports.put(ended, [table(progress)])
        assert len(tables()) == 1
        for future in kafka_admin.delete_topics([topic]).values():
            future.result()
        while reader.has_topic():
            time.sleep(0.05)
        LogTopics(settings).ensure_report_topics()
        while not reader.has_topic():
            time.sleep(0.05)
        assert reader.read().ended == {}
        reports.put(ended, [table(progress)])
        assert len(tables()) == 1


def test_reports_of_a_newer_millrace_hide_nothing_but_the_lags_of_sinks(
    made: RunningPipeline,
) -> None:
    settings, progress = made.settings, made.progress()
    assert progress is not None
    reported(settings, table(progress))
    newer = table(progress).model_copy(update={"format": 2})
    value = newer.model_dump_json(warnings=False).encode()
    send(settings.kafka, status_topic(settings.capture.topic_prefix), [(newer.key, value)])
    assert "no run has reported" in why_unknown(settings)
    shown = answered(settings)
    assert "has format 2, newer than 1" in "\n".join(map(str, shown.problems))
    assert {each.table for each in shown.tables} == {"public.keyless", NAME}


def test_documents_that_fail_and_a_run_that_does_not_come_are_problems(
    made: RunningPipeline,
) -> None:
    """No plan has joined documents, so that the run's report alone tells."""
    now_ms = time.time_ns() // 1_000_000
    failed = {"customer_orders": "it is full\n    → free some space"}
    reported(made.settings, failed=failed, exit_code=31, next_due_ms=now_ms - 600_000)
    shown = "\n".join(map(str, answered(made.settings).problems))
    assert "lakehouse, customer_orders: it is full\n  → free some space" in shown
    assert "lakehouse: its next run was due 10 min ago" in shown
    reported(made.settings, next_due_ms=now_ms)
    assert "was due" not in "\n".join(map(str, answered(made.settings).problems))


def test_a_report_that_kafka_does_not_take_is_a_warning(unused: Settings) -> None:
    """Not the end of the thread, with a traceback."""
    small = {**unused.kafka, "message.max.bytes": "2000"}
    warnings: list[str] = []
    settings = unused.model_copy(update={"kafka": small})
    with ReportWriter(settings, warnings.append) as reports:
        reports.put(RunReport(sink="lakehouse", started_ms=1, error="x" * 3_000))
    assert len(warnings) == 1
    assert "the runs can't report to the log: " in warnings[0]


@contextmanager
def silent_port() -> Iterator[int]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    for each in accepted:
        each.close()


def test_parts_that_accept_and_never_answer_are_unknown_in_time(made: RunningPipeline) -> None:
    with silent_port() as port:
        where = f"127.0.0.1:{port}"
        settings = made.settings
        for part, silent in (
            (
                "the source",
                settings.model_copy(update={"source": {**settings.source, "port": f"{port}"}}),
            ),
            ("the log", settings.model_copy(update={"kafka": {"bootstrap.servers": where}})),
            ("search", with_search(settings, url=f"http://{where}")),
        ):
            began = time.monotonic()
            shown = collect(silent)
            took_s = time.monotonic() - began
            texts = [str(each) for each in shown.problems if each.part == part]
            assert any("unknown, because" in text for text in texts)
            assert shown.sinks[0].lag.seconds is None
            assert took_s < TIME_S


def test_a_real_debeziums_topic_that_no_run_has_brought_is_missing(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """One that never had a record isn't: no table is made of it."""
    settings = Settings.model_validate({
        "preset": "debezium",
        "source": {},
        "capture": {"topic.prefix": topic_prefix, "table.exclude.list": "public.left_out"},
        "kafka": kafka.client_options(),
        "lakehouse": {"path": str(tmp_path), "topics_written_by": "debezium"},
    })  # fmt: skip
    LogTopics(settings).ensure_report_topics()
    topics = [f"{topic_prefix}.public.{name}" for name in ("orders", "empty", "left_out", "later")]
    LogAdmin(settings.kafka).create([NewTopic(name, 1, 1) for name in topics])
    for topic in (topics[0], topics[2]):
        send(settings.kafka, topic, [(b"{}", b"{}")])
    brought = TableReport(
        sink="lakehouse", table=NAME, source=NAME, run=0, offsets={topics[0]: {0: 1}}
    )
    reported(settings, brought)
    assert why_unknown(settings) == ""
    send(settings.kafka, topics[3], [(b"{}", b"{}")])
    assert why_unknown(settings) == "no run has loaded public.later yet"
