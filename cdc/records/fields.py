"""Positions in state records ⇄ text in JSON."""

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from cdc.records.position import Lsn, Position


def _lsn(value: object) -> Lsn:
    if isinstance(value, str):
        return Lsn.parse(value)
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return Lsn(value)
    raise ValueError("isn't an LSN")


def _position(value: object) -> Position:
    if isinstance(value, str):
        return Position.parse(value)
    if isinstance(value, Position):
        return value
    raise ValueError("isn't a position")


LsnField = Annotated[Lsn, PlainValidator(_lsn), PlainSerializer(str, return_type=str)]
PositionField = Annotated[
    Position, PlainValidator(_position), PlainSerializer(str, return_type=str)
]
