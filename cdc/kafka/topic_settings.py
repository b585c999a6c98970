"""A topic's kind and log.keep → the settings that keep the promise, and those that break it."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from cdc.records.schema import Column, TableName
from cdc.records.topics import Cleanup

STATE_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "86400000",  # a reader in the middle sees a tombstone
    "segment.bytes": str(1 << 20),  # the minimum of Kafka 4
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
STATUS_CONFIG: Final[Mapping[str, str]] = {**STATE_CONFIG, "segment.ms": "60000"}
"""A reader of the newest reports reads everything that isn't compacted yet.

Kafka never compacts the active segment. So a read has the reports of one minute, and those until
the next run of the cleaner (15 s). Each run reports each of its tables: 100 tables and 30 runs a
minute are 3,000 records.
"""


class TopicTable(Protocol):
    """A table as its topic needs it: the name, and columns that mark a key."""

    @property
    def name(self) -> TableName:
        """Schema and name."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns. Those of the key are marked."""


TopicContent = Literal["changes", "state", "reports"]


class WantedTopic(NamedTuple):
    """A topic's required state. A ``recorded`` topic has been in use, so it must exist.

    Only topics of ``changes`` have the configured number of partitions.
    """

    name: str
    partitions: int
    cleanup: Cleanup
    recorded: bool = False
    content: TopicContent = "changes"


def promised(cleanup: Cleanup, keep_ms: int) -> dict[str, str]:
    """Return the settings that make a topic keep everything for log.keep."""
    if cleanup == "compact":
        return {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(keep_ms),
            "delete.retention.ms": str(keep_ms),
        }
    return {"cleanup.policy": "delete", "retention.ms": str(keep_ms), "retention.bytes": "-1"}


def setting_findings(
    cleanup: Cleanup, config: Mapping[str, str], keep_ms: int
) -> list[tuple[str, str, str]]:
    """Return settings that break the promise: name, required value, what is wrong."""
    findings = []
    for name, value in promised(cleanup, keep_ms).items():
        has = config.get(name, "")
        if name == "cleanup.policy":
            fine = has == value
        elif has == "-1":
            fine = name.startswith("retention.")
        else:
            fine = has.isdigit() and value != "-1" and int(has) >= int(value)
        if not fine:
            findings.append((name, value, f"{name} is {has or 'unknown'}, not {value}"))
    return findings
