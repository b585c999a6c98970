"""Requests to the brokers about topics → answers, in bounded waits.

Requests for all topics are sent at once. Each topic's answer is a value or a KafkaError.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from itertools import chain, groupby, repeat
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)
from confluent_kafka.cimpl import NewTopic

from cdc.errors import MillraceError
from cdc.kafka import options
from cdc.kafka.errors import COMPLAINTS_MAX, is_access, is_passing, log_error, reason, telling
from cdc.kafka.portions import exists, is_too_early, portions

ATTEMPT_S: Final = 0.5
METADATA_S: Final = 1.0
REACH_S: Final = 10.0
"""Limit of a broker's first answer. Without one, the configuration may be wrong."""
PATIENCE_S: Final = 60.0
"""How long brokers that answered before may be unavailable, or between two leaders."""
REQUEST_S: Final = 60.0
_READ_S: Final = 20.0
"""The same for a request that changes nothing and can be repeated ..."""
_FIRST_READ_S: Final = 4.0
"""... soon at first: a request to a leader that dies waits for its return."""
EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_RETRY_S: Final = 0.05
_RETRY_S_MAX: Final = 0.4
_PARTITION_S: Final = 0.02
"""How long a busy broker takes for a new partition's files. Then it shows the next topics."""
_AGAIN_S: Final = 0.2

Request = TypeVar("Request", bound=Hashable)


class TopicDescription(NamedTuple):
    """A topic as brokers describe it. A new topic of the same name has another ``id``.

    ``replicas`` is the number of brokers with a copy, for the partition that has the fewest.
    """

    partitions: int
    config: Mapping[str, str]
    id: str = ""
    replicas: int = 0


def do_nothing() -> None:
    """Do nothing during a wait, where nothing else needs attention."""


