"""A stream that a PostgreSQL 18 sent → the records that Millrace has always made of it.

tests/fixtures/recorded_stream.jsonl has the tables, the messages and, without their own times, the
records. It was recorded when there were three encoders, which wrote the same.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from cdc.convert.pipeline import NATIVE, Encoder
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.position import HEADER, Lsn, Position
from cdc.records.record import Record, each
from cdc.records.schema import TableSchema
from cdc.stream.in_progress import InProgress
from cdc.stream.translation import Limits
from cdc.tables.tables import Arrival, Tables
from cdc.wal.frames import copy_data
from cdc.wal.messages import Relation
from tests.fixtures.position_headers import parse_header
from tests.properties.cdc.compiled.test_stream import START, WAYS, OneTable, timeless

LINES: Final = [
    json.loads(line)
    for line in Path(__file__)
    .parents[3]
    .joinpath("fixtures/recorded_stream.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SCHEMAS: Final = {
    schema.table: schema
    for schema in (TableSchema.model_validate(line["schema"]) for line in LINES if "schema" in line)
}
STREAM: Final = b"".join(
    copy_data(Lsn(line["lsn"]), bytes.fromhex(line["message"])) for line in LINES if "lsn" in line
)
RECORDS: Final = [
    Record(
        line["topic"],
        None if line["key"] is None else line["key"].encode(),
        None if line["value"] is None else line["value"].encode(),
        [(name, text.encode()) for name, text in line["headers"]],
        line["partition"],
    )
    for line in LINES
    if "topic" in line
]
POSITIONS: Final = sorted({parse_header(dict(made.headers)[HEADER])[0] for made in RECORDS})


class Recorded(OneTable):
    """Knows the tables by their names, and the log up to a position."""

    def __init__(self) -> None:
        """Every row is wanted."""

    def has_read(self, _relation: Any, _position: Position) -> bool:
        return False

    def arrive(self, relation: Relation, _since: Position, _xid: int | None) -> Arrival:
        return Arrival(SCHEMAS[relation.name], [])

    def encoder(self, schema: TableSchema) -> Encoder:
        log = LogContext("rec", "rec", 2, compacted=bool(schema.key))
        return Encoder(schema, EventRules(), log, NATIVE)


def translated(reached: Position, limits: Limits, *, compiled: bool) -> list[Record]:
    """What a start makes of the stream whose log has everything up to there."""
    table = Recorded()
    progress = SimpleNamespace(position=reached, cut=START, flush_lsn=Lsn(0), cut_ts_us=0)
    translation = WAYS[compiled](
        cast("Tables", table),
        cast("Any", progress),
        table.actions,
        lambda _: None,
        in_progress=InProgress(Path("/nowhere"), 1 << 20),
    )
    buffer, start = bytearray(STREAM), 0
    made: list[Record] = []
    while (used := translation.feed(buffer, start, len(buffer), limits)) != start:
        batch = translation.take()
        made += each(batch.records)
        start = used
    assert start == len(buffer)
    return made


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("limits", [Limits(1_000, 1 << 20), Limits(1, 1 << 20), Limits(9, 1)])
def test_the_recorded_stream_becomes_the_recorded_records(limits: Limits, compiled: bool) -> None:
    assert timeless(translated(START, limits, compiled=compiled), bytes) == timeless(RECORDS, bytes)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("reached", POSITIONS, ids=str)
def test_a_start_behind_any_record_goes_on_with_the_next(reached: Position, compiled: bool) -> None:
    left = [made for made in RECORDS if parse_header(dict(made.headers)[HEADER])[0] > reached]
    made = translated(reached, Limits(1_000, 1 << 20), compiled=compiled)
    assert timeless(made, bytes) == timeless(left, bytes)
