"""Signals by a Kafka topic, the reports on snapshots, and the command that asks a daemon."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner, Result

from cdc.errors import ExitCode, MillraceError
from cdc.faults import VARIABLE, FaultPoint
from cdc.kafka.admin import LATEST, LogAdmin
from cdc.kafka.signal_topic import Followed, Follower
from cdc.kafka.topics import LogTopics
from deploy.commands.app import app
from deploy.commands.snapshot_watch import is_captured
from deploy.local.kafka import Kafka
from deploy.local.processes import Command
from tests.fixtures.pipeline import RunningPipeline, read_log
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_signals import SIGNALS, begin, of, requests, wait_until_read
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]

SCHEMA = """
    CREATE TABLE dbz_signal (id varchar(64) PRIMARY KEY, type varchar(32), data varchar(2048));
    CREATE TABLE item (id int PRIMARY KEY, v text);
    CREATE TABLE pair (a int, b text, v text, PRIMARY KEY (a, b));
    INSERT INTO item SELECT i, 'item ' || i FROM generate_series(1, 1000) i;
    INSERT INTO pair SELECT i / 3, 'b' || i, 'pair ' || i FROM generate_series(1, 300) i;
    ANALYZE
"""
ITEM = {"data-collections": ["public.item"]}


@pytest.fixture
def source(database: Conninfo) -> Conninfo:
    """A database with a signal table and two others, whose rows the catalog can guess."""
    run(database, *SCHEMA.split(";"))
    return database


def topic(made: RunningPipeline) -> str:
    """The topic of signals."""
    return made.settings.capture.signal_topic


def produce(options: Mapping[str, str], name: str, records: Sequence[tuple[bytes, bytes]]) -> None:
    """Write to the first partition of a topic."""
    producer = Producer(dict(options))
    for key, value in records:
        producer.produce(name, value, key, 0)
    assert producer.flush(60) == 0


def tell(made: RunningPipeline, *signals: tuple[str, object]) -> None:
    """Send signals (type and data), whose ids are their types."""
    name = made.settings.capture.topic_prefix.encode()
    texts = [json.dumps({"id": kind, "type": kind, "data": data}) for kind, data in signals]
    produce(made.settings.kafka, topic(made), [(name, text.encode()) for text in texts])


def command(made: RunningPipeline, *words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [*words, "--config", str(made.config)])


def take(follower: Follower, records: int) -> list[Followed]:
    """So many records, as they come."""
    found: list[Followed] = []
    deadline = time.monotonic() + 60
    while len(found) < records:
        assert time.monotonic() < deadline, found
        found += follower.take()
        time.sleep(0.02)
    return found


def told(made: RunningPipeline) -> list[dict[str, Any]]:
    """The notifications."""
    name = made.settings.capture.notification_sink_topic_name or ""
    assert LogAdmin(made.settings.kafka).partitions()[name] == 1
    return [one.value for one in read_log(made.settings.kafka, {name: 1}) if one.value]


def wait_until_followed(made: RunningPipeline, signals: int) -> None:
    """Wait until the log says that so many records of the topic were followed."""

    def is_followed() -> bool:
        progress = made.progress()
        return progress is not None and progress.signal_offset(topic(made)).offset == signals

    wait_for(is_followed)


def test_a_signal_is_followed_once_whenever_the_daemon_dies(
    pipeline: MakePipeline, source: Conninfo, topic_prefix: str
) -> None:
    sink = {
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": f"{topic_prefix}.told",
        "signal.enabled.channels": "source,kafka",
    }
    made = pipeline(**SIGNALS, **sink)
    LogTopics(made.settings).ensure_state_topics()
    other = json.dumps({"type": "execute-snapshot", "data": ITEM}).encode()
    produce(made.settings.kafka, topic(made), [(b"another", other), (topic_prefix.encode(), b"{")])
    tell(made, ("no-such-signal", {}), ("execute-snapshot", ITEM))
    for point in (FaultPoint.BATCH_WRITTEN, FaultPoint.BATCH_COMMITTED):
        assert made.start({VARIABLE: f"{point}:2"}).wait(60) != 0
    run(source, "INSERT INTO pair VALUES (0, 'streamed')")
    daemon = begin(made)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    keys = [one.key for one in of(made, "item")]
    assert len(keys) == len(set(keys)) == 1000
    incremental = [one for one in told(made) if one["aggregate_type"] == "Incremental Snapshot"]
    assert {one["id"] for one in incremental} == {"execute-snapshot"}
    types = Counter(one["type"] for one in incremental)
    assert types.pop("IN_PROGRESS") >= 20
    assert types == {"STARTED": 1, "TABLE_SCAN_COMPLETED": 1, "COMPLETED": 1}
    done = next(one for one in incremental if one["type"] == "TABLE_SCAN_COMPLETED")
    assert done["additional_data"] == {
        "connector_name": topic_prefix,
        "data_collections": "public.item",
        "scanned_collection": "public.item",
        "total_rows_scanned": "1000",
        "status": "SUCCEEDED",
    }
    progress = made.progress()
    assert progress is not None
    assert progress.signal_offset(topic(made)).offset == 4


def test_a_channel_that_is_switched_on_and_off_again_follows_nothing_twice(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    """Each topic of signals has its own offset, which the log keeps while it isn't followed."""
    counts = []
    for followed, channels in ((1, "source"), (1, "source,kafka"), (2, "source")):
        made = pipeline(**SIGNALS, **{"signal.enabled.channels": channels})
        LogTopics(made.settings).ensure_state_topics()
        tell(made, ("execute-snapshot", ITEM) if followed == 1 else ("log", {"message": "x"}))
        daemon = begin(made)
        wait_until_followed(made, followed)
        wait_until_read(made, daemon)
        assert made.stop(daemon) == 0
        counts.append(len(of(made, "item")))
    assert counts == [1_000, 2_000, 2_000]


