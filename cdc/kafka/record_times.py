"""The time that an event asks for → the time that its record gets, so that log.keep holds.

Brokers delete by the records' times, not by their arrival. They remove records older than the
retention at once, and never remove those from the future, or refuse them. So a record has its own
time only if its topic keeps it for log.keep anyway. Otherwise it gets the time of its writing. With
LogAppendTime, brokers set the time, and delete by it.
https://kafka.apache.org/documentation/#topicconfigs_retention.ms
"""

import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import structlog

from cdc.records.topics import Cleanup

log = structlog.get_logger()

OWN_TIME: Final = "table.field.event.timestamp"
"""A transform's option that gives events their own times."""
ROOM_MS: Final = 3_600_000
"""Maximum time from a record's making until brokers have it."""
LATE_MS: Final = 86_400_000 + ROOM_MS
"""Additional retention of topics with such events: an event may be a day old."""
_AHEAD_MS: Final = 60_000
"""How far another clock may be ahead of ours."""
_ANY_MS: Final = 1 << 62


class TimeLimits(NamedTuple):
    """How much older and newer than now a record's own time may be in a topic.

    ``set_by_brokers``: no record has its own time.
    """

    older_ms_max: int = 0
    newer_ms_max: int = _AHEAD_MS
    set_by_brokers: bool = False


def time_limits(cleanup: Cleanup, config: Mapping[str, str], keep_ms: int) -> TimeLimits:
    """Return the limits of a topic with these settings that must keep every record for log.keep."""
    if config.get("message.timestamp.type") == "LogAppendTime":
        return TimeLimits(set_by_brokers=True)

    def refused(side: str) -> int:
        # Brokers before 4.0 have the difference for both sides; those before 3.6 have only that.
        names = (f"message.timestamp.{limit}.max.ms" for limit in (side, "difference"))
        return min(int(config.get(name, str(_ANY_MS))) for name in names)

    newer_ms = min(_AHEAD_MS, refused("after"))
    if cleanup == "compact":
        return TimeLimits(0, newer_ms)
    retention_ms = int(config.get("retention.ms", "0"))
    by_retention = _ANY_MS if retention_ms < 0 else retention_ms - keep_ms - ROOM_MS
    return TimeLimits(max(0, min(by_retention, refused("before") - ROOM_MS)), newer_ms)


class _TopicTimes(Protocol):
    """The part of a topic's limits that is needed here."""

    @property
    def times(self) -> TimeLimits: ...


class RecordTimes:
    """Assigns records their times.

    Warns once per topic in which one differs from the wanted time.
    """

    def __init__(self, limits: Mapping[str, _TopicTimes], keep_ms: int, servers: str) -> None:
        """``limits`` are those of the topics that were described."""
        self._limits = limits
        self._keep_ms = keep_ms
        self._servers = servers
        self._warned: set[str] = set()

    def __call__(self, topic: str, wanted_ms: int) -> int:
        """Return a new record's time (ms since 1970). 0: the time of its writing."""
        older_ms = time.time_ns() // 1_000_000 - wanted_ms
        topic_limits = self._limits.get(topic)
        limits = topic_limits.times if topic_limits is not None else TimeLimits()
        if limits.set_by_brokers:
            return 0
        if wanted_ms > 0 and -limits.newer_ms_max <= older_ms <= limits.older_ms_max:
            return wanted_ms
        if topic not in self._warned:
            self._warned.add(topic)
            self._warn(topic, wanted_ms, older_ms, limits)
        return 0

    def _warn(self, topic: str, wanted_ms: int, older_ms: int, limits: TimeLimits) -> None:
        if older_ms < -limits.newer_ms_max:
            log.warning(
                "an event's time is in the future: its record gets the time of writing, or the"
                " topic would refuse it or keep it for ever",
                topic=topic,
                event_ms=wanted_ms,
                remedy=f"check that the column of {OWN_TIME} has the time in UTC",
            )
            return
        retention_ms = max(self._keep_ms + LATE_MS, older_ms + self._keep_ms + 2 * ROOM_MS)
        log.warning(
            "an event's time is too old for its topic to keep the record for log.keep: the"
            " record gets the time of writing",
            topic=topic,
            event_ms=wanted_ms,
            remedy="if consumers need the event's time, raise the topic's retention, and start"
            f" again: kafka-configs --bootstrap-server {self._servers} --alter --entity-type"
            f" topics --entity-name {topic} --add-config retention.ms={retention_ms}",
        )
