"""Made frames and COPY lines -> CPU time a row, for what tables ask of their events; no server.

`make bench NAME=encoding`. Each case takes turns with a fixed piece of pure Python, whose seconds
its own are divided by: on a machine that others use, compare the ratios of two versions.
"""

import argparse
import json
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.scene import load, say
from cdc.capture.wiring import event_rules, pipeline
from cdc.convert.pipeline import no_topic
from cdc.events.changes import RereadRequest, Row
from cdc.records.position import Lsn, Position
from cdc.records.record import RecordOrBatch
from cdc.records.schema import Column
from cdc.records.state import Phase, Progress, TableState
from cdc.settings import Settings
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress, spill_directory
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Lookups, Tables
from cdc.wal.frames import copy_data
from cdc.wal.messages import ABSENT, Relation, RelationColumn
from snapshots.copied_rows import copier

LIMITS: Final = Limits(1_000, 16 << 20)
OID: Final = 16_385
START: Final = Position(1, Lsn(0), 0)
COMMON: Final = (
    "id int8, name text, email text, balance numeric, active bool, score float8, visits int4,"
    " seen_at timestamptz, tags text[], details jsonb"
)
RARE: Final = (
    "id int8, at time, atz timetz, span interval, price money, flags bit, place point, deep int4[],"
    " low float8, range int4range, path ltree"
)


class Case(NamedTuple):
    """A table, its settings, and which messages change its rows (``change``; r: COPY's)."""

    operation: str = "c"
    columns: str = COMMON
    capture: Mapping[str, str] = {}
    preset: str = "millrace"
    format: Mapping[str, str] = {}
    transforms: tuple[Mapping[str, Any], ...] = ()


_UNWRAP: Final = (
    {"name": "u", "type": "io.debezium.transforms.ExtractNewRecordState", "options": {}},
)
_AVRO: Final = {"key": "avro", "value": "avro", "schema.registry.url": "http://nowhere"}
_MASKS: Final = {
    "column.mask.with.4.chars": "public.t.name",
    "column.truncate.to.5.chars": "public.t.email",
    "column.mask.hash.SHA-256.with.salt.s": "public.t.details",
}
CASES: Final[Mapping[str, Case]] = {
    "insert": Case(),
    "update": Case("u"),
    "delete": Case("d"),
    "key_update": Case("K"),
    "full_update": Case("O"),
    "full_key_update": Case("F"),
    "unchanged_value": Case("T"),
    "masked": Case(capture=_MASKS),
    "rare_types": Case(columns=RARE),
    "preset": Case(preset="debezium"),
    "preset_key_update": Case("K", preset="debezium"),
    "preset_rare_types": Case(columns=RARE, preset="debezium"),
    "without_change": Case("O", capture={"skip.messages.without.change": "true"}),
    "counted": Case(capture={"provide.transaction.metadata": "true"}),
    "avro": Case(format=_AVRO),
    "transform": Case(transforms=_UNWRAP),
    "snapshot": Case("r"),
    "snapshot_rare_types": Case("r", columns=RARE),
    "snapshot_avro": Case("r", format=_AVRO),
    "snapshot_transform": Case("r", transforms=_UNWRAP),
}


QUICK: Final = frozenset({
    "insert", "update", "delete", "key_update", "full_update", "full_key_update", "snapshot",
})  # fmt: skip
"""What the extension does by itself: ten times as many rows."""


