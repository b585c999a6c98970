"""A few hostile bytes on every run; `make fuzz` takes millions."""

import contextlib
import json
import time
import tracemalloc

import pytest

from cdc.errors import CorruptMessageError
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import MALFORMED, codec
from cdc.wal.decoder import decode
from tests.fixtures.json_values import written
from tests.fixtures.wal_bytes import sized, u8, u32, u64
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.target import Target, fuzz

SECOND_INPUTS = 12_000
"""Shares of the inputs are such that these take about a second."""
LONG = 1 << 15


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_any_input_is_read_or_refused_as_promised(target: type[Target]) -> None:
    shares = sum(target.share for target in TARGETS)
    _, failures = fuzz(target(seed=20_261_121), SECOND_INPUTS * target.share // shares)
    assert failures == []


@pytest.mark.parametrize(
    "message",
    [
        b"I" + u32(1) + b"N\xff\xff" + b"n" * LONG,
        b"I" + u32(1) + b"N\xff\xff" + (b"t" + sized(b"")) * (LONG // 5),
        b"I" + u32(1) + b"N\0\1t" + u32(0xFFFF_FFFF) + bytes(LONG),
        b"T" + u32(LONG) + u8(0) + bytes(4 * LONG),
        b"T" + u32(0xFFFF_FFFF) + u8(0) + bytes(LONG),
        b"M\0" + u64(1) + b"p" * LONG,
        b"M\0" + u64(1) + b"p\0" + u32(0xFFFF_FFFF) + bytes(LONG),
        b"R" + u32(1) + b"s\0t\0d\xff\xff" + bytes(LONG),
    ],
    ids=["nulls", "texts", "a text's length", "truncate", "oids", "a name", "content", "columns"],
)
def test_a_long_message_takes_memory_by_its_size(message: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(CorruptMessageError):
        decode(message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(message)


LONG_TEXTS = {
    "quotes": b'"' * LONG,
    "an array's quote without an end": b'{"' + b"e" * LONG,
    "escapes": b'{"' + b"\\e" * LONG + b'"}',
    "braces": b"{" * LONG,
    "brackets": b"[" * LONG,
    "parentheses": b"(" * LONG,
    "backslashes": b"\\" * LONG,
    "digits": b"1" * LONG,
    "a fraction": b"0." + b"1" * LONG,
    "points": b"1." * LONG,
    "elements": b'{{"a",' + b'"b",' * (LONG // 4) + b"}}",
    "pairs": b'"a"=>"b", ' * (LONG // 10) + b'"',
    "an hstore's quote without an end": b'"' + b"a" * LONG,
    "a sparse vector": b"{" + b"1:1," * (LONG // 4) + b"}/" + b"1" * LONG,
    "an interval": b"P" + b"1" * LONG + b"D",
    "bytes": b"\\x" + b"0" * LONG,
}
KINDS = ("text", "int8", "float8", "numeric", "money", "bytea", "varbit", "interval",
         "hstore", "circle", "sparsevec")  # fmt: skip


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_a_long_text_is_read_or_refused_in_a_time_by_its_size(text: bytes) -> None:
    for kind in KINDS:
        for array in (False, True):
            column = Column(name="c", type=kind, type_oid=1, array=array, declared=kind)
            for modes in (
                ValueModes(),
                ValueModes(decimal="precise", hstore="map", lossless=False),
            ):
                tested = codec(column, modes)
                if tested is None:
                    continue
                begun = time.thread_time()
                with contextlib.suppress(*MALFORMED):
                    written(tested, text)
                assert time.thread_time() - begun < 0.25, column


def test_the_longest_numeric_is_a_decimal_in_no_time() -> None:
    """PostgreSQL allows 131,072 digits before the point and 16,383 behind it."""
    column = Column(name="c", type="numeric", type_oid=1, declared="numeric")
    tested = codec(column, ValueModes(decimal="precise"))
    assert tested is not None
    text = b"-" + b"12" * 65_536 + b"." + b"3" * 16_383
    begun = time.thread_time()
    value = tested.decode(text)
    assert time.thread_time() - begun < 0.4
    assert value["scale"] == 16_383
    number = int.from_bytes(value["value"], "big", signed=True)
    assert number % 10**50 == -int(b"3" * 50) % 10**50
    assert number // 10**147_449 == -121_213


def test_json_of_any_depth_is_the_text_that_it_is() -> None:
    text = b"[" * 5_000 + b"]" * 5_000
    for kind in ("json", "jsonb"):
        for array in (False, True):
            column = Column(name="c", type=kind, type_oid=1, array=array, declared=kind)
            tested = codec(column)
            assert tested is not None
            given = b'{"' + text + b'"}' if array else text
            expected = [text.decode()] if array else text.decode()
            assert json.loads(written(tested, given)) == expected


def test_an_arrays_quotes_take_memory_by_their_size() -> None:
    column = Column(name="c", type="text", type_oid=1, array=True, declared="text[]")
    tested = codec(column)
    assert tested is not None
    tracemalloc.start()
    with pytest.raises(MALFORMED):
        tested.decode(b'{"' + b"e" * LONG + b"{")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * LONG
