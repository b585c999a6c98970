"""A value as PostgreSQL prints it, and one in an event → are they the same?

Written from the log's documented form (docs/types.md), apart from the code that makes it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.chaos.witness import Row, Value


def same_value(truth: Value, logged: Any) -> bool:
    """Compare one value; an absent one is None."""
    if truth.text is None or logged is None:
        return truth.text is logged
    if truth.type in {"integer", "bigint"}:
        return type(logged) is int and logged == int(truth.text)
    if truth.type == "double precision":
        return float(logged) == float(truth.text)
    if truth.type == "boolean":
        return logged is (truth.text in {"t", "true"})
    if truth.type == "timestamp with time zone":
        return datetime.fromisoformat(logged) == datetime.fromisoformat(truth.text)
    if truth.type.endswith("[]"):
        return "{" + ",".join(logged) + "}" == truth.text
    return bool(logged == truth.text)


def differing(truth: Row, logged: Mapping[str, Any], *, complete: bool) -> list[str]:
    """Names of columns whose values differ; ``complete``: the event has to have all of them.

    A value that wasn't in the WAL (TOAST, unchanged) may be absent, or the newest one.
    """
    found = [
        name
        for name, value in truth.items()
        if not value.unchanged and not same_value(value, logged.get(name))
    ]
    if complete:
        found += [name for name, value in truth.items() if not value.unchanged | (name in logged)]
    return found + [name for name in logged if name not in truth]