class LogAdmin:
    """One admin client, whose waits call ``while_waiting`` at least twice a second.

    It serves one run or session. Its patience with a topic's brokers covers all its requests.
    """

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self.servers = kafka_options.get("bootstrap.servers", "")
        self._while_waiting = while_waiting
        self._complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        self._has_connected = False
        self._given_up: dict[str, KafkaError] = {}
        """Topics without an answer so far. This client sends no further requests for them."""
        config: dict[str, Any] = {
            **options.admin_options(kafka_options),
            "error_cb": self._complaints.append,
        }
        self._client = options.client(AdminClient, config, kafka_options)

    def partitions(self) -> dict[str, int]:
        """Return all topics that we may see, with their partition counts."""
        topics = self._metadata().topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def broker_count(self) -> int:
        """Return the number of brokers that the cluster has now."""
        return len(self._metadata().brokers)

    def _metadata(self) -> ClusterMetadata:
        """Return the metadata. Raise after REACH_S, or PATIENCE_S if a broker answered before."""
        began = time.monotonic()
        while True:
            try:
                cluster = self._client.list_topics(timeout=METADATA_S)
            except KafkaException as exception:
                error = reason(exception)
            else:
                self._has_connected = True
                return cluster
            self._client.poll(0)
            self._while_waiting()
            error = telling(error, self._complaints) or error
            patience_s = PATIENCE_S if self._has_connected else REACH_S
            if is_access(error) or time.monotonic() - began > patience_s:
                where = f"bootstrap.servers {self.servers}"
                doing = "asking the brokers" if self._has_connected else "connecting to Kafka"
                raise log_error(error, doing, where, connected=self._has_connected)
            time.sleep(_RETRY_S)

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Return partitions and settings of those of the topics that exist."""
        existing = self._metadata().topics
        wanted = [name for name in names if name in existing]
        answers = self._topic_configs(wanted)
        for name, answer in answers.items():
            if isinstance(answer, KafkaError):
                raise log_error(answer, "reading a topic's settings", f"topic {name}")
        return {
            name: TopicDescription(len(topic.partitions), config, replicas=_replicas(topic))
            for name, config in answers.items()
            if not isinstance(config, KafkaError)
            for topic in [existing[name]]
        }

    def details(
        self, names: list[str], failed: dict[str, MillraceError]
    ) -> dict[str, TopicDescription]:
        """Return existing topics, each described alone. ``failed`` gets those without an answer."""
        topics = self._described(names, failed)
        details: dict[str, TopicDescription] = {}
        for name, config in self._topic_configs(list(topics)).items():
            if isinstance(config, KafkaError):
                failed[name] = log_error(config, "reading a topic's settings", f"topic {name}")
            else:
                id_, partitions = str(topics[name].topic_id), len(topics[name].partitions)
                details[name] = TopicDescription(partitions, config, id_)
        return details

    def ids(self, names: Iterable[str], failed: dict[str, MillraceError]) -> dict[str, str]:
        """Return Kafka's ids of topics. ``failed`` gets those without an answer."""
        topics = self._described(list(names), failed)
        return {name: str(topic.topic_id) for name, topic in topics.items()}

    def _described(self, names: list[str], failed: dict[str, MillraceError]) -> dict[str, Any]:
        def ask(names: list[str], timeout_s: float) -> Mapping[str, Future[Any]]:
            topics = TopicCollection(names)
            return self._client.describe_topics(topics, request_timeout=timeout_s)

        answers = self._ask(ask, names, timeout_s=_READ_S)
        for name, answer in answers.items():
            if isinstance(answer, KafkaError):
                failed[name] = log_error(answer, "describing a topic", f"topic {name}")
        return {n: topic for n, topic in answers.items() if not isinstance(topic, KafkaError)}

    def cluster_id(self) -> str:
        """Return the cluster's own name."""
        return str(self._metadata().cluster_id)

    def _topic_configs(self, names: list[str]) -> dict[str, dict[str, str] | KafkaError]:
        if not names:
            return {}

        def ask(names: list[str], timeout_s: float) -> dict[str, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            futures = self._client.describe_configs(resources, request_timeout=timeout_s)
            return {resource.name: future for resource, future in futures.items()}

        answers = self._ask(ask, names, timeout_s=_READ_S)
        return {
            name: answer
            if isinstance(answer, KafkaError)
            else {key: str(entry.value) for key, entry in answer.items()}
            for name, answer in answers.items()
        }

    def broker_settings(self) -> dict[str, dict[str, str]]:
        """Return each broker's settings by its id, except those that we may not read."""
        ids = [str(broker) for broker in self._metadata().brokers]
        settings: dict[str, dict[str, str]] = {}
        for broker in ids:  # a request addresses one broker
            resource = ConfigResource(ResourceType.BROKER, broker)
            futures = self._client.describe_configs([resource], request_timeout=REQUEST_S)
            answer = self._settle(futures)[resource]
            if not isinstance(answer, KafkaError):
                settings[broker] = {key: str(entry.value) for key, entry in answer.items()}
        return settings

    def create(
        self, topics: Iterable[NewTopic], unclear: set[str] | None = None
    ) -> dict[str, KafkaError]:
        """Create topics, and return the failures by topic.

        ``unclear`` gets topics that existed at a repeated request: the first request has created
        them, or another program did before the second.

        The controller knows a topic before the brokers do. This waits for the brokers, so that the
        next request sees the topic.
        """
        failed: dict[str, KafkaError] = {}
        made: set[str] = set()
        patience_s = REACH_S
        for request in portions(topics):
            answers = self._create(request, set() if unclear is None else unclear)
            failed |= {n: answer for n, answer in answers.items() if isinstance(answer, KafkaError)}
            made |= answers.keys()
            patience_s += _PARTITION_S * sum(topic.num_partitions for topic in request)
        self._await(lambda cluster: len(made - failed.keys() - cluster.topics.keys()), patience_s)
        return failed

    def _create(self, request: list[NewTopic], unclear: set[str]) -> dict[str, Any]:
        """Wait for the controller: a new broker answers before its controller counts it.

        Until then no broker is named as the controller, and the client checks only from time to
        time.
        """
        topics = {topic.topic: topic for topic in request}
        asked = Counter[str]()

        def ask(names: list[str], timeout_s: float) -> Mapping[str, Future[Any]]:
            self._await(lambda cluster: int(cluster.controller_id < 0))
            asked.update(names)
            wanted = [topics[name] for name in names]
            return self._client.create_topics(wanted, request_timeout=timeout_s)

        answers = self._ask(ask, topics, is_too_early)
        exist = {name for name, answer in answers.items() if asked[name] > 1 and exists(answer)}
        unclear |= exist
        return answers | dict.fromkeys(exist)

    def delete(self, names: Iterable[str]) -> dict[str, KafkaError]:
        """Delete topics, wait until the brokers know, and return the failures by topic."""
        wanted = list(names)
        if not wanted:
            return {}

        def ask(names: list[str], timeout_s: float) -> Mapping[str, Future[Any]]:
            return self._client.delete_topics(names, request_timeout=timeout_s)

        answers = self._ask(ask, wanted)
        failed = {n: answer for n, answer in answers.items() if isinstance(answer, KafkaError)}
        self._await(lambda cluster: len((set(wanted) - failed.keys()) & cluster.topics.keys()))
        return failed

    def _await(
        self, lacking: Callable[[ClusterMetadata], int], patience_s: float | None = None
    ) -> None:
        """Wait until nothing is lacking, or no less for ``patience_s`` (default: REACH_S)."""
        patience_s = REACH_S if patience_s is None else patience_s
        deadline, before, retry_s = time.monotonic() + patience_s, math.inf, _RETRY_S
        while (left := lacking(self._metadata())) and time.monotonic() < deadline:
            if left < before:
                deadline, before = time.monotonic() + patience_s, left
            self._while_waiting()
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_S_MAX)

    def committed_end(self, topic: str) -> int:
        """Return the offset up to which a topic's first partition has no open transaction."""
        return self.list_offsets([(topic, 0)], LATEST, IsolationLevel.READ_COMMITTED)[topic, 0]

    def offsets(self, partitions: Mapping[str, int]) -> dict[str, list[tuple[int, int]]]:
        """Return first and end offset (uncommitted records included) of each topic's partitions."""
        pairs = [(name, index) for name, count in partitions.items() for index in range(count)]
        first = self.list_offsets(pairs, EARLIEST)
        end = self.list_offsets(pairs, LATEST)
        return {
            name: [(first[name, index], end[name, index]) for index in range(count)]
            for name, count in partitions.items()
        }

    def list_offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        failed: dict[str, MillraceError] | None = None,
    ) -> dict[tuple[str, int], int]:
        """Return offsets by topic and partition.

        ``failed``, if given, gets topics without an answer.

        -1: no record is as late as the time of the ``spec``.
        """
        # One partition without a leader fails a whole request. So later each topic has its own.
        divisions: Iterator[Callable[[object], str]] = chain([lambda _: ""], repeat(_topic_of))

        def ask(
            wanted: list[TopicPartition], timeout_s: float
        ) -> Mapping[TopicPartition, Future[Any]]:
            futures: dict[TopicPartition, Future[Any]] = {}
            for _, request in groupby(wanted, next(divisions)):
                specs = dict.fromkeys(request, spec)
                futures |= self._client.list_offsets(
                    specs, isolation_level=isolation, request_timeout=timeout_s
                )
            return futures

        wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
        offsets: dict[tuple[str, int], int] = {}
        for partition, answer in self._ask(ask, wanted, timeout_s=_READ_S).items():
            if not isinstance(answer, KafkaError):
                offsets[partition.topic, partition.partition] = answer.offset
                continue
            error = log_error(answer, "reading a topic's offsets", f"topic {partition.topic}")
            if failed is None:
                raise error
            failed[partition.topic] = error
        return offsets

    def _ask(
        self,
        ask: Callable[[list[Request], float], Mapping[Request, Future[Any]]],
        requests: Iterable[Request],
        is_to_repeat: Callable[[KafkaError], bool] = is_passing,
        timeout_s: float = REQUEST_S,
    ) -> dict[Request, Any]:
        """Return all answers. Repeat requests with transient failures for PATIENCE_S.

        Failures of credentials or rights aren't repeated.
        """
        deadline = time.monotonic() + PATIENCE_S
        wanted = list(requests)
        answers: dict[Request, Any] = {
            each: self._given_up[_topic_of(each)]
            for each in wanted
            if _topic_of(each) in self._given_up
        }
        left = [each for each in wanted if each not in answers]
        self._complaints.clear()  # they belong to another request
        if left and not self._has_connected:  # some requests wait for a leader until they time out
            with suppress(KafkaException):
                self._client.list_topics(timeout=METADATA_S)
                self._has_connected = True
        attempt_s = timeout_s if timeout_s > _READ_S else _FIRST_READ_S
        while left:
            wait_s = max(METADATA_S, min(attempt_s, deadline - time.monotonic()))
            attempt_s = min(2 * attempt_s, timeout_s)
            answers |= self._settle(ask(left, wait_s), wait_s)
            left = [each for each in left if isinstance(answers[each], KafkaError)]
            left = [each for each in left if is_to_repeat(answers[each])]
            self._client.poll(0)
            refusal = next(filter(is_access, self._complaints), None)
            if left and refusal is not None:
                return answers | dict.fromkeys(left, refusal)
            if time.monotonic() > deadline:
                self._given_up |= {_topic_of(each): answers[each] for each in left}
                break
            if left:
                self._while_waiting()
                time.sleep(_AGAIN_S)
                with suppress(KafkaException):  # otherwise it busily waits for a dead controller
                    self._client.list_topics(timeout=METADATA_S)
        return answers

    def _settle(
        self, futures: Mapping[Request, Future[Any]], timeout_s: float = REQUEST_S
    ) -> dict[Request, Any]:
        """Wait for all answers. An error or a missing answer is returned as a KafkaError."""
        deadline = time.monotonic() + timeout_s + ATTEMPT_S
        answers: dict[Request, Any] = {}
        for request, future in futures.items():
            while request not in answers:
                left_s = deadline - time.monotonic()
                try:
                    answers[request] = future.result(timeout=max(0.0, min(ATTEMPT_S, left_s)))
                except FutureTimeoutError:
                    self._while_waiting()
                    if left_s <= 0:
                        answers[request] = KafkaError(KafkaError.REQUEST_TIMED_OUT)
                except KafkaException as exception:
                    answers[request] = reason(exception)
        return answers


def _topic_of(request: object) -> str:
    return request.topic if isinstance(request, TopicPartition) else str(request)


def _replicas(topic: TopicMetadata) -> int:
    return min((len(each.replicas) for each in topic.partitions.values()), default=0)
