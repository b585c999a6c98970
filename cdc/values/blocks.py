"""The parts of codecs: a text → a Connect value, with its schema."""

import math
from binascii import b2a_base64
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final, NamedTuple

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes

Decode = Callable[[bytes], Any]

MALFORMED: Final = (ValueError, LookupError)
"""Errors of a codec's functions for a text that isn't of the type."""


class UnconvertibleError(ValueError):
    """A value without a form in the chosen mode, such as NaN as a Decimal."""


class ValueKind(IntEnum):
    r"""Texts that the extension may write, and their forms.

    A kind is a promise about the usual texts only. A text of any other form goes to the codec's
    ``decode``, which also refuses texts that aren't of the type.

    - TEXT: any UTF-8 text → a JSON string.
    - INTEGER: ``0|-?[1-9][0-9]{0,18}`` → copied.
    - BOOL: ``t``, ``f`` → true, false.
    - FLOAT: at most 16 bytes of ``-?([1-9][0-9]*|0)\.[0-9]*[1-9]``, with at most three zeros after
      ``0.`` → copied; ``-?(0|[1-9][0-9]{0,14})`` → copied, with ``.0`` appended.
    - NUMERIC_TEXT: ``-?[0-9]+(\.[0-9]+)?`` → in quotes.
    - DATE: ``YYYY-MM-DD``, a valid date → days since 1970-01-01.
    - TIMESTAMP_US, TIMESTAMP_MS: ``YYYY-MM-DD hh:mm:ss[.f]``, a valid time, up to six or three
      digits → µs or ms since 1970-01-01.
    - TIMESTAMPTZ: the same with ``+00`` appended → ``"YYYY-MM-DDThh:mm:ss.fZ"``, f filled up with
      zeros to ``digits``; without a point if ``digits`` is 0 and there is no fraction.
    - BYTEA: ``\x`` and pairs of hex digits → base64 in quotes.
    - DECIMAL: ``-?[0-9]+`` and, if ``digits`` isn't 0, a point and as many digits → an integer
      without the point, two's complement, big-endian, in the fewest bytes, base64 in quotes.
    - …_ARRAY: ``{}`` or one dimension, separated by commas, of texts of the element's kind, bare or
      in quotes; only TEXT's may have escapes within quotes → a list in the element kind's form; a
      bare NULL is null.
    - OTHER: none.
    """

    OTHER = 0
    TEXT = 1
    INTEGER = 2
    BOOL = 3
    FLOAT = 4
    NUMERIC_TEXT = 5
    DATE = 6
    TIMESTAMP_US = 7
    TIMESTAMP_MS = 8
    TIMESTAMPTZ = 9
    BYTEA = 10
    DECIMAL = 11
    TEXT_ARRAY = 17
    INTEGER_ARRAY = 18
    BOOL_ARRAY = 19
    FLOAT_ARRAY = 20
    NUMERIC_TEXT_ARRAY = 21
    DATE_ARRAY = 22
    TIMESTAMP_US_ARRAY = 23
    TIMESTAMP_MS_ARRAY = 24
    TIMESTAMPTZ_ARRAY = 25
    DECIMAL_ARRAY = 27

    @property
    def of_array(self) -> "ValueKind":
        """Return the kind of an array whose elements are of this kind."""
        return ValueKind.__members__.get(f"{self.name}_ARRAY", ValueKind.OTHER)

    @property
    def of_element(self) -> "ValueKind":
        """Return the kind of an array's elements, or of the value itself."""
        return ValueKind[self.name.removesuffix("_ARRAY")]


class Codec(NamedTuple):
    """The meaning of a type's text, as a Connect value.

    ``schema`` doesn't include the column's optionality or default. ``digits`` belongs to the kinds
    TIMESTAMPTZ and DECIMAL, and to arrays of them.
    """

    decode: Decode
    schema: Schema
    kind: ValueKind = ValueKind.OTHER
    digits: int = 0


Builder = Callable[[Column, ValueModes], Codec]
"""A column and the modes → the codec of its values, or of its elements."""

STRING: Final = Schema(Type.STRING)
BYTES: Final = Schema(Type.BYTES)


def named(type_: Type, name: str) -> Schema:
    """Return a schema of one of Debezium's own types. All of them have version 1."""
    return Schema(type_, name=name, version=1)


def text(value: bytes) -> str:
    """Return PostgreSQL's text itself."""
    return value.decode()


def base64(value: bytes) -> str:
    """Return Base64 in one line."""
    return b2a_base64(value, newline=False).decode()


def always(codec: Codec) -> Builder:
    """Return the builder of a type that is the same in every mode."""
    return lambda _column, _modes: codec


def lossy(native: Codec, debezium: Codec) -> Builder:
    """Return the builder of a type that has another form if Debezium's loses information."""
    return lambda _column, modes: native if modes.lossless else debezium


def java_double(value: float) -> str:
    """Return Java's Double.toString: always a point, an exponent from 10^7 on and below 10^-3."""
    if not math.isfinite(value):
        return float_word(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if len(digits) == 1:  # Java writes at least two, those nearest to the number
        sign, digits, exponent = Decimal(f"{value:.1e}").as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(rest)}E{int(exponent) + len(rest)}"


def float_word(value: float) -> str:
    """Return NaN or infinity in the words of PostgreSQL and Java."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
