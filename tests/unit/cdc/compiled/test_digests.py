"""Lines of COPY → hashes: the reading of each kind of text, with messages cut anywhere."""

import struct
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled.digests import Digests, hash_of
from compaction.verify.rules import Kind, Rule, _array

TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)
COPIED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def message(line: bytes) -> bytes:
    return b"d" + struct.pack(">I", len(line) + 4) + line


def digests(*kinds: Kind, key: tuple[int, ...] = (0,), bits: int = 0) -> Digests:
    count = len(kinds)
    return Digests([*kinds], [0] * count, [False] * count, [None] * count, key, bits)


def number(value: int) -> int:
    return hash_of(Kind.INTEGER, 0, str(value).encode())


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_integer_is_read(value: int) -> None:
    assert number(value) == hash_of(Kind.DECIMAL, 0, b"%d" % value) or abs(value) >= 10**18


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=3, min_value=1 - 10**13, max_value=10**13 - 1
    )
)
def test_a_decimal_is_its_digits(value: object) -> None:
    unscaled = int(str(value).replace(".", ""))
    assert hash_of(Kind.DECIMAL, 3, str(value).encode()) == number(unscaled)
    assert hash_of(Kind.DECIMAL, 5, str(value).encode()) == number(unscaled * 100)


@given(st.datetimes(min_value=datetime(1, 1, 1)))  # noqa: DTZ001 (a timestamp without a zone)
def test_times_are_microseconds(value: datetime) -> None:
    us = (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    text = value.isoformat(" ").encode()
    assert hash_of(Kind.TIMESTAMP, 0, text) == number(us)
    assert hash_of(Kind.TIMESTAMP, 0, text.rstrip(b"0") + b"+00") == number(us) or b"." not in text
    assert hash_of(Kind.TIME, 0, text[11:]) == number(us % 86_400_000_000)
    assert hash_of(Kind.DATE, 0, text[:10]) == number((value.date() - date(1970, 1, 1)).days)


@given(st.binary(max_size=100))
def test_bytes_are_what_hex_says(value: bytes) -> None:
    assert hash_of(Kind.BYTES, 0, b"\\x" + value.hex().encode()) == hash_of(Kind.TEXT, 0, value)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (Kind.NUMBER, b"1.50", b"1.5"),
        (Kind.NUMBER, b"100.00", b"100"),
        (Kind.DOUBLE, b"-0", b"0"),
        (Kind.FLOAT, b"0.1", b"0.1000000001"),
        (Kind.DOUBLE, b"1e+20", b"100000000000000000000"),
    ],
)
def test_texts_that_are_one_value(kind: Kind, one: bytes, other: bytes) -> None:
    assert hash_of(kind, 0, one) == hash_of(kind, 0, other)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.INTEGER, b"12a"),
        (Kind.INTEGER, b""),
        (Kind.INTEGER, b"9223372036854775808"),
        (Kind.BOOLEAN, b"true"),
        (Kind.DATE, b"infinity"),
        (Kind.DATE, b"0044-03-15 BC"),
        (Kind.DATE, b"10000-01-01"),
        (Kind.TIMESTAMP, b"2024-01-01"),
        (Kind.TIME, b"1:00:00"),
        (Kind.DECIMAL, b"NaN"),
        (Kind.DECIMAL, b"1.23"),
        (Kind.DECIMAL, b"1234567890123456789"),
        (Kind.DOUBLE, b"1.5x"),
        (Kind.BYTES, b"\\xabc"),
    ],
)
def test_a_text_that_is_not_of_its_kind_is_itself(kind: Kind, text: bytes) -> None:
    assert hash_of(kind, 0, text) == hash_of(Kind.TEXT, 0, text)


@given(st.lists(st.tuples(st.integers(0, 9), TEXTS), max_size=5))
def test_rows_come_whole_wherever_messages_are_cut(rows: list[tuple[int, str]]) -> None:
    data = b"".join(message(f"{key}\t{text.translate(COPIED)}\n".encode()) for key, text in rows)
    whole, parts = (digests(Kind.INTEGER, Kind.TEXT) for _ in range(2))
    assert whole.feed(bytearray(data), 0, len(data)) == len(data)
    buffer, start = bytearray(data), 0
    for end in range(len(data) + 1):
        start = parts.feed(buffer, start, end)
    assert start == len(data)
    assert whole.rows == parts.rows == len(rows)
    assert whole.take() == parts.take()
    assert whole.sums_of_buckets() == parts.sums_of_buckets()


def test_which_columns_are_null_is_part_of_a_row() -> None:
    sums = []
    for line in (b"1\ta\t\\N\n", b"1\t\\N\ta\n", b"1\ta\t\n"):
        row = digests(Kind.INTEGER, Kind.TEXT, Kind.TEXT)
        row.feed(bytearray(message(line)), 0, len(message(line)))
        sums.append(row.sums_of_buckets())
    assert sums[0] != sums[1] != sums[2] != sums[0]


@pytest.mark.parametrize("line", [b"1\n", b"1\t2\t3\n", b"1\t2"])
def test_a_line_of_another_table_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="other columns"):
        digests(Kind.TEXT, Kind.TEXT).feed(bytearray(message(line)), 0, len(message(line)))


def test_records_are_in_the_groups_of_their_keys() -> None:
    grouped = digests(Kind.INTEGER, bits=4)
    data = bytearray(b"".join(message(b"%d\n" % key) for key in range(1000)))
    grouped.feed(data, 0, len(data))
    for group, records in grouped.take():
        at = 0
        while at < len(records):
            key, row, size = struct.unpack_from("=qqI", records, at)
            assert key == row if not size else (key >> 60) + 8 == group
            at += 20 + size
    assert grouped.take() == []


ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"'})


@given(st.lists(st.none() | TEXTS, max_size=5))
def test_an_array_is_its_elements(items: list[str | None]) -> None:
    """As a function of Python's says that reads arrays of any form."""
    text = ",".join("NULL" if item is None else f'"{item.translate(ESCAPED)}"' for item in items)
    data = bytearray(message(f"{{{text}}}".translate(COPIED).encode() + b"\n"))
    found = []
    for kind in (Kind.ARRAY + Kind.TEXT, Kind.CONVERTED):
        convert = partial(_array, Rule(Kind.TEXT, lambda value: value), ",")
        row = Digests([kind], [0], [False], [convert], (), keeps_columns=kind == Kind.CONVERTED)
        row.feed(data, 0, len(data))
        found.append((row.rows, row.sums_of_buckets()))
    assert found[0] == found[1]
