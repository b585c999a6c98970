"""A name → one that Avro allows, by Debezium's schema.name and field.name adjustment modes.

``avro`` puts an underscore in the place of what isn't allowed, ``avro_unicode`` its code point
(``_u00e4``; there the underscore itself is replaced too, so that no two names become one).
https://debezium.io/documentation/reference/stable/connectors/postgresql.html (adjustment.mode)
"""

import re
from collections.abc import Callable
from typing import Final, Literal

Adjustment = Literal["none", "avro", "avro_unicode"]
Adjust = Callable[[str], str]

ADJUSTMENTS: Final[tuple[Adjustment, ...]] = ("none", "avro", "avro_unicode")


def schema_name(mode: Adjustment) -> Adjust:
    """Return the function for names of schemas, which have dots between their parts."""
    return _adjust(mode, within="0-9.")


def field_name(mode: Adjustment) -> Adjust:
    """Return the function for names of struct members."""
    return _adjust(mode, within="0-9")


def _adjust(mode: Adjustment, *, within: str) -> Adjust:
    if mode == "none":
        return str
    first = "A-Za-z" if mode == "avro_unicode" else "A-Za-z_"
    bad_first, bad_later = re.compile(f"[^{first}]"), re.compile(f"[^{first}{within}]")
    replace = _code_point if mode == "avro_unicode" else _underscore

    def adjust(name: str) -> str:
        if not name:
            return name
        start = name[0]
        if bad_first.match(start):
            keeps_digit = mode == "avro" and start.isdigit()
            start = replace(start) + (start if keeps_digit else "")
        return start + bad_later.sub(lambda match: replace(match[0]), name[1:])

    return adjust


def _underscore(character: str) -> str:
    return "_" * _utf16_units(character)


def _code_point(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"_u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _utf16_units(character: str) -> int:
    return len(character.encode("utf-16-be", "surrogatepass")) // 2
