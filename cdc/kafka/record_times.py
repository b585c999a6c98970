"""The time that an event wants for its record → the one that it gets, so that log.keep holds.

Brokers delete by the times of records, not of their arrival: what is older than the retention goes
at once, and what is from the future never goes, or is refused. So a record has a time of its own
only where its topic keeps it for log.keep all the same; elsewhere it has that of its writing. Where
the topic has LogAppendTime, brokers set the time, and delete by that.
https://kafka.apache.org/documentation/#topicconfigs_retention.ms
"""

import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import structlog

from cdc.records.topics import Cleanup

log = structlog.get_logger()

OWN_TIME: Final = "table.field.event.timestamp"
"""The option of a transform by which events have times of their own."""
ROOM_MS: Final = 3_600_000
"""What may pass between a record's making and the time at which brokers have it."""
LATE_MS: Final = 86_400_000 + ROOM_MS
"""How much longer than log.keep topics of such events keep records: events may be a day old."""
_AHEAD_MS: Final = 60_000
"""How far the clock of whoever sets times may be ahead of ours."""
_ANY_MS: Final = 1 << 62


class TimeLimits(NamedTuple):
    """How much older and newer than now a record's own time may be in a topic.

    ``set_by_brokers``: none has a time of its own.
    """

    older_ms_max: int = 0
    newer_ms_max: int = _AHEAD_MS
    set_by_brokers: bool = False


def time_limits(cleanup: Cleanup, config: Mapping[str, str], keep_ms: int) -> TimeLimits:
    """Those of a topic with these settings, which is to keep every record for log.keep."""
    if config.get("message.timestamp.type") == "LogAppendTime":
        return TimeLimits(set_by_brokers=True)

    def refused(side: str) -> int:
        # Brokers before 4.0 know the difference for both sides, those before 3.6 only that.
        names = (f"message.timestamp.{limit}.max.ms" for limit in (side, "difference"))
        return min(int(config.get(name, str(_ANY_MS))) for name in names)

    newer_ms = min(_AHEAD_MS, refused("after"))
    if cleanup == "compact":
        return TimeLimits(0, newer_ms)
    retention_ms = int(config.get("retention.ms", "0"))
    by_retention = _ANY_MS if retention_ms < 0 else retention_ms - keep_ms - ROOM_MS
    return TimeLimits(max(0, min(by_retention, refused("before") - ROOM_MS)), newer_ms)


class _TopicTimes(Protocol):
    """What is asked of a topic's limits."""

    @property
    def times(self) -> TimeLimits: ...


class RecordTimes:
    """Gives records their times; each topic where one isn't as wanted is warned of once."""

    def __init__(self, limits: Mapping[str, _TopicTimes], keep_ms: int, servers: str) -> None:
        """``limits`` are those of the topics that were described."""
        self._limits = limits
        self._keep_ms = keep_ms
        self._servers = servers
        self._warned: set[str] = set()

    def __call__(self, topic: str, wanted_ms: int) -> int:
        """The time (ms since 1970) of a record that is written now; 0: that of its writing."""
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
