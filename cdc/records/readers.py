"""The progress of a group of readers ⇄ its state records.

A group's first start writes one record with the offsets where it begins. From then on each
partition has its own record, which members of the group write once they have processed everything
before its offset. A group that reads whole transactions has one record for all partitions.
docs/decisions/0003-state-topics.md lists the topic.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.fields import PositionField
from cdc.records.record import to_json

FORMAT: Final = 1


class ReaderOffset(BaseModel):
    """A partition, and its first ``offset`` that the group hasn't processed.

    ``topic_id`` is Kafka's: a new topic of the same name has another one. Records from
    ``kept_from`` on were younger than log.keep when the group began, at ``begun_ms`` (ms since
    1970).
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    topic_id: str
    partition: int
    offset: int
    kept_from: int
    begun_ms: int


class ReaderRecord(BaseModel):
    """A group's position in some partitions.

    ``start`` names a start of the group, with its offsets. Two members that start at once write one
    each, and the lower offsets apply. ``cut``: the group reads whole transactions, and has
    processed those up to there; its offsets are where to read them from.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    group: str
    offsets: tuple[ReaderOffset, ...]
    start: str = ""
    cut: PositionField | None = None
    ts_ms: int = 0

    @property
    def key(self) -> bytes:
        """Key of the record. The newest record with it is authoritative."""
        if self.start:
            return to_json({"group": self.group, "start": self.start})
        if self.cut is not None:
            return to_json({"group": self.group})
        (place,) = self.offsets
        return to_json({"group": self.group, "topic": place.topic, "partition": place.partition})
