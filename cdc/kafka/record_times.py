"""The time that an event wants for its record → the one that it gets, so that log.keep holds.

Brokers delete by the times of records, not of their arrival: what is older than the retention goes
at once, and what is from the future never goes, or is refused. So a record has a time of its own
only where its topic keeps it for log.keep all the same; elsewhere it has that of its writing.
https://kafka.apache.org/documentation/#topicconfigs_retention.ms
"""

import time
from collections.abc import Mapping
from typing import Final, Protocol

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


def older_ms_max(cleanup: Cleanup, config: Mapping[str, str], keep_ms: int) -> int:
    """How old a record's time may be in a topic that keeps every record for log.keep."""
    if cleanup == "compact":
        return 0
    retention_ms = int(config.get("retention.ms", "0"))
    by_retention = _ANY_MS if retention_ms < 0 else retention_ms - keep_ms - ROOM_MS
    refused = int(config.get("message.timestamp.before.max.ms", str(_ANY_MS))) - ROOM_MS
    return max(0, min(by_retention, refused))


class _TimeLimit(Protocol):
    """What is asked of a topic's limits."""

    @property
    def older_ms_max(self) -> int: ...


class RecordTimes:
    """Gives records their times; each topic where one isn't as wanted is warned of once."""

    def __init__(self, limits: Mapping[str, _TimeLimit], keep_ms: int, servers: str) -> None:
        """``limits`` are those of the topics that were described."""
        self._limits = limits
        self._keep_ms = keep_ms
        self._servers = servers
        self._warned: set[str] = set()

    def __call__(self, topic: str, wanted_ms: int) -> int:
        """The time (ms since 1970) of a record that is written now; 0: that of its writing."""
        older_ms = time.time_ns() // 1_000_000 - wanted_ms
        limits = self._limits.get(topic)
        older_ms_max = limits.older_ms_max if limits is not None else 0
        if wanted_ms > 0 and -_AHEAD_MS <= older_ms <= older_ms_max:
            return wanted_ms
        if topic not in self._warned:
            self._warned.add(topic)
            self._warn(topic, wanted_ms, older_ms)
        return 0

    def _warn(self, topic: str, wanted_ms: int, older_ms: int) -> None:
        if older_ms < -_AHEAD_MS:
            log.warning(
                "an event's time is in the future: such records get the time of their writing, or"
                " the topic would keep them for ever",
                topic=topic,
                event_ms=wanted_ms,
                remedy=f"see that the column of {OWN_TIME} has the time in UTC",
            )
            return
        retention_ms = max(self._keep_ms + LATE_MS, older_ms + self._keep_ms + 2 * ROOM_MS)
        log.warning(
            "an event's time is so old that the topic wouldn't keep its record for log.keep: such"
            " records get the time of their writing",
            topic=topic,
            event_ms=wanted_ms,
            remedy="where consumers need it, have the topic keep records for longer, and start"
            f" again: kafka-configs --bootstrap-server {self._servers} --alter --entity-type topics"
            f" --entity-name {topic} --add-config retention.ms={retention_ms}",
        )
