"""[transforms] and [predicates]: named things, each a class and its options, in their order.

Kafka Connect's names for both; what a class makes of its options is its own affair.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Named(NamedTuple):
    """One of them: the class that Kafka Connect knows it by, and its options as text."""

    name: str
    type: str
    options: Mapping[str, str]


def in_order(section: Any) -> Any:
    """``{"order": "a,b", "a.type": …, "a.add.fields": …}`` → all of them in their order.

    Without ``order`` they come as they are written.
    """
    if not isinstance(section, Mapping):
        return section
    given: dict[str, dict[str, str]] = {}
    for key, value in section.items():
        name, dot, option = str(key).partition(".")
        if dot:
            given.setdefault(name, {})[option] = _text(value)
        elif name != "order":
            raise ValueError(f"{name}: no such key; options are <name>.type, <name>.…")
    order = [part.strip() for part in str(section.get("order", ",".join(given))).split(",")]
    order = [name for name in order if name]
    if sorted(order) != sorted(given):
        odd = sorted(set(order) ^ set(given)) or order
        raise ValueError(f"order must name each transform once: {', '.join(odd)}")
    for name in order:
        if not given[name].get("type"):
            raise ValueError(f"{name}.type is required")
    return tuple(Named(name, given[name].pop("type"), given[name]) for name in order)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
