"""Codecs of booleans, integers, floats, bytes, bit strings, and types that are text in events."""

import math
import re
import struct
from binascii import unhexlify
from collections.abc import Callable
from typing import Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import (
    BYTES,
    STRING,
    Codec,
    ValueKind,
    base64,
    named,
    text,
)

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_FLOAT_BYTES = b"0123456789.e+-"
_ONE_DIGIT = re.compile(rb"-?[0-9](?:e-[0-9]+)?").fullmatch
_FLOAT_WORDS = {b"NaN": math.nan, b"Infinity": math.inf, b"-Infinity": -math.inf}
_BOOLS = {b"t": True, b"f": False}
_BITS = re.compile(rb"[01]*").fullmatch

BITS_MAX: Final = 2_147_483_647
"""The length that Debezium gives a ``varbit`` without one."""


def named_text(name: str) -> Codec:
    """Return the codec of text that has a name in Debezium: uuid, json and xml, for example."""
    return Codec(text, named(Type.STRING, f"io.debezium.data.{name}"), ValueKind.TEXT)


def of_enum(column: Column, _modes: ValueModes) -> Codec:
    """Return the codec of a label, with all labels at the time of the schema."""
    allowed = {"allowed": ",".join(column.labels)}
    schema = Schema(Type.STRING, name="io.debezium.data.Enum", version=1, parameters=allowed)
    return Codec(text, schema, ValueKind.TEXT)


def integer(type_: Type) -> Codec:
    """Return the codec of an integer of one of Connect's sizes. PostgreSQL checks the size."""
    return Codec(_integer, Schema(type_), ValueKind.INTEGER)


def _integer(value: bytes) -> int:
    if _INTEGER.fullmatch(value) is None:
        raise ValueError("not an integer")
    return int(value)


def to_float(value: bytes) -> float:
    """Return a float's text as a number."""
    if value.translate(None, _FLOAT_BYTES):
        return _FLOAT_WORDS[value]
    number = float(value)
    if number - number != 0:
        raise ValueError("out of a double's range")
    return number


def to_java_float(value: bytes) -> float:
    """Convert like ``to_float`` with the digits of Java's Float.toString, at least two.

    If one digit distinguishes a float4 from its neighbours (1e-45), PostgreSQL writes one. Java
    takes the nearest two digits (1.4E-45), which are another double.
    """
    number = to_float(value)
    if not _ONE_DIGIT(value):
        return number
    return float(f"{struct.unpack('f', struct.pack('f', number))[0]:.1e}")


def of_bytea(_column: Column, modes: ValueModes) -> Codec:
    """Return the codec of bytes, by binary.handling.mode."""
    return of_bytes(to_bytes, modes, ValueKind.BYTEA)


def of_bytes(
    inner: Callable[[bytes], bytes], modes: ValueModes, kind: ValueKind = ValueKind.OTHER
) -> Codec:
    """Return the codec of bytes that ``inner`` finds in the text, by binary.handling.mode."""
    match modes.binary:
        case "bytes":
            return Codec(inner, BYTES, kind)
        case "base64":
            return Codec(lambda value: base64(inner(value)), STRING, kind)
        case "base64-url-safe":
            safe = str.maketrans("+/", "-_")
            return Codec(lambda value: base64(inner(value)).translate(safe), STRING)
        case "hex":
            return Codec(lambda value: inner(value).hex(), STRING)


def to_bytes(value: bytes) -> bytes:
    r"""``\xdead`` as bytes."""
    if value[:2] != b"\\x":
        raise ValueError("not a bytea in hex")
    return unhexlify(value[2:])


def of_unknown(inner: Callable[[bytes], bytes]) -> Callable[[Column, ValueModes], Codec | None]:
    """Return the builder of a type that Debezium omits, or writes as the bytes of its text."""

    def build(_column: Column, modes: ValueModes) -> Codec | None:
        if not modes.include_unknown:
            return None
        return TEXT if modes.lossless else of_bytes(inner, modes)

    return build


def of_bits(column: Column, modes: ValueModes) -> Codec:
    """Return the codec of bits: text, or Debezium's little-endian bytes without their length.

    Debezium's ``bit`` and ``varbit(1)`` are booleans.
    """
    if modes.lossless:
        return Codec(_bits_text, STRING)
    length = BITS_MAX if column.modifier < 0 else column.modifier
    if length == 1 or (column.type == "bit" and column.modifier < 0):
        return Codec(_bit, Schema(Type.BOOLEAN))
    schema = Schema(
        Type.BYTES, name="io.debezium.data.Bits", version=1, parameters={"length": str(length)}
    )
    return Codec(_little_endian, schema)


def _bits_text(value: bytes) -> str:
    if not _BITS(value):
        raise ValueError("not bits")
    return value.decode()


def _bit(value: bytes) -> bool:
    return int(_bits_text(value) or "0", 2) != 0


def _little_endian(value: bytes) -> bytes:
    bits = int(_bits_text(value) or "0", 2)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


TEXT: Final = Codec(text, STRING, ValueKind.TEXT)
"""Plain text."""
BOOL: Final = Codec(_BOOLS.__getitem__, Schema(Type.BOOLEAN), ValueKind.BOOL)
FLOAT8: Final = Codec(to_float, Schema(Type.DOUBLE), ValueKind.FLOAT)
"""A double. NaN and infinity are words in JSON."""
FLOAT4: Final = Codec(to_float, Schema(Type.FLOAT), ValueKind.FLOAT)
"""A float: the double of PostgreSQL's shortest digits."""
JAVA_FLOAT4: Final = FLOAT4._replace(decode=to_java_float)
"""The double of the digits that Java writes."""
