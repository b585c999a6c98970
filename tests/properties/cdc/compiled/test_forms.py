"""The extension in all of its forms: presets, modes, masks, schemas. Byte for byte."""

import struct
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from cdc.convert.converters import converters
from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.errors import TableRefusedError
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.schema import Column, TableSchema
from cdc.settings.modes import ColumnModes, ColumnRule, EventModes, Patterns, ValueModes
from cdc.stream.translation import Limits
from tests.fixtures import wal_bytes as wal
from tests.fixtures.examples import examples
from tests.fixtures.preset import DEBEZIUM
from tests.properties.cdc.compiled.test_stream import (
    OID,
    START,
    OneTable,
    frame,
    outcome,
    relation,
    streams,
    timeless,
)
from tests.properties.cdc.events.test_reference import tables


class FormedTable(OneTable):
    """The same, whose events follow rules and have a form of their own."""

    def __init__(
        self,
        schema: TableSchema,
        rules: EventRules,
        form: RecordPipeline,
        *,
        compacted: bool,
        reselects: bool,
    ) -> None:
        super().__init__(schema, compacted=compacted, since=START, reselects=reselects)
        self.pipeline = form
        log = LogContext("p", "d", 2, compacted=compacted, run_id="run")
        self._encoder = Encoder(schema, rules, log, form, reselects=reselects)

    def encoder(self, _schema: TableSchema) -> Encoder:
        return self._encoder


RULES = [
    EventRules(),
    DEBEZIUM,
    replace(DEBEZIUM, events=replace(DEBEZIUM.events, tombstones=False, context_headers=False)),
    EventRules(values=ValueModes(decimal="precise", time_precision="connect", binary="hex")),
    EventRules(values=ValueModes(decimal="double", time_precision="adaptive", binary="base64")),
    EventRules(events=EventModes(unchanged="placeholder", key_change_headers=True)),
    EventRules(columns=ColumnModes(exclude=Patterns((r".*\.(a|b|é)",)))),
    replace(
        DEBEZIUM,
        columns=ColumnModes(
            exclude=Patterns((r".*\.b",)), rules=(ColumnRule("mask", Patterns((r".*\.a.*",)), 3),)
        ),
    ),
]
FORMS = [
    RecordPipeline(converters({})),
    RecordPipeline(converters({}, preset=True), position_header=False),
    RecordPipeline(converters({"value.schemas.enable": "true", "decimal.format": "NUMERIC"})),
    RecordPipeline(converters({"key.schemas.enable": "true"}, preset=True)),
]


@settings(max_examples=examples(75))
@given(st.data())
def test_each_form_is_what_the_reference_writes(data: st.DataObject) -> None:
    schema = data.draw(tables())
    stream = data.draw(streams(schema))
    compacted = bool(schema.key) and data.draw(st.booleans())
    try:
        table = FormedTable(
            schema,
            data.draw(st.sampled_from(RULES)),
            data.draw(st.sampled_from(FORMS)),
            compacted=compacted,
            reselects=compacted and data.draw(st.booleans()),
        )
    except TableRefusedError:
        reject()
    limits = Limits(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5_000)))
    fast, fast_place, fast_error = outcome(table, stream, limits, compiled=True)
    plain, plain_place, plain_error = outcome(table, stream, limits, compiled=False)
    assert timeless(fast, bytes) == timeless(plain, bytes)
    assert fast_error == plain_error
    assert fast_place == plain_place


NUMBERS = "numeric", "float8", "float4"
DIGITS = st.one_of(
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.integers(-(2**16), 2**16),
    st.sampled_from([2**n + d for n in (7, 8, 15, 16, 31, 32, 55) for d in (-1, 0)]),
)


REALS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([1e7, 12345678.0, 9999999.0, 0.001, 0.0625, 0.0001, 0.0009765625, 1e15]),
)


@settings(max_examples=examples(100))
@given(DIGITS, REALS, st.integers(0, 6), st.booleans())
def test_numbers_read_the_same(digits: int, real: float, scale: int, negative: bool) -> None:
    columns = [
        Column(
            name=kind,
            type=kind,
            type_oid=1,
            declared=kind,
            modifier=(18 << 16 | scale) + 4 if kind == "numeric" else -1,
        )
        for kind in NUMBERS
    ]
    schema = TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="f", columns=tuple(columns), signature="",
    )  # fmt: skip
    exact = Decimal(-digits if negative else digits).scaleb(-scale, Context(prec=40))
    texts = f"{exact:f}", f"{Decimal(repr(real)):f}".removesuffix(".0"), repr(real)
    row = wal.row(tuple(text.encode() for text in texts))
    begin = b"B" + struct.pack(">QqI", 900, 0, 1)
    messages = relation(schema), begin, b"I" + wal.u32(OID) + b"N" + row
    data = b"".join(frame(10 + number, message) for number, message in enumerate(messages))
    for rules in RULES[:5]:
        for form in FORMS[:2]:
            table = FormedTable(schema, rules, form, compacted=False, reselects=False)
            assert table.encoder(schema).compiled() is not None
            fast, plain = (
                outcome(table, data, Limits(9, 9_999), compiled=way)[0] for way in (True, False)
            )
            assert timeless(fast, bytes) == timeless(plain, bytes) != []


