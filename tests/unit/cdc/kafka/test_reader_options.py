"""Options of clients that read the log: librdkafka has to take them."""

import pytest
from confluent_kafka import Consumer

from cdc.kafka.options import reader_options


@pytest.mark.parametrize("largest", [1_000_000, 150_000_000, 1_000_000_000])
def test_readers_take_records_as_large_as_writers_may_send(largest: int) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": str(largest)}
    Consumer(reader_options(options)).close()
