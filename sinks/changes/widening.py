"""Two Spark types → whether a Delta column of the one can hold the other, or become it.

https://docs.delta.io/latest/delta-type-widening.html lists what Delta widens without rewriting.
"""

import re
from typing import Final

_INTEGERS: Final = {"smallint": 5, "int": 10, "bigint": 20}
"""Decimal digits that Delta asks for; of a bigint one more than it has."""
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def holds(kind: str, other: str) -> bool:
    """Whether every value of the ``other`` type is one of ``kind`` as well."""
    return kind == other or widens(other, kind)


def widens(kind: str, to: str) -> bool:
    """Whether Delta makes a column of ``kind`` one of the type ``to``, its files as they are."""
    if kind in _INTEGERS:
        return _integer_widens(kind, to)
    if (decimal := _decimal(kind)) is not None:
        wider = _decimal(to)
        more = (0, 0) if wider is None else (wider[0] - decimal[0], wider[1] - decimal[1])
        return wider is not None and kind != to and more[0] >= more[1] >= 0
    return (kind, to) in {("float", "double"), ("date", "timestamp_ntz")}


def _integer_widens(kind: str, to: str) -> bool:
    if to in _INTEGERS:
        return _INTEGERS[to] > _INTEGERS[kind]
    decimal = _decimal(to)
    if decimal is not None:
        return decimal[0] - decimal[1] >= _INTEGERS[kind]
    return to == "double" and kind != "bigint"


def _decimal(kind: str) -> tuple[int, int] | None:
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None
