"""A value as PostgreSQL prints it, and one in an event → whether they are the same.

It follows the log's documented form (docs/reference/types.md), independently of the code that
writes it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from tests.chaos.witness import Row, Value

_FORMS: Final[Mapping[str, Callable[[str, Any], bool]]] = {
    "integer": lambda text, logged: type(logged) is int and logged == int(text),
    "bigint": lambda text, logged: type(logged) is int and logged == int(text),
    "double precision": lambda text, logged: float(logged) == float(text),
    "boolean": lambda text, logged: logged is (text == "true"),
    "timestamp with time zone": lambda text, logged: (
        datetime.fromisoformat(logged) == datetime.fromisoformat(text)
    ),
    "text[]": lambda text, logged: "{" + ",".join(logged) + "}" == text,
}
"""Types that aren't text in an event, as the same text."""


def same_value(truth: Value, logged: Any) -> bool:
    """Compare one value; an absent one is None."""
    if truth.text is None or logged is None:
        return truth.text is logged
    same = _FORMS.get(truth.type)
    return bool(logged == truth.text) if same is None else same(truth.text, logged)


def differing(truth: Row, logged: Mapping[str, Any], *, complete: bool) -> list[str]:
    """Names of columns whose values differ; ``complete``: the event has to have all of them.

    A value that wasn't in the WAL (TOAST, unchanged) may be absent, or the newest one.
    """
    names = [
        name
        for name, value in truth.items()
        if not value.unchanged and not same_value(value, logged.get(name))
    ]
    if complete:
        names += [name for name, value in truth.items() if not value.unchanged | (name in logged)]
    return names + [name for name in logged if name not in truth]
