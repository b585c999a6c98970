"""Logical messages of a role that can only connect → a daemon that continues unchanged."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from cdc.records.topics import message_topic
from deploy.local.kafka import Kafka
from deploy.local.processes import Process
from tests.fixtures.pipeline import RunningPipeline, read_log
from tests.fixtures.source import Conninfo, run
from tests.integration.cdc.stream.test_memory import largest

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
LARGE_BYTES = 120_000_000
OWN = ("millrace.watermark", "millrace.ddl", "millrace.dead-letters", "millrace.heartbeat")


@pytest.fixture
def stranger(database: Conninfo) -> Iterator[Conninfo]:
    """How somebody connects who has no right of their own."""
    name, password = f"stranger_{secrets.token_hex(4)}", secrets.token_hex(8)
    run(database, f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    yield {**database, "user": name, "password": password}
    run(database, f"DROP ROLE {name}")


def emit(who: Conninfo, prefix: str, content: str, *, transactional: bool = False) -> None:
    """Write a message; ``content`` is SQL."""
    run(who, f"SELECT pg_logical_emit_message({transactional}, {prefix}, {content})")


def messages(made: RunningPipeline, kafka: Kafka) -> list[dict[str, str]]:
    topic = message_topic(made.settings.capture.topic_prefix)
    log = read_log(kafka.client_options(), {topic: made.settings.log.topic_partitions})
    return [record.value["message"] for record in log if record.value]


def check_goes_on(made: RunningPipeline, database: Conninfo, daemon: Process, row: int) -> None:
    run(database, f"INSERT INTO t VALUES ({row})")
    made.wait_until_logged(made.wal_end(), daemon)


def test_no_message_with_a_prefix_of_ours_stops_the_daemon(
    pipeline: MakePipeline, database: Conninfo, stranger: Conninfo
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made = pipeline()
    daemon = made.catch_up()
    for transactional in (False, True):
        for prefix in OWN:
            for content in (r"'\xff'::bytea", "''", "'{}'", "repeat('x', 2000000)"):
                emit(stranger, f"'{prefix}'", content, transactional=transactional)
    emit(stranger, "repeat('p', 5000)", "'x'")
    check_goes_on(made, database, daemon, 1)
    daemon.kill()  # the next one may be sent all of it again
    assert made.stop(made.catch_up()) == 0
    assert [record.key for record in made.log() if record.key] == ['{"id":1}']


@pytest.mark.proof
@pytest.mark.parametrize(
    "transactional",
    [False, pytest.param(True, marks=pytest.mark.proof)],
    ids=["at once", "in a transaction"],
)
def test_a_large_message_that_nobody_asked_for_costs_no_memory(
    pipeline: MakePipeline, database: Conninfo, stranger: Conninfo, *, transactional: bool
) -> None:
    """In a transaction it is sent before that has ended: it is larger than PostgreSQL keeps."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made = pipeline()
    daemon = made.catch_up()
    before = largest(daemon)
    for prefix in ("'large'", "'millrace.watermark'", f"repeat('p', {LARGE_BYTES})"):
        content = "'x'" if "repeat" in prefix else f"repeat('x', {LARGE_BYTES})"
        emit(stranger, prefix, content, transactional=transactional)
    check_goes_on(made, database, daemon, 1)
    assert largest(daemon) - before < LARGE_BYTES // 8
    assert made.stop(daemon) == 0


def test_a_wanted_message_that_no_topic_takes_is_left_out(
    pipeline: MakePipeline, database: Conninfo, kafka: Kafka
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made = pipeline(**{"message.prefix.include.list": "app"})
    daemon = made.catch_up()
    for prefix, size in (("app", 30_000_000), ("app", 3), ("app", 30_000_000), ("other", 3)):
        emit(database, f"'{prefix}'", f"repeat('x', {size})")
    emit(database, "'app'", "repeat('y', 3)", transactional=True)
    check_goes_on(made, database, daemon, 1)
    assert made.stop(daemon) == 0
    assert messages(made, kafka) == [
        {"prefix": "app", "content": "eHh4"},
        {"prefix": "app", "content": "eXl5"},
    ]
    assert "a logical message is left out" in daemon.command.log.read_text()
