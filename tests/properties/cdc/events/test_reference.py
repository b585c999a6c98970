"""Random tables, rows and operations: sinks read exactly what the reference writes."""

import json
from typing import Literal, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.convert.pipeline import NATIVE, Encoder
from cdc.errors import CorruptMessageError, TableRefusedError
from cdc.events.changes import Change, Operation
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.position import HEADER, Lsn, Origin, Position, Transaction, header
from cdc.records.record import Record, to_json
from cdc.records.schema import Column, TableSchema
from cdc.wal.messages import ABSENT, Row, Value
from tests.fixtures.examples import examples

CLOCK_NS = 1_795_254_064_438_971_317
EVENTS = settings(max_examples=examples(120))

# type: PostgreSQL's text of some values, malformed ones among them now and then
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "bool": st.sampled_from("tf"),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "float8": st.one_of(
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.sampled_from(["NaN", "Infinity", "-Infinity", "100000", "1e+20", "0.00011"]),
    ),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: f"{d:f}"),
    "money": st.integers(-(2**63), 2**63 - 1).map(
        lambda cents: f"{'-' * (cents < 0)}${abs(cents) // 100:,}.{abs(cents) % 100:02}"
    ),
    "bytea": st.binary().map(lambda raw: "\\x" + raw.hex()),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "date": st.one_of(st.dates().map(str), st.sampled_from(["infinity", "0044-03-15 BC"])),
    "time": st.times().map(str),
    "timestamp": st.one_of(st.datetimes().map(str), st.just("20000-01-01 00:00:00")),
    "timestamptz": st.one_of(st.datetimes().map(lambda at: f"{at}+00"), st.just("-infinity")),
    "timetz": st.times().map(lambda at: f"{at}-03:30"),
}


def _array(items: list[str | None]) -> str:
    quoted = [
        "NULL" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for item in items
    ]
    return "{" + ",".join(quoted) + "}"


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(st.text("ab\"\\é日 '", min_size=1), min_size=1, max_size=6, unique=True))
    keyed = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    columns = []
    for name in names:
        kind = draw(st.sampled_from(sorted(TEXTS)))
        columns.append(
            Column(
                name=name,
                type=kind,
                type_oid=1,
                array=name not in keyed and draw(st.booleans()),
                declared=kind,
                key=keyed.index(name) + 1 if name in keyed else None,
            )
        )
    identity = draw(st.sampled_from("dnfi"))
    return TableSchema(
        namespace=draw(st.text('s."é', min_size=1)),
        table=draw(st.text("t\\\n", min_size=1)),
        version=draw(st.integers(1, 1_000)),
        since=str(Position(1, Lsn(0), 0)),
        topic="topic",
        replica_identity=cast("Literal['d', 'n', 'f', 'i']", identity),
        columns=tuple(columns),
        signature="",
    )


@st.composite
def rows(draw: st.DrawFn, table: TableSchema, like: Row | None = None) -> Row:
    """A row; one ``like`` another shares most of its values."""
    values: list[Value] = []
    for index, column in enumerate(table.columns):
        choice = draw(st.integers(0, 20))
        if like is not None and choice > 9:
            values.append(like[index])
        elif choice == 0:
            values.append(ABSENT)
        elif choice == 1:
            values.append(None)
        elif choice == 2 and draw(st.integers(0, 9)) == 0:
            values.append(draw(st.binary(max_size=5)))
        elif column.array:
            items = draw(st.lists(st.one_of(st.none(), TEXTS[column.type]), max_size=3))
            text = _array(items)
            if items and draw(st.integers(0, 3)) == 0:  # two dimensions, or bounds of its own
                text = draw(st.sampled_from([f"{{{text},{text}}}", f"[2:{len(items) + 1}]={text}"]))
            values.append(text.encode())
        else:
            values.append(draw(TEXTS[column.type]).encode())
    return tuple(values)


@st.composite
def changes(draw: st.DrawFn, table: TableSchema) -> Change:
    of_rows = [each for each in Operation if each is not Operation.ENDED]
    operation = draw(st.sampled_from(of_rows))
    commit = Lsn(draw(st.integers(0, 2**64 - 1)))
    before = after = None
    as_key = False
    if operation in {Operation.UPDATE, Operation.DELETE} and (
        operation is Operation.DELETE or draw(st.booleans())
    ):
        before, as_key = draw(rows(table)), draw(st.booleans())
    if operation in {Operation.CREATE, Operation.UPDATE, Operation.READ}:
        after = draw(rows(table, before))
    if as_key and before is not None:
        before = tuple(
            value if column.key or draw(st.booleans()) else None
            for column, value in zip(table.columns, before, strict=True)
        )
    ts_us = draw(st.integers(-(2**62), 2**62))
    previous = draw(st.one_of(st.none(), st.integers(0, 2**64 - 1).map(Lsn)))
    origin = draw(
        st.one_of(st.none(), st.builds(Origin, st.integers(0, 2**63).map(Lsn), st.text()))
    )
    xid = draw(st.integers(0, 2**32 - 1))
    transaction = Transaction(xid, commit, ts_us, previous, origin)
    return Change(
        operation=operation,
        before=before,
        before_is_key=as_key,
        after=after,
        position=Position(draw(st.integers(1, 9)), commit, draw(st.integers(0, 2**63))),
        lsn=Lsn(draw(st.integers(0, 2**64 - 1))),
        transaction=None if operation is Operation.READ else transaction,
        ts_us=ts_us,
    )


def encoded(encoder: Encoder, change: Change, reread: tuple[int, ...] = ()) -> list[Record]:
    if change.transaction is not None:
        encoder.begin(change.transaction)
    match change.operation:
        case Operation.CREATE:
            assert change.after is not None
            return encoder.insert(change.after, change.lsn, change.position)
        case Operation.UPDATE:
            assert change.after is not None
            old = change.before, change.before_is_key
            return encoder.update(*old, change.after, change.lsn, change.position, reread)
        case Operation.DELETE:
            assert change.before is not None
            return encoder.delete(change.before, change.before_is_key, change.lsn, change.position)
        case Operation.TRUNCATE:
            return encoder.truncate(change.lsn, change.position)
        case Operation.READ:
            assert change.after is not None
            return encoder.snapshot_row(change.after, change.position, change.lsn, change.ts_us)
        case Operation.ENDED:
            raise AssertionError("it has no row")


@EVENTS
@given(st.data())
def test_an_event_is_the_envelope_that_sinks_read(data: st.DataObject) -> None:
    table = data.draw(tables())
    log = LogContext(
        prefix=data.draw(st.text('p"é', min_size=1)),
        database="data\\base",
        partitions=data.draw(st.integers(1, 3)),
        compacted=data.draw(st.booleans()) if table.key else False,
    )
    encoder = Encoder(table, EventRules(), log, NATIVE, clock_ns=lambda: CLOCK_NS)
    for _ in range(3):
        change = data.draw(changes(table))
        reread = tuple(data.draw(st.lists(st.integers(0, 99), max_size=3)))
        try:
            records = encoded(encoder, change, reread)
        except (CorruptMessageError, TableRefusedError):
            continue
        for record in records:
            assert record.topic == table.topic
            envelope = None if record.value is None else json.loads(record.value)
            assert envelope is None or to_json(envelope) == record.value
            has_row = envelope is not None and envelope["after"] is not None
            told = reread if has_row and change.operation is Operation.UPDATE else ()
            assert record.headers == [(HEADER, header(change.position, table.version, told))]
