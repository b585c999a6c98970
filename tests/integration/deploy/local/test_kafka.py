"""The local Kafka broker: restarts, crashes, pauses, and the listener with TLS and passwords."""

import logging
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.local.certificates import Certificates
from deploy.local.kafka import Kafka, Security

pytestmark = pytest.mark.kafka

Options = dict[str, str]


def create_topic(options: Options, topic: str) -> None:
    admin = AdminClient({**options})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)


def produce(options: Options, topic: str, *values: bytes) -> None:
    producer = Producer({**options, "message.timeout.ms": 30_000})
    failures: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=report)
    assert producer.flush(30) == 0
    assert not failures


def consume(options: Options, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**options, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=30)
    consumer.close()
    return [message.value() for message in messages]


def refusals(options: Options, expected: int) -> set[int]:
    """Connect, and collect the codes of the errors that librdkafka reports, up to that one."""
    codes: set[int] = set()
    producer = Producer(
        {**options, "error_cb": lambda error: codes.add(error.code())},
        logger=logging.getLogger(__name__),
    )
    deadline = time.monotonic() + 10
    while expected not in codes and time.monotonic() < deadline:
        producer.poll(0.1)
    return codes


@pytest.mark.proof
def test_restart_pause_and_crash_keep_port_and_data(server_folder: Path) -> None:
    broker = Kafka(server_folder).start()
    options = broker.client_options()
    create_topic(options, "t")
    produce(options, "t", b"1")
    broker.restart()
    assert broker.client_options() == options
    produce(options, "t", b"2")
    broker.pause()
    with pytest.raises(KafkaException):
        AdminClient({**options}).list_topics(timeout=1)
    broker.resume()
    produce(options, "t", b"3")
    broker.kill()
    broker.start()
    assert consume(options, "t", 3) == [b"1", b"2", b"3"]
    broker.stop()


@pytest.mark.proof
def test_sasl_ssl_takes_the_right_password_only(server_folder: Path) -> None:
    """Our own clients do so in tests/integration/cdc/kafka/test_security.py."""
    certificates = Certificates.create(server_folder / "certificates")
    broker = Kafka(server_folder, security=Security(certificates, "PLAIN")).start()
    options = broker.client_options()
    assert options["security.protocol"] == "SASL_SSL"
    create_topic(options, "t")
    produce(options, "t", b"secret")
    assert consume(options, "t", 1) == [b"secret"]
    assert consume({"bootstrap.servers": broker.bootstrap_servers}, "t", 1) == [b"secret"]
    assert KafkaError._AUTHENTICATION in refusals(
        {**options, "sasl.password": "wrong"}, KafkaError._AUTHENTICATION
    )
    other = Certificates.create(server_folder / "other")
    assert KafkaError._SSL in refusals(
        {**options, "ssl.ca.location": str(other.authority)}, KafkaError._SSL
    )
    broker.stop()
