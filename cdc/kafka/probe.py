"""Brokers → what they say of themselves and of our rights, in short waits, changing nothing.

What may be asked for is found by the operations that brokers say are authorized, and by asking for
topics that are validated only; transactions by an id of the probe's own, so that nobody is fenced.
A broker's release is nowhere in the protocol: what librdkafka logs of its requests tells it.
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
"""How long a broker may take to answer for the first time ..."""
ANSWER_S: Final = 4.0
"""... and each request later."""
_VERSIONS_S: Final = 0.5
"""How long what the client logs may take to come."""
SUFFIX: Final = "-check"
"""Behind the daemon's own transactional.id: an id that fences nobody."""
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
"""The first one whose transactions a producer goes on from by itself."""


class TopicRights(NamedTuple):
    """A topic as brokers describe it, and the operations on it that are authorized."""

    description: TopicDescription
    operations: frozenset[str]


class _Versions(logging.Handler):
    """Takes what the client logs of the requests that a broker knows."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Note the version, the lowest of all brokers that have answered."""
        if found := _VERSIONS.search(record.getMessage()):
            version = int(found[2])
            self.newest[found[1]] = min(version, self.newest.get(found[1], version))


class ClusterProbe:
    """One admin client that gives up soon."""

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
        """The brokers and topics; raises a log's error after REACH_S."""
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
        """The release that the brokers' requests are of, or newer; empty: they are older."""
        until = time.monotonic() + _VERSIONS_S
        while not self._versions.newest and time.monotonic() < until:
            self._client.poll(_VERSIONS_S / 5)
        newest = self._versions.newest
        return next((name for key, at, name in _RELEASES if newest.get(key, -1) >= at), "")

    @property
    def knows_versions(self) -> bool:
        """Whether the client has said which requests brokers know."""
        return bool(self._versions.newest)

    def operations(self) -> frozenset[str] | KafkaError:
        """What is authorized on the cluster."""
        future = self._client.describe_cluster(
            include_authorized_operations=True, request_timeout=ANSWER_S
        )
        answer = _settled({"": future})[""]
        return answer if isinstance(answer, KafkaError) else _names(answer.authorized_operations)

    def broker_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str] | KafkaError]:
        """Each broker's settings, asked of that broker itself; an error where it doesn't answer."""
        asked: dict[int, Future[Any]] = {}
        for broker in brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            futures = self._client.describe_configs([resource], request_timeout=ANSWER_S)
            asked[broker] = futures[resource]
        return {broker: _config(answer) for broker, answer in _settled(asked).items()}

    def topics(self, names: list[str]) -> dict[str, TopicRights | KafkaError]:
        """Those topics, which exist; an error where one isn't described."""
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
        """Why brokers wouldn't make topics, which they are asked to validate only."""
        answers: dict[str, Any] = {}
        for request in portions(topics):
            futures = self._client.create_topics(
                request, validate_only=True, request_timeout=ANSWER_S
            )
            answers |= _settled(futures)
        return {name: error for name, error in answers.items() if isinstance(error, KafkaError)}

    def transaction_refusal(self, transactional_id: str) -> KafkaError | None:
        """Why brokers wouldn't begin transactions under an id; nothing is written by it."""
        config: dict[str, Any] = dict(options.producer_options(self._kafka, transactional_id))
        producer = options.client(Producer, config, self._kafka)
        try:
            producer.init_transactions(ANSWER_S)
        except KafkaException as exception:
            return reason(exception)
        return None


def _settled(futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    """All answers; one that is an error, or doesn't come, is returned as one."""
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
