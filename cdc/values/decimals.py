"""Codecs of numeric and money, by decimal.handling.mode."""

import re
from collections.abc import Callable
from typing import Any, Final

from cdc.records.connect import Field, Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import (
    BYTES,
    STRING,
    Codec,
    UnconvertibleError,
    ValueKind,
)

_NUMERIC = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?|NaN|-?Infinity")
_MONEY = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_SPECIAL = {b"NaN": "NAN", b"Infinity": "POSITIVE_INFINITY", b"-Infinity": "NEGATIVE_INFINITY"}
_INT_DIGITS_MAX = 4_000
"""Python's int() refuses texts longer than 4,300 digits, as its time grows with their square."""
_DIGITS_MAX = 150_000
"""PostgreSQL's own limit is 131,072 before the point and 16,383 after it."""
_MONEY_SCALE: Final = 2

VARIABLE_SCALE: Final = Schema(
    Type.STRUCT,
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    doc="Variable scaled decimal",
    fields=(Field("scale", Schema(Type.INT32)), Field("value", BYTES)),
)


def of_numeric(column: Column, modes: ValueModes) -> Codec:
    """Return the codec of a numeric: its text, a Decimal, or a double."""
    match modes.decimal:
        case "string" if not modes.lossless:
            return _string(column, modes)
        case "text" | "string":
            return Codec(_numeric, STRING, ValueKind.NUMERIC_TEXT)
        case "double":
            return _double(_numeric)
        case "precise":
            return _precise(column, modes)


def of_money(_column: Column, modes: ValueModes) -> Codec:
    """Return the codec of money, without its currency sign, with two decimals (lc_monetary=C)."""
    match modes.decimal:
        case "text" | "string":
            return Codec(_money, STRING)
        case "double":
            return _double(_money)
        case "precise":
            return Codec(
                lambda value: to_unscaled(_money(value), _MONEY_SCALE), decimal_schema(_MONEY_SCALE)
            )


def decimal_schema(scale: int, precision: int | None = None) -> Schema:
    """Return Connect's Decimal. Debezium adds the precision."""
    parameters = {"scale": str(scale)}
    if precision is not None:
        parameters["connect.decimal.precision"] = str(precision)
    name = "org.apache.kafka.connect.data.Decimal"
    return Schema(Type.BYTES, name=name, version=1, parameters=parameters)


def to_unscaled(number: str, scale: int) -> bytes:
    """Return a number's digits, without the point, as Java's BigInteger: big-endian."""
    whole, _, fraction = number.partition(".")
    if scale < 0:
        if fraction or whole.lstrip("-")[scale:].strip("0"):
            raise UnconvertibleError("it has more digits than its declared scale")
        return _big_endian(_integer(whole[:scale]) if len(whole.lstrip("-")) > -scale else 0)
    if len(fraction) > scale:
        raise UnconvertibleError("it has more digits than its declared scale")
    return _big_endian(_integer(whole + fraction.ljust(scale, "0")))


def declared_scale(column: Column, modes: ValueModes) -> tuple[int, int] | None:
    """Return (precision, scale) of the schema. Debezium takes a negative scale for a large one."""
    declared = column.precision_scale
    if declared is None or modes.lossless:
        return declared
    return declared[0], declared[1] & 0x7FF


def with_scale(number: str, scale: int) -> str:
    """Return the number with zeros after its point up to the scale."""
    missing = scale - len(number.partition(".")[2])
    if missing <= 0:
        return number
    return number + ("" if "." in number else ".") + "0" * missing


def _numeric(value: bytes) -> str:
    if not value.replace(b".", b"", 1).isdigit() and _NUMERIC.fullmatch(value) is None:
        raise ValueError("not a numeric")
    return value.decode()


def _finite(value: bytes) -> str:
    number = _numeric(value)
    if value in _SPECIAL:
        raise UnconvertibleError(f"{number} is no Decimal")
    return number


def _string(column: Column, modes: ValueModes) -> Codec:
    declared = declared_scale(column, modes)
    misread = declared is not None and declared != column.precision_scale
    scale = declared[1] if declared and misread else 0

    def in_java(value: bytes) -> str:
        return _SPECIAL.get(value) or with_scale(_numeric(value), scale)

    return Codec(in_java, STRING, ValueKind.OTHER if misread else ValueKind.NUMERIC_TEXT)


def _double(inner: Callable[[bytes], str]) -> Codec:
    return Codec(lambda value: float(inner(value)), Schema(Type.DOUBLE))


def _precise(column: Column, modes: ValueModes) -> Codec:
    declared = declared_scale(column, modes)
    if declared is None:
        return Codec(_kept_scale if modes.lossless else _stripped_scale, VARIABLE_SCALE)
    precision, scale = declared
    regular = (column.precision_scale or declared)[1] >= 0
    return Codec(
        lambda value: to_unscaled(_finite(value), scale),
        decimal_schema(scale, precision),
        ValueKind.DECIMAL if regular else ValueKind.OTHER,
        scale if regular else 0,
    )


def _kept_scale(value: bytes) -> dict[str, Any]:
    return _variable_scale(_finite(value))


def _stripped_scale(value: bytes) -> dict[str, Any]:
    number = _finite(value)
    return _variable_scale(number.rstrip("0").rstrip(".") if "." in number else number)


def _variable_scale(number: str) -> dict[str, Any]:
    scale = len(number.partition(".")[2])
    return {"scale": scale, "value": to_unscaled(number, scale)}


def _money(value: bytes) -> str:
    """Return ``-$1,234.50`` as ``-1234.50``."""
    number = value.replace(b"$", b"", 1).replace(b",", b"")
    if _MONEY.fullmatch(number) is None:
        raise ValueError("not an amount of money")
    return number.decode()


def _integer(digits: str) -> int:
    """Convert long ones in halves, so that the time grows only with the multiplication's."""
    if len(digits) <= _INT_DIGITS_MAX:
        return int(digits)
    if len(digits) > _DIGITS_MAX:
        raise ValueError("more digits than a numeric has")
    if digits[0] == "-":
        return -_integer(digits[1:])
    low = len(digits) // 2
    shift: int = 10**low
    return _integer(digits[:-low]) * shift + _integer(digits[-low:])


def _big_endian(number: int) -> bytes:
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)
