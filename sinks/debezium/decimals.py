"""A Decimal's bytes (two's complement, big-endian, unscaled) → a Spark decimal, or exact text.

Uses only functions that Spark compiles, except for numbers beyond 38 digits. ``conv`` has 64 bits:
one holds 18 digits, and two halves make 38 in decimal arithmetic. Longer numbers (a ``numeric``
without a precision, as text) are built of limbs of nine digits, 28 bits at a time.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

BYTES_MAX: Final = 1_024
"""Longer numbers (some 2,460 digits) aren't decoded, as the time grows with their cube."""
_DIGITS_64_BITS: Final = 18
_NEGATIVE: Final = "8"
"""A number is negative if its first hexadecimal digit is this or greater."""
_LIMB: Final = 1_000_000_000
_LIMB_DIGITS: Final = 9
_STEP_DIGITS: Final = 7
_STEP: Final = 1 << 4 * _STEP_DIGITS


def to_decimal(value: SparkColumn, precision: int, scale: int) -> SparkColumn:
    """Bytes → decimal(precision, scale). Null if they don't fit."""
    kind = f"decimal({precision},{scale})"
    if precision > _DIGITS_64_BITS or scale > _DIGITS_64_BITS:
        digits = bound(F.hex(value), lambda digits: _of_128_bits(digits).cast("string"))
        return F.concat(digits, F.lit(f"E-{scale}")).try_cast(kind)
    number = F.when(F.length(value) <= 8, _of_64_bits(F.hex(value)))
    unscaled = number.try_cast("bigint").cast("decimal(19,0)")
    if scale == 0:
        return unscaled.try_cast(kind)
    unit = F.lit(f"0.{'1':>0{scale}}").cast(f"decimal({scale},{scale})")
    return (unscaled * unit).try_cast(kind)


def to_text(value: SparkColumn, scale: SparkColumn) -> SparkColumn:
    """Bytes and scale → the number as PostgreSQL writes it. Null beyond ``BYTES_MAX``."""
    unscaled = bound(
        F.hex(value),
        lambda digits: F.coalesce(
            F.when(F.length(digits) <= 16, _of_64_bits(digits)),
            _of_128_bits(digits).cast("string"),
            F.when(F.length(digits) <= 2 * BYTES_MAX, _long(digits)),
        ),
    )
    number = F.struct(unscaled.alias("text"), scale.alias("scale"))
    return bound(number, lambda pair: _pointed(pair["text"], pair["scale"]))


def bound(value: SparkColumn, use: Callable[[SparkColumn], SparkColumn]) -> SparkColumn:
    """Return an expression that uses a value several times, and computes it once in Spark."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _pointed(unscaled: SparkColumn, scale: SparkColumn) -> SparkColumn:
    """Insert the point into digits."""
    sign = F.when(unscaled.startswith("-"), F.lit("-")).otherwise(F.lit(""))
    digits = F.ltrim(unscaled, F.lit("-"))
    wide = F.lpad(digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))
    split = F.length(wide) - scale
    return (
        F.when((scale == 0) | ((scale < 0) & (unscaled == "0")), unscaled)
        .when(scale < 0, F.concat(unscaled, F.repeat(F.lit("0"), -scale)))
        .otherwise(
            F.concat(sign, F.substr(wide, F.lit(1), split), F.lit("."), F.substr(wide, split + 1))
        )
    )


def _is_below_zero(hexadecimal: SparkColumn) -> SparkColumn:
    return F.substring(hexadecimal, 1, 1) >= _NEGATIVE


def _of_64_bits(hexadecimal: SparkColumn) -> SparkColumn:
    """Up to 16 hexadecimal digits → the text of a signed number."""
    fill = F.when(_is_below_zero(hexadecimal), F.lit("F")).otherwise(F.lit("0"))
    return F.conv(F.lpad(hexadecimal, 16, fill), 16, -10)


def _of_128_bits(hexadecimal: SparkColumn) -> SparkColumn:
    """Up to 32 hexadecimal digits → decimal(38,0). Null for more, or for 39 decimal ones.

    A negative number is minus its inverted bits, less one, so both halves have one sign.
    """

    def magnitude(digits: SparkColumn) -> SparkColumn:
        high = F.conv(F.substring(digits, 1, 16), 16, 10).cast("decimal(20,0)")
        low = F.conv(F.substring(digits, 17, 16), 16, 10).cast("decimal(20,0)")
        unit = F.lit(str(1 << 64)).cast("decimal(20,0)")
        return F.try_add(F.try_multiply(high, unit), low)

    digits = F.lpad(_magnitude(hexadecimal), 32, F.lit("0"))
    positive = F.when(F.length(hexadecimal) <= 32, bound(digits, magnitude))
    # Not -positive, as Spark's own minus keeps only 34 digits.
    negative = F.try_subtract(F.lit(-1).cast("decimal(1,0)"), positive)
    return F.when(_is_below_zero(hexadecimal), negative).otherwise(positive)


def _magnitude(hexadecimal: SparkColumn) -> SparkColumn:
    """Return the bits, inverted if the number is negative."""
    inverted = F.translate(hexadecimal, "0123456789ABCDEF", "FEDCBA9876543210")
    return F.when(_is_below_zero(hexadecimal), inverted).otherwise(hexadecimal)


def _long(hexadecimal: SparkColumn) -> SparkColumn:
    """Any number of hexadecimal digits → the text of a signed number."""
    below_zero = _is_below_zero(hexadecimal)
    magnitude = _magnitude(hexadecimal)
    steps = F.ceil(F.length(magnitude) / _STEP_DIGITS).cast("int")
    even = F.lpad(magnitude, steps * _STEP_DIGITS, F.lit("0"))
    pieces = F.transform(
        F.sequence(F.lit(0), steps - 1),
        lambda step: F.conv(
            F.substr(even, step * _STEP_DIGITS + 1, F.lit(_STEP_DIGITS)), 16, 10
        ).cast("bigint"),
    )
    zero = F.array().cast("array<bigint>")
    limbs = F.aggregate(pieces, zero, lambda limbs, piece: _times_and(limbs, _STEP, piece))
    carry = F.when(below_zero, F.lit(1)).otherwise(F.lit(0)).cast("bigint")
    whole = F.reverse(_times_and(limbs, 1, carry))
    rest = F.transform(
        F.slice(whole, F.lit(2), F.size(whole)),
        lambda limb: F.lpad(limb.cast("string"), _LIMB_DIGITS, F.lit("0")),
    )
    sign = F.when(below_zero, F.lit("-")).otherwise(F.lit(""))
    text = F.concat(
        F.coalesce(F.get(whole, F.lit(0)), F.lit(0)).cast("string"), F.concat_ws("", rest)
    )
    return F.concat(sign, text)


def _times_and(limbs: SparkColumn, factor: int, added: SparkColumn) -> SparkColumn:
    """Multiply limbs (the lowest first) by a factor, and add a number."""
    start = F.struct(added.alias("carry"), F.array().cast("array<bigint>").alias("done"))

    def step(state: SparkColumn, limb: SparkColumn) -> SparkColumn:
        product = limb * F.lit(factor).cast("bigint") + state["carry"]
        return F.struct(
            F.call_function("div", product, F.lit(_LIMB).cast("bigint")).alias("carry"),
            F.concat(state["done"], F.array(product % _LIMB)).alias("done"),
        )

    def finished(state: SparkColumn) -> SparkColumn:
        carried = F.filter(F.array(state["carry"]), lambda carry: carry > 0)
        return F.concat(state["done"], carried)

    return F.aggregate(limbs, start, step, finished)
