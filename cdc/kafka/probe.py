"""Brokers → their settings and our rights, in short waits, without a change.

The brokers' lists of authorized operations show our rights, and so do requests that only validate
topics. Transactions use an id of the probe's own, so no writer is fenced. The protocol doesn't have
a broker's release: librdkafka's log lines about its requests show it.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from cdc.kafka import options
from cdc.kafka.admin import TopicDescription
from cdc.kafka.errors import (
    COMPLAINTS_MAX,
    is_access,
    log_error,
    option_error,
    reason,
    telling,
)
from cdc.kafka.portions import portions

REACH_S: Final = 4.0
"""Limit of a broker's first answer ..."""
ANSWER_S: Final = 4.0
"""... and of each later request."""
_VERSIONS_S: Final = 0.5
"""How long the client's log lines may take."""
SUFFIX: Final = "-check"
"""Appended to the daemon's transactional.id: an id that fences no writer."""
_VERSIONS: Final = re.compile(r"ApiKey (\w+) \(\d+\) Versions \d+\.\.(\d+)")
_RELEASES: Final = (
    ("Fetch", 18, "4.1"),
    ("Fetch", 17, "3.9"),
    ("Fetch", 15, "3.5"),
    ("Fetch", 13, "3.1"),
    ("Fetch", 12, "2.7"),
    ("InitProducerId", 3, "2.5"),
)
"""A request, its newest version, and the release of Kafka that has it."""
RELEASE_MIN: Final = "2.5"
"""The first release whose transactions a producer can continue after an error."""


class TopicRights(NamedTuple):
    """A topic as brokers describe it, and our authorized operations."""

    description: TopicDescription
    operations: frozenset[str]


class _Versions(logging.Handler):
    """Collects the client's log lines about the requests that a broker has."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Record the version, the lowest of all brokers that have answered."""
        if match := _VERSIONS.search(record.getMessage()):
            version = int(match[2])
            self.newest[match[1]] = min(version, self.newest.get(match[1], version))


class ClusterProbe:
    """One admin client with little patience."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self.servers = kafka.get("bootstrap.servers", "")
        self._complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        self._versions = _Versions()
        logger = logging.Logger("cdc.kafka.probe", logging.DEBUG)  # noqa: LOG001 (it is this one's)
        logger.addHandler(self._versions)
        config: dict[str, Any] = {
            **options.admin_options(kafka),
            "debug": "feature",
            "error_cb": self._complaints.append,
            "logger": logger,
        }
        try:
            self._client = AdminClient(config)
        except KafkaException as exception:
            raise option_error(reason(exception), kafka) from None

    def cluster(self) -> ClusterMetadata:
        """Return the brokers and topics. Raise a log's error after REACH_S."""
        began = time.monotonic()
        while True:
            left_s = REACH_S - (time.monotonic() - began)
            try:
                return self._client.list_topics(timeout=max(0.1, min(1.0, left_s)))
            except KafkaException as exception:
                self._client.poll(0)
                error = telling(reason(exception), self._complaints) or reason(exception)
            if is_access(error) or left_s <= 0:
                where = f"bootstrap.servers {self.servers}"
                raise log_error(error, "connecting to Kafka", where, connected=False)

    def release(self) -> str:
        """Return the minimum release of the brokers. Empty: they are older than all known ones."""
        until = time.monotonic() + _VERSIONS_S
        while not self._versions.newest and time.monotonic() < until:
            self._client.poll(_VERSIONS_S / 5)
        newest = self._versions.newest
        return next((name for key, at, name in _RELEASES if newest.get(key, -1) >= at), "")

    @property
    def knows_versions(self) -> bool:
        """Whether the client has logged the brokers' requests."""
        return bool(self._versions.newest)

    def operations(self) -> frozenset[str] | KafkaError:
        """Return the authorized operations on the cluster."""
        future = self._client.describe_cluster(
            include_authorized_operations=True, request_timeout=ANSWER_S
        )
        answer = _settled({"": future})[""]
        return answer if isinstance(answer, KafkaError) else _names(answer.authorized_operations)

    def broker_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str] | KafkaError]:
        """Return each broker's settings, from that broker itself, or an error without an answer."""
        asked: dict[int, Future[Any]] = {}
        for broker in brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            futures = self._client.describe_configs([resource], request_timeout=ANSWER_S)
            asked[broker] = futures[resource]
        return {broker: _config(answer) for broker, answer in _settled(asked).items()}

    def topics(self, names: list[str]) -> dict[str, TopicRights | KafkaError]:
        """Return the existing topics by name, or an error for one without a description."""
        if not names:
            return {}
        described = _settled(
            self._client.describe_topics(
                TopicCollection(names),
                include_authorized_operations=True,
                request_timeout=ANSWER_S,
            )
        )
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        futures = self._client.describe_configs(list(resources.values()), request_timeout=ANSWER_S)
        configs = _settled(futures)
        topics: dict[str, TopicRights | KafkaError] = {}
        for name, topic in described.items():
            config = _config(configs[resources[name]])
            if isinstance(config, KafkaError):
                topics[name] = config
                continue
            if isinstance(topic, KafkaError):
                topics[name] = topic
                continue
            replicas = min((len(each.replicas) for each in topic.partitions), default=0)
            description = TopicDescription(len(topic.partitions), config, replicas=replicas)
            topics[name] = TopicRights(description, _names(topic.authorized_operations))
        return topics

    def refusals(self, topics: Iterable[NewTopic]) -> dict[str, KafkaError]:
        """Return why brokers would refuse to create topics, from requests that only validate."""
        answers: dict[str, Any] = {}
        for request in portions(topics):
            futures = self._client.create_topics(
                request, validate_only=True, request_timeout=ANSWER_S
            )
            answers |= _settled(futures)
        return {name: error for name, error in answers.items() if isinstance(error, KafkaError)}

    def transaction_refusal(self, transactional_id: str) -> KafkaError | None:
        """Return why brokers would refuse transactions under an id. Writes nothing."""
        config: dict[str, Any] = dict(options.producer_options(self._kafka, transactional_id))
        producer = options.client(Producer, config, self._kafka)
        try:
            producer.init_transactions(ANSWER_S)
        except KafkaException as exception:
            return reason(exception)
        return None


def _settled(futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    """Return all answers. An error or a missing answer is returned as a KafkaError."""
    until = time.monotonic() + ANSWER_S + 0.5
    answers: dict[Any, Any] = {}
    for request, future in futures.items():
        try:
            answers[request] = future.result(timeout=max(0.0, until - time.monotonic()))
        except FutureTimeoutError:
            answers[request] = KafkaError(KafkaError.REQUEST_TIMED_OUT)
        except KafkaException as exception:
            answers[request] = reason(exception)
    return answers


def _config(answer: Any) -> dict[str, str] | KafkaError:
    if isinstance(answer, KafkaError):
        return answer
    return {name: str(entry.value) for name, entry in answer.items()}


def _names(operations: Iterable[Any] | None) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())
