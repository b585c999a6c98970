"""Missing topics → topics that Millrace creates, and records as its own before.

So `drop` can distinguish them from topics that existed before: docs/decisions/0003-state-topics.md.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

from confluent_kafka import KafkaError

from cdc.kafka.admin import LogAdmin
from cdc.kafka.copies import copies_of
from cdc.kafka.errors import log_error
from cdc.kafka.sending import send
from cdc.kafka.topic_settings import STATE_CONFIG, WantedTopic
from cdc.kafka.wanted_topics import new_topic
from cdc.records.made_topics import MadeTopic
from cdc.records.topics import made_topic
from cdc.settings import Settings

EXISTS: Final = "TOPIC_ALREADY_EXISTS"


class TopicMaker:
    """Creates topics of one topic.prefix, and records them."""

    def __init__(
        self, settings: Settings, admin: LogAdmin, while_waiting: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._while_waiting = while_waiting

    @cached_property
    def brokers(self) -> int:
        """The number of the cluster's brokers."""
        return self._admin.broker_count()

    def make(
        self,
        topics: Iterable[WantedTopic],
        config: Mapping[str, str],
        keep_ms: int = 0,
        unclear: set[str] | None = None,
    ) -> dict[str, KafkaError]:
        """Create topics with the configured copies. Return the failures by topic.

        ``unclear`` is that of LogAdmin.create.
        """
        # Brokers that were unavailable at the start may be back.
        copies = copies_of(self._settings.log, max(self.brokers, self._admin.broker_count()))
        new = (new_topic(topic, copies, config, keep_ms) for topic in topics)
        return self._admin.create(new, unclear)

    def write_down(self, names: Iterable[str], *, made: bool = True) -> None:
        """Record in the log which topics we create. The topic of this record is one of them."""
        name = made_topic(self._settings.capture.topic_prefix)
        if name not in self._admin.describe([name]):
            own = WantedTopic(name, 1, "compact", content="state")
            error = self.make([own], STATE_CONFIG).get(name)
            if error is not None and error.name() != EXISTS:  # another program was faster
                raise log_error(error, "creating a topic", f"topic {name}")
        now_ms = time.time_ns() // 1_000_000
        topics = [MadeTopic(topic=name, ts_ms=now_ms) for name in names]
        records = [
            (topic.key, topic.model_dump_json().encode() if made else None) for topic in topics
        ]
        send(self._settings.kafka, name, records, self._while_waiting)
