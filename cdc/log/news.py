"""The progress topic → a wait that ends when the log has something new.

Every transaction of the daemon's ends with a record in that topic.
"""

import time
from collections.abc import Mapping
from threading import Event
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.kafka.admin import ATTEMPT_S
from cdc.kafka.options import LOGGER, reader_options
from cdc.records.topics import progress_topic

_CALL_S: Final = 5.0
_BACK: Final = 16
"""Records that are read again at the start: at worst, one run finds nothing."""


class News:
    """The progress topic, where the log has one: it tells of every transaction."""

    def __init__(self, kafka_options: Mapping[str, str], prefix: str) -> None:
        self._topic = progress_topic(prefix)
        self._assigned = False
        self._consumer = Consumer(
            {**reader_options(kafka_options), "auto.offset.reset": "earliest"}, logger=LOGGER
        )
        self._assign()

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def wait(self, stop: Event, seconds: float, interval_s: float) -> None:
        """Wait for news, or so many seconds; only for the interval where nothing tells."""
        if not self._assigned:
            stop.wait(min(seconds, interval_s))
            self._assign()
            return
        deadline = time.monotonic() + seconds
        while not stop.is_set() and (left_s := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(min(left_s, ATTEMPT_S))
            if message is not None and message.error() is None:
                while self._consumer.poll(0) is not None:
                    pass
                return

    def _assign(self) -> None:
        """Read on from about the topic's end, if it is there; who can't be reached, runs tell."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=_CALL_S).topics[self._topic]
            if found.error is not None:
                return
            place = TopicPartition(self._topic, 0)
            low, high = self._consumer.get_watermark_offsets(place, timeout=_CALL_S)
        except KafkaException:
            return
        place.offset = max(low, high - _BACK)
        self._consumer.assign([place])
        self._assigned = True