def both(
    columns: list[Column], rules: EventRules, form: RecordPipeline, messages: list[bytes]
) -> list[list[Any]]:
    """What the extension makes of a table's messages, and what the reference does."""
    schema = TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="f", columns=tuple(columns), signature="",
    )  # fmt: skip
    table = FormedTable(schema, rules, form, compacted=True, reselects=False)
    begin = b"B" + struct.pack(">QqI", 900, 0, 1)
    stream = [
        relation(schema),
        begin,
        *(message[:1] + wal.u32(OID) + message[1:] for message in messages),
    ]
    data = b"".join(frame(10 + number, message) for number, message in enumerate(stream))
    return [
        timeless(outcome(table, data, Limits(99, 1 << 20), compiled=way)[0], bytes)
        for way in (True, False)
    ]


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (Column(name="k", type="money", type_oid=1, declared="money", key=1), b"$1.50"),
        (
            Column(name="k", type="numeric", modifier=(5 << 16 | 2046) + 4, type_oid=1,
                   declared="numeric(5,-2)", key=1),
            b"1500",
        ),
        (
            Column(name="k", type="numeric", modifier=(5 << 16 | 2) + 4, type_oid=1, array=True,
                   declared="numeric(5,2)[]", key=1),
            b"{1.50,NULL}",
        ),
    ],
    ids=["money", "negative scale", "array"],
)  # fmt: skip
def test_a_key_has_the_form_of_keys_where_values_have_another(
    side: str, declared: Column, text: bytes
) -> None:
    """Streamed under another key than the snapshot's, a row would be two."""
    rules = EventRules(values=ValueModes(decimal="precise"))
    form = RecordPipeline(converters({f"{side}.decimal.format": "NUMERIC"}))
    fast, plain = both([declared], rules, form, [b"IN" + wal.row((text,))])
    assert fast == plain != []


def test_room_is_kept_for_the_decimals_of_a_long_array() -> None:
    """Two bytes, a digit and a comma, become seven."""
    column = Column(
        name="k", type="numeric", modifier=(18 << 16) + 4, type_oid=1, array=True, declared="n"
    )
    rules = EventRules(values=ValueModes(decimal="precise"))
    value = f"{{{','.join(['0'] * 40_000)}}}".encode()
    fast, plain = both([column], rules, FORMS[0], [b"IN" + wal.row((value,))])
    assert fast == plain != []


def test_half_a_character_may_stand_for_null() -> None:
    """A truncated DEFAULT, as Debezium has it: Java cuts an emoji in its middle."""
    key, text = (
        Column(name=n, type="text", type_oid=25, declared="text", key=k)
        for n, k in (("k", 1), ("b", None))
    )
    text = text.model_copy(update={"optional": False, "default": "'\N{GRINNING FACE}'::text"})
    cut = ColumnRule("truncate", Patterns((r".*\.b",)), 1)
    rules = replace(DEBEZIUM, columns=ColumnModes(rules=(cut,)))
    row = b"IN" + wal.row((b"1", None))
    fast, plain = both([key, text], rules, FORMS[1], [row])
    assert fast == plain
    assert b'"after":{"k":"1","b":"\\uD83D"}' in fast[0][-1]


@pytest.mark.parametrize("form", FORMS[1:2] + FORMS[3:])
def test_null_in_a_key_is_another_key_than_the_default_that_is_written_for_it(
    form: RecordPipeline,
) -> None:
    """As in Debezium, which compares values; message.key.columns may name what can be NULL."""
    key, other = (
        Column(name=n, type="text", type_oid=25, declared="text", key=k)
        for n, k in (("k", 1), ("b", None))
    )
    key = key.model_copy(update={"default": "'x'::text"})
    null, default = wal.row((None, b"1")), wal.row((b"x", b"1"))
    fast, plain = both([key, other], DEBEZIUM, form, [b"UO" + null + b"N" + default])
    assert fast == plain
    assert len(fast) == 3  # delete, tombstone, create
