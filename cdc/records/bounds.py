"""Bounds of dropped partitions → events: the rows within them ended at once.

In a compacted topic the event has its own key in each Kafka partition, made of the bounds, so that
compaction keeps the newest of each. It refers only to columns of the record's key, so the key alone
decides whether a row is meant.
"""

from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from cdc.records.fields import PositionField

ENDED_KEY: Final = "__millrace_ended"
"""The only member of such an event's key. Its value is the bounds."""


class RangeEdge(NamedTuple):
    """One column's part of a range's end: a value as in rows' events, or beyond all values."""

    kind: Literal["min", "value", "max"]
    value: JsonValue = None


class Bound(BaseModel):
    """The rows of a partition, in its parent.

    A range goes from ``lower`` up to, but excluding, ``upper``; rows compare by columns, in order.
    A list has ``values`` of its only column as in rows' events, possibly with a null.
    """

    model_config = ConfigDict(frozen=True)

    columns: tuple[str, ...]
    lower: tuple[RangeEdge, ...] = ()
    upper: tuple[RangeEdge, ...] = ()
    values: tuple[JsonValue, ...] | None = None


class EndedRows(BaseModel):
    """The ``ended`` member of an op ``p`` event: rows within all bounds, up to a position, ended.

    It has a bound for each level of partitioning, from the captured table down.
    """

    model_config = ConfigDict(frozen=True)

    bounds: tuple[Bound, ...]
    upto: PositionField
