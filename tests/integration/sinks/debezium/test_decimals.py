"""Numbers as bytes -> Spark's decimals and PostgreSQL's text, compared with Python's numbers."""

import random
from decimal import Context, Decimal
from typing import TYPE_CHECKING

import pytest

from sinks.debezium.decimals import BYTES_MAX, to_decimal, to_text
from tests.fixtures.few import few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DIGITS = [1, 2, 5, 9, 17, 18, 19, 20, 28, 37, 38]
EXACT = Context(prec=5_000)


def unscaled(number: int) -> bytearray:
    """As Java's BigInteger has it."""
    return bytearray(number.to_bytes(number.bit_length() // 8 + 1, signed=True))


def numbers(digits: int) -> list[int]:
    source = random.Random(digits)  # noqa: S311 (the same each time)
    edges = [0, 1, 9, 10**digits - 1, 10 ** (digits - 1), *(2**n for n in range(0, 127, 7))]
    edges += [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, (1 << 63) * (1 << 64) - 1]
    drawn = [source.randrange(10**digits) for _ in range(50)]
    found = {number for number in edges + drawn if number < 10**digits}
    return sorted(found | {-number for number in found})


@pytest.mark.parametrize("digits", few(DIGITS, 18, 19, 38))
def test_a_decimal_has_all_of_its_digits(spark: "SparkSession", digits: int) -> None:
    wanted = numbers(digits)
    rows = [(str(number), unscaled(number)) for number in wanted]
    frame = spark.createDataFrame(rows, "number string, bytes binary").repartition(1)
    scales = sorted({0, 1, digits // 2, digits})
    found = frame.select(
        "number", *(to_decimal(frame["bytes"], digits, scale) for scale in scales)
    ).collect()
    for number, *decimals in found:
        for scale, decimal in zip(scales, decimals, strict=True):
            assert decimal == Decimal(number).scaleb(-scale, EXACT), (number, digits, scale)


def test_what_has_no_room_is_null(spark: "SparkSession") -> None:
    rows = [(unscaled(sign * number),) for number in (10**5, 10**38, 2**200) for sign in (1, -1)]
    frame = spark.createDataFrame(rows, "bytes binary")
    found = frame.select(to_decimal(frame["bytes"], 5, 2), to_decimal(frame["bytes"], 38, 0))
    narrow, wide = zip(*map(tuple, found.collect()), strict=True)
    assert narrow == (None,) * 6
    assert [one is None for one in wide] == [False, False, True, True, True, True]


@pytest.mark.proof
def test_a_number_of_any_length_becomes_exact_text(spark: "SparkSession") -> None:
    source = random.Random(1)  # noqa: S311
    wanted = [number for digits in (3, 19, 38) for number in numbers(digits)]
    for bits in (125, 126, 127, 128, 129, 250, 251, 252, 280, 500):
        drawn = [1 << bits, (1 << bits) - 1, source.getrandbits(bits)]
        wanted += [sign * number for number in drawn for sign in (1, -1)]
    wanted.append(-(1 << 8 * BYTES_MAX - 2))
    wanted += [sign * 10**power for power in (27, 36, 45, 100) for sign in (1, -1)]
    rows = [
        (f"{Decimal(number).scaleb(-scale, EXACT):f}", unscaled(number), scale)
        for place, number in enumerate(wanted)
        for scale in (place % 60, 0)[: 1 + (number.bit_length() < 600)]
    ]
    frame = spark.createDataFrame(rows, "number string, bytes binary, scale int")
    texts = frame.select("number", to_text(frame["bytes"], frame["scale"])).collect()
    assert [ours for _, ours in texts] == [number for number, _ in texts]


def test_a_negative_scale_and_what_is_too_long(spark: "SparkSession") -> None:
    rows = [
        (unscaled(-12), -3),
        (unscaled(0), -2),
        (unscaled(1 << 8 * BYTES_MAX), 0),
        (None, 2),
    ]
    frame = spark.createDataFrame(rows, "bytes binary, scale int")
    found = frame.select(to_text(frame["bytes"], frame["scale"]).alias("text")).collect()
    assert [row["text"] for row in found] == ["-12000", "0", None, None]