class _Ids:
    """A schema registry that is never asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._next = count(1)

    def check(self) -> None:
        """It is there."""

    def id_of(self, _subject: str, _schema: str) -> int:
        """Return the next number."""
        return next(self._next)


def columns_of(declared: str) -> tuple[Column, ...]:
    """``id int8, tags text[]`` → columns; id is the key."""
    pairs = [text.strip().split(" ") for text in declared.split(",")]
    return tuple(
        Column(
            name=name, type=kind.removesuffix("[]"), array=kind.endswith("[]"), type_oid=25,
            declared=kind, key=1 if name == "id" else None, optional=name != "id",
        )
        for name, kind in pairs
    )  # fmt: skip


def texts(number: int, columns: Sequence[Column]) -> tuple[bytes, ...]:
    """A row of these columns."""
    of_type = {
        "int8": str(number),
        "text": f'customer "{number}" of many',
        "numeric": f"{number * 7919 % 100_000_000}.25",
        "bool": "tf"[number % 2],
        "float8": f"{number % 1000}.125",
        "int4": str(number % 1_000),
        "timestamptz": "2024-03-05 10:20:30.000123+00",
        "jsonb": f'{{"city": "C{number % 500}", "note": "a note of some length", "zip": 12345}}',
        "time": "10:20:30.5",
        "timetz": "10:20:30+02",
        "interval": "P1Y2M3DT4H5M6S",
        "money": "$1,234.50",
        "bit": "101",
        "point": "(1.5,2)",
        "int4range": "[1,5)",
        "ltree": "top.middle.low",
    }
    arrays = {"text": '{"group 1",area2}', "int4": "{{1,2},{3,4}}"}
    if "deep" in {column.name for column in columns}:
        of_type["float8"] = "1.5e-07"
    chosen = (arrays[c.type] if c.array else of_type[c.type] for c in columns)
    return tuple(text.encode() for text in chosen)


def tuple_data(row: Row) -> bytes:
    """A row as pgoutput sends it."""
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


def change(operation: str, number: int, columns: Sequence[Column]) -> bytes:
    """A row message."""
    row: Row = texts(number, columns)
    new, head = b"N" + tuple_data(row), struct.pack(">I", OID)
    key = b"K" + tuple_data((b"%d" % (number + 1), *[None] * (len(row) - 1)))
    old = b"O" + tuple_data((row[0], b"other", *row[2:]))
    other = b"O" + tuple_data((b"%d" % (number + 1), *row[1:]))
    return {
        "c": b"I" + head + new,
        "u": b"U" + head + new,
        "d": b"D" + head + key,
        "K": b"U" + head + key + new,
        "O": b"U" + head + old + new,
        "F": b"U" + head + other + new,
        "T": b"U" + head + b"N" + tuple_data((*row[:-1], ABSENT)),
    }[operation]


def stream(case: Case, columns: Sequence[Column], rows: int) -> bytearray:
    """Transactions of a hundred rows."""
    described = b"".join(
        bytes([column.key is not None]) + column.name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
        for column in columns
    )
    head = struct.pack(">I", OID) + b"public\0t\0f" + struct.pack(">H", len(columns))
    made = bytearray(copy_data(Lsn(10), b"R" + head + described))
    for first in range(0, rows, 100):
        lsn = 1_000 + 10 * first
        made += copy_data(Lsn(lsn), b"B" + struct.pack(">QqI", lsn + 900, 10**15, first + 1))
        for number in range(first, min(rows, first + 100)):
            made += copy_data(Lsn(lsn + number - first), change(case.operation, number, columns))
        commit = struct.pack(">QQq", lsn + 900, lsn + 950, 10**15)
        made += copy_data(Lsn(lsn + 900), b"C\0" + commit)
    return made


def lines(columns: Sequence[Column], rows: int) -> bytearray:
    """The same rows as COPY sends them."""
    made = bytearray()
    for number in range(rows):
        line = b"\t".join(texts(number, columns)) + b"\n"
        made += b"d" + struct.pack(">I", len(line) + 4) + line
    return made


def tables_of(case: Case, columns: tuple[Column, ...]) -> Tables:
    """One table, as if its rows were in a log."""
    settings = Settings(
        source={},
        capture={"topic.prefix": "bench", "table.include.list": "public.t", **case.capture},
        kafka={"bootstrap.servers": "nowhere"},
        preset=case.preset,
        format=case.format,
        transforms=case.transforms,
    )
    cleanup = "compact" if case.preset == "millrace" else "delete"
    state = TableState(
        namespace="public", table="t", topic="bench.public.t", partitions=3, cleanup=cleanup,
        epoch=1, phase=Phase.STREAMING, snapshot_lsn=Lsn(0), oid=OID, entry=9,
    )  # fmt: skip
    lookups = Lookups(
        columns=lambda _relation: columns,
        entry=lambda _oid: 9,
        description=lambda _oid, _name: None,
        instant=lambda: (Lsn(0), 0),
        check=lambda _table: None,
        check_readable=lambda _table: None,
        await_visible=lambda _xid: None,
        filled=lambda _oid, _names: (),
    )
    rules, form = event_rules(settings), pipeline(settings, no_topic)
    return Tables(settings, "bench", [state], (), rules, form, lookups)


def reread(request: RereadRequest) -> dict[tuple[bytes, ...], Row]:
    """All rows are there."""
    return {key: tuple(b'{"city": "C1"}' for _ in request.columns) for key in request.keys}


def of_stream(tables: Tables, data: bytearray) -> int:
    """Translate a stream; returns the number of records."""
    progress = Progress(
        log="", slot="", system_identifier="", timeline=1, database="", phase=Phase.STREAMING,
        position=START, cut=START, flush_lsn=Lsn(0),
    )  # fmt: skip
    translation = Translation(
        tables,
        progress,
        Actions(lambda _: None, reread, lambda *_: []),
        lambda _: None,
        in_progress=InProgress(spill_directory(None), 32 << 20),
    )
    start = made = 0
    while (used := translation.feed(data, start, len(data), LIMITS)) != start:
        made += translation.take().events
        start = used
    return made


def of_lines(tables: Tables, columns: Sequence[Column], data: bytearray) -> int:
    """Encode a COPY's lines."""
    described = tuple(RelationColumn(c.key is not None, c.name, 25, -1) for c in columns)
    relation = Relation(OID, "public", "t", "f", described)
    schema = tables.arrive(relation, Position(1, Lsn(900), 1), 7).schema
    assert schema is not None  # noqa: S101 (the table is captured)
    encoder = tables.encoders.encoder(schema)
    records: list[RecordOrBatch] = []
    copied = copier(records, encoder, Position(1, Lsn(9), 0), 5_000_000)
    start = 0
    while (used := copied.feed(data, start, len(data), time.time_ns(), *LIMITS)) != start:
        records.clear()
        start = used
    return copied.row_count


