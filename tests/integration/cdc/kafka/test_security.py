"""TLS and passwords, right and wrong → a log that works, or one clear error without a secret.

tests/integration/cdc/postgres/test_tls.py runs the daemon itself over TLS, and has it refused.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.errors import LogAccessError
from cdc.kafka.producer import LogWriter
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress
from cdc.records.state import progress_record
from cdc.records.topics import progress_topic
from deploy.local.certificates import Certificates
from deploy.local.kafka import Kafka, Security
from deploy.local.processes import run_folder
from tests.integration.cdc.kafka.test_producer import nothing
from tests.integration.cdc.kafka.test_topics import captured, settings
from tests.integration.cdc.log.test_state import progress

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka-security"),
    pytest.mark.proof,
    pytest.mark.native("its servers speak TLS"),
]


@pytest.fixture(scope="module")
def secure() -> Iterator[Kafka]:
    """A broker that wants TLS and a password."""
    folder = run_folder("millrace-secure-")
    certificates = Certificates.create(folder)
    broker = Kafka(folder, security=Security(certificates)).start()
    yield broker
    broker.stop()
    shutil.rmtree(folder, ignore_errors=True)


def wrong(kafka: Kafka, tmp_path: Path, what: str) -> dict[str, str]:
    options = kafka.client_options()
    if what == "password":
        return options | {"sasl.password": "verysecret"}
    other = Certificates.create(tmp_path)
    return options | {"ssl.ca.location": str(other.authority)}


def test_log_is_written_and_read_over_tls(secure: Kafka, topic_prefix: str) -> None:
    options = secure.client_options()
    topics = LogTopics(settings(options, topic_prefix))
    topics.ensure_state_topics()
    topics.ensure_data_topics([], [captured("a")])
    writer = LogWriter(options, topic_prefix, nothing)
    writer.open()
    writer.write([progress_record(topic_prefix, progress(5))])
    writer.commit()
    writer.close()
    settled = LogWriter(options, topic_prefix, nothing)
    settled.open()  # a commit has returned before all brokers know
    settled.close()
    assert last_progress(options, progress_topic(topic_prefix), "s") == progress(5)


@pytest.mark.parametrize("what", ["password", "authority"])
def test_wrong_credentials_are_an_access_error_at_once(
    secure: Kafka, topic_prefix: str, tmp_path: Path, what: str
) -> None:
    options = wrong(secure, tmp_path, what)
    writer = LogWriter(options, topic_prefix, nothing)
    topics = LogTopics(settings(options, topic_prefix))
    attempts: tuple[Callable[[], object], ...] = (
        topics.check_reachable,
        writer.open,
        lambda: last_progress(options, progress_topic(topic_prefix), "s"),
    )
    for attempt in attempts:
        started = time.monotonic()
        with pytest.raises(LogAccessError) as raised:
            attempt()
        assert time.monotonic() - started < 9  # a broker that is away is waited for longer
        assert "verysecret" not in str(raised.value)
    writer.close()
