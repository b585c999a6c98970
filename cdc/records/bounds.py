"""Bounds of partitions: rows within them ended at once, when their partition was dropped.

In a compacted topic the event has a key of its own in each Kafka partition, made of the bounds, so
that compaction keeps the newest of each. Only columns of the record's key are spoken of, so a key
alone tells whether its row is meant.
"""

from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from cdc.records.fields import PositionField

ENDED_KEY: Final = "__millrace_ended"
"""The one member of such an event's key; its value are the bounds."""


class RangeEdge(NamedTuple):
    """One column's part of a range's end: a value as rows' events have it, or beyond all values."""

    kind: Literal["min", "value", "max"]
    value: JsonValue = None


class Bound(BaseModel):
    """The rows of a partition, in its parent.

    A range goes from ``lower`` up to, not including, ``upper``: rows compared by columns, in order.
    A list has ``values`` of its one column as rows' events have them; a null may be one.
    """

    model_config = ConfigDict(frozen=True)

    columns: tuple[str, ...]
    lower: tuple[RangeEdge, ...] = ()
    upper: tuple[RangeEdge, ...] = ()
    values: tuple[JsonValue, ...] | None = None


class EndedRows(BaseModel):
    """What an event of op ``p`` tells in ``ended``: rows within all bounds, up to a position, went.

    There is a bound for each level of partitioning, from the captured table down.
    """

    model_config = ConfigDict(frozen=True)

    bounds: tuple[Bound, ...]
    upto: PositionField