def yardstick() -> None:
    """A fixed piece of pure Python."""
    row = {"id": 1, "name": "customer", "tags": ["a", "b"], "score": 1.5, "note": None}
    for number in range(6_000):
        row["id"] = number
        json.dumps(row)


def _cpu_s(what: Callable[[], object]) -> float:
    started = time.process_time()
    what()
    return time.process_time() - started


def measured(case: Case, rows: int, rounds: int) -> dict[str, float]:
    """CPU µs a row, and that in parts of what one step of the yardstick takes."""
    columns = columns_of(case.columns)
    tables = tables_of(case, columns)
    is_copy = case.operation == "r"
    data = lines(columns, rows) if is_copy else stream(case, columns, rows)

    def run() -> int:
        return of_lines(tables, columns, data) if is_copy else of_stream(tables, data)

    if run() < rows:
        raise RuntimeError("fewer records than rows")
    times, ratios = [], []
    for _ in range(rounds):
        before, seconds, after = _cpu_s(yardstick), _cpu_s(run), _cpu_s(yardstick)
        times.append(seconds / rows * 1e6)
        ratios.append(seconds / (before + after) * 2 * 6_000 / rows)
    return {"us": round(min(times), 3), "ratio": round(median(ratios), 4)}


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.encoding")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args(arguments)
    before = load()
    chosen: Iterable[str] = options.cases.split(",")
    import cdc.convert.registry

    cdc.convert.registry.Registry = _Ids  # type: ignore[assignment,misc]
    figures: dict[str, Any] = {}
    for name in chosen:
        # Making an encoder takes about a millisecond, once in a round.
        rows = options.rows * (10 if name in QUICK else 1)
        figures[name] = measured(CASES[name], rows, options.rounds)
        say(f"  {name}: {figures[name]['us']} µs a row, ratio {figures[name]['ratio']}")
    figures["load_before"] = before
    print(json.dumps({"benchmark": "encoding", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