@pytest.mark.proof
def test_what_was_asked_for_behind_a_reset_is_read_after_it(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**SIGNALS)
    LogTopics(made.settings).ensure_state_topics()
    condition = {"data-collection": "public.item", "filter": "id <= 10"}
    reset = ("execute-snapshot", {**ITEM, "reset": True})
    tell(made, reset, ("execute-snapshot", {**ITEM, "additional-conditions": [condition]}))
    daemon = begin(made)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    records = of(made, "item")
    (truncated,) = {record.position for record in records if record.op == "t"}
    behind = [record for record in records if record.op == "r" and record.position > truncated]
    read = Counter(one.value["after"]["id"] for one in behind if one.value)
    assert len(read) == 1000
    assert {key for key, times in read.items() if times == 2} == {*range(1, 11)}


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    kafka: Kafka, topic_prefix: str
) -> None:
    options = kafka.client_options()
    topics = LogAdmin(options)
    assert not topics.create([NewTopic(topic_prefix, 1, 1)])
    produce(options, topic_prefix, [(b"a", b"1"), (b"a", b"2")])
    running = Follower(options, topic_prefix, offset=1)
    first = take(running, 1)
    assert [one.value for one in first] == [b"2"]
    assert not topics.delete([topic_prefix])
    assert not topics.create([NewTopic(topic_prefix, 1, 1)])
    # The old partition may still take records, which would go with it.
    wait_for(lambda: topics.list_offsets([(topic_prefix, 0)], LATEST)[topic_prefix, 0] == 0)
    produce(options, topic_prefix, [(b"a", b"3"), (b"a", b"4"), (b"a", b"5")])
    assert [one.value for one in take(running, 3)] == [b"3", b"4", b"5"]
    running.close()
    place = first[0].topic_id, first[0].offset + 1
    later = Follower(options, topic_prefix, *place)
    again = take(later, 3)
    later.close()
    assert [one.value for one in again] == [b"3", b"4", b"5"]
    assert {one.topic_id for one in again}.isdisjoint({first[0].topic_id})
    behind = Follower(options, topic_prefix, again[0].topic_id, 9)
    assert take(behind, 3) == again
    behind.close()


@pytest.mark.usefixtures("here")
def test_the_first_snapshot_is_told_of(
    pipeline: MakePipeline, source: Conninfo, topic_prefix: str
) -> None:
    made = pipeline(
        **{
            "table.include.list": "public.item,public.pair",
            "notification.enabled.channels": "sink,log",
            "notification.sink.topic.name": f"{topic_prefix}.told",
        }
    )
    assert command(made, "snapshot").exit_code == ExitCode.OK
    assert told(made)[0]["type"] == "STARTED"
    assert Counter(one["type"] for one in told(made)) == {
        "STARTED": 1,
        "IN_PROGRESS": 2,
        "TABLE_SCAN_COMPLETED": 2,
        "COMPLETED": 1,
    }
    assert sorted(
        one["additional_data"]["total_rows_scanned"]
        for one in told(made)
        if one["type"] == "TABLE_SCAN_COMPLETED"
    ) == ["1000", "300"]


