"""column.mask.*, column.truncate.* → functions that hide values before they get into an event.

A rule acts on the value that the event would show. So a fixed mask also replaces NULL and the
placeholder of an unchanged value. It never acts on a record's key, which must keep rows apart.
https://debezium.io/documentation/reference/3.6/connectors/postgresql.html#postgresql-property-column-mask-hash
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ColumnRule

Apply = Callable[[Any], Any]
"""The value before the rule → the value in the event."""

_CHARACTERS: Final = {"text", "varchar", "bpchar", "name", "char", "enum"}
"""Debezium's text types. It doesn't change a masked citext, json or inet."""
_LONG_STRING: Final = 0xFFFF
_UNITS: Final = "utf-16-le"


def applies(rule: ColumnRule, column: Column, schema: Schema, *, lossless: bool) -> bool:
    """Whether the rule can change the column's values.

    Lossless: any value that is text in an event. Otherwise: Debezium's text types.
    """
    if rule.kind == "truncate":
        return schema.type in {Type.STRING, Type.BYTES}
    if lossless:
        return schema.type is Type.STRING
    return column.type in _CHARACTERS and not column.array


def mask(rule: ColumnRule, column: Column, *, lossless: bool) -> Apply:
    """Return the function of a rule for a column."""
    if rule.kind == "mask":
        asterisks = "*" * rule.length
        return lambda _value: asterisks
    if rule.kind == "truncate":
        return _whole_characters(rule.length) if lossless else _utf16_units(rule.length)
    return _hash(rule, _length(column))


def parameters(rule: ColumnRule) -> dict[str, str]:
    """Return the rule's parameters in the column's schema."""
    if rule.kind == "truncate":
        return {"truncateLength": str(rule.length)}
    return {"masked": "true"}


def _hash(rule: ColumnRule, length: int | None) -> Apply:
    salt, name = rule.salt.encode(), rule.hash.replace("-", "")  # SHA-256 → sha256
    to_bytes = _serialized if rule.version == 1 else str.encode

    def hashed(value: Any) -> str | None:
        if value is None:
            return None
        return hashlib.new(name, salt + to_bytes(value)).hexdigest()[:length]

    return hashed


def _length(column: Column) -> int | None:
    """Return the length to which a hash is cut: 50 for ``varchar(50)``."""
    if column.type in {"varchar", "bpchar"} and column.modifier >= 4:
        return column.modifier - 4
    return 1 if column.type == "char" else None


def _whole_characters(count: int) -> Apply:
    return lambda value: None if value is None else value[:count]


def _utf16_units(count: int) -> Apply:
    """Return the function that cuts to Java characters.

    One above U+FFFF has two, and may be split.
    """

    def truncated(value: Any) -> Any:
        if not isinstance(value, str):
            return None if value is None else value[:count]
        units = value.encode(_UNITS, "surrogatepass")
        if len(units) <= 2 * count:
            return value
        return units[: 2 * count].decode(_UNITS, "surrogatepass")

    return truncated


def _serialized(text: str) -> bytes:
    """Serialize the text as Java does with a String.

    Debezium's first kind of hash uses these bytes.

    https://docs.oracle.com/en/java/javase/21/docs/specs/serialization/protocol.html
    """
    units = text.encode("utf-16-be", "surrogatepass")
    points = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    modified = "".join(map(chr, points)).encode("utf-8", "surrogatepass")
    if len(modified) <= _LONG_STRING:
        return b"\xac\xed\x00\x05t" + len(modified).to_bytes(2, "big") + modified
    return b"\xac\xed\x00\x05|" + len(modified).to_bytes(8, "big") + modified
