"""Options of clients that read the log: librdkafka must accept them."""

import io
import logging

import pytest
from confluent_kafka import Consumer

from cdc.errors import ConfigError
from cdc.kafka.options import LOGGER, follower_options, reader_options


@pytest.mark.parametrize("largest", [1_000_000, 150_000_000, 1_000_000_000])
def test_readers_take_records_as_large_as_writers_may_send(largest: int) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": str(largest)}
    Consumer(reader_options(options)).close()
    Consumer(follower_options(options)).close()


def test_a_reader_says_nothing_of_a_producers_options(capfd: pytest.CaptureFixture[str]) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "linger.ms": "5", "compression.type": "lz4"}
    Consumer(reader_options(options), logger=LOGGER).close()
    assert capfd.readouterr() == ("", "")


def test_a_coordinator_that_nobody_needs_is_no_news() -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    LOGGER.addHandler(handler)
    try:
        for broker in ("GroupCoordinator", "127.0.0.1:9092/1"):
            LOGGER.error("GONE [millrace#consumer-1] [thrd:%s]: %s: Connect failed", broker, broker)
    finally:
        LOGGER.removeHandler(handler)
    assert said.getvalue() == "Kafka: 127.0.0.1:9092/1: Connect failed\n"


def test_what_a_reader_rests_on_is_nobodys_to_choose() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "isolation.level": "read_uncommitted"}
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        reader_options(options)


def test_who_follows_a_topic_asks_seldom_while_nothing_comes() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1"}
    wait = "fetch.wait.max.ms"
    assert int(reader_options(options)[wait]) < 20 < int(follower_options(options)[wait])
    assert follower_options({**options, wait: "100"})[wait] == "100"