@pytest.mark.proof
@pytest.mark.usefixtures("here")
def test_the_command_asks_the_daemon_that_runs(pipeline: MakePipeline, source: Conninfo) -> None:
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    planned = command(made, "snapshot", "public.item", "--dry-run")
    assert re.search(r"public\.item.* 1,000 .* daemon", planned.stdout), planned
    for words, code in (
        (("public.unknown",), ExitCode.CONFIG),
        (("public.item", "--where", "no_such_column = 1"), ExitCode.CONFIG),
        (("public.item", "--where", "id > 990 -- the newest"), ExitCode.OK),
        (("public.item", "--where", "1 / (id - id) = 1"), ExitCode.NOT_DONE),
        ((), ExitCode.OK),
    ):
        ended = command(made, "snapshot", *words)
        error = ended.exception
        found = error.exit_code if isinstance(error, MillraceError) else ended.exit_code
        assert found == code, (words, ended)
        assert ("division by zero" in str(error)) == (code == ExitCode.NOT_DONE)
    assert len(of(made, "item")) == 10

    # Not watching any more ends nothing; what is paused is gone on with.
    tell(made, ("execute-snapshot", {"data-collections": ["public.pair"]}), ("pause-snapshot", {}))
    shown = Command(
        "millrace snapshot",
        (sys.executable, "-m", "millrace", "snapshot", "public.item", "--config", str(made.config)),
        made.folder / "snapshot.log",
    )
    watching = shown.start()
    made.daemons.append(watching)
    deadline = time.monotonic() + 60
    while len(requests(made)) < 2:
        assert time.monotonic() < deadline, shown.log_end()
        time.sleep(0.05)
    os.kill(watching.pid, signal.SIGINT)
    assert watching.wait(60) == ExitCode.INTERRUPTED
    assert "the daemon continues" in shown.log_end()
    status = made.status()
    paused = [one["paused"] for table in status["tables"] for one in table["requests"]]
    assert paused == [True, True]
    (size,) = (one["bytes_total"] for one in status["tables"] if one["table"] == "public.item")
    assert 0 < size < 1 << 20, made.tables()
    assert command(made, "snapshot", "--resume").exit_code == ExitCode.OK
    assert made.stop(daemon) == 0
    assert [len(of(made, table)) for table in ("item", "pair")] == [1010, 300]


@pytest.mark.usefixtures("here", "source")
def test_the_command_asks_a_daemon_that_starts_at_the_same_time(
    pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(**{**SIGNALS, "slot.max.retries": 1})
    daemon = begin(made)
    looks = [False]
    monkeypatch.setattr(
        "deploy.commands.snapshot.is_captured",
        lambda settings: looks.pop() if looks else is_captured(settings),
    )
    assert command(made, "snapshot", "public.item").exit_code == ExitCode.OK
    assert not looks
    assert made.stop(daemon) == 0
    assert len(of(made, "item")) == 1000


@pytest.mark.proof
@pytest.mark.usefixtures("here")
def test_the_command_goes_on_with_a_paused_first_read_and_knows_its_own(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    own = {"publication.name": "own", "publication.autocreate.mode": "disabled"}
    captured = {"snapshot.mode": "initial", "table.include.list": "public.(item|late)"}
    run(source, "CREATE PUBLICATION own FOR TABLE item")
    made = pipeline(**{**SIGNALS, **captured, **own})
    assert command(made, "snapshot").exit_code == ExitCode.OK
    run(source, "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1), (2)")
    run(source, "ALTER PUBLICATION own ADD TABLE late")
    tell(made, ("pause-snapshot", {}))
    daemon = made.start()
    deadline = time.monotonic() + 60
    while not any(request.paused for request in requests(made)):
        assert time.monotonic() < deadline, requests(made)
        time.sleep(0.05)
    assert [request.kind for request in requests(made)] == ["initial"]
    assert command(made, "snapshot", "--resume", "public.late").exit_code == ExitCode.OK
    assert len(of(made, "late")) == 2

    # Others that end right behind one that is watched don't hide how that has ended.
    late = {"data-collections": ["public.late"]}
    tell(made, ("execute-snapshot", late), ("pause-snapshot", {}))
    words = (sys.executable, "-m", "millrace", "snapshot", "public.late", "--config")
    shown = Command("snapshot", (*words, str(made.config)), made.folder / "snapshot.log")
    watching = shown.start()
    made.daemons.append(watching)
    for count in (2, 4):
        while len(requests(made)) < count:
            assert time.monotonic() < deadline + 30, shown.log_end()
            time.sleep(0.05)
        if count == 2:
            tell(made, ("execute-snapshot", late), ("execute-snapshot", late))
    tell(made, ("resume-snapshot", {}))
    assert watching.wait(60) == ExitCode.OK, shown.log_end()
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert len(of(made, "late")) == 5 * 2
