"""A signal's type and data → its request, or what is wrong with it.

https://debezium.io/documentation/reference/3.6/configuration/signalling.html
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

_TYPES: Final = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log")
_IGNORED: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})
"""Watermarks, which are recognized by their ids."""
NAMES_MAX: Final = 1_000
"""How many names a signal may have, and how many conditions."""


class SignalError(ValueError):
    """A signal that can't be followed. The text says why."""


class Signal(NamedTuple):
    """A signal's request, for the tables whose names match, or else for all.

    Only execute-snapshot has the other members: ``kind`` of read; ``conditions``, SQL for some of
    the tables, by their patterns; and ``reset``, our own member: rows that are gone must disappear.
    A log signal's ``message`` is a line for our log.
    """

    type: str
    collections: tuple[str, ...] = ()
    kind: Literal["incremental", "blocking"] = "incremental"
    conditions: tuple[tuple[str, str], ...] = ()
    reset: bool = False
    message: str = ""


def parse(type_: str, data: object) -> Signal | None:
    """Parse a signal of that type. Return None if it needs no action. Raise SignalError.

    ``data`` is the JSON text, or its value.
    """
    if type_ in _IGNORED:
        return None
    if type_ not in _TYPES:
        raise SignalError(f"unknown signal type {type_!r}")
    members = _members(data)
    if type_ == "log":
        return Signal(type_, message=_text(members, "message"))
    names = _list(members, "data-collections", str, "names")
    signal = Signal(type_, tuple(name.strip() for name in names))
    if type_ == "execute-snapshot":
        return _execute(signal, members)
    if type_ == "stop-snapshot" and _kind(members) != "incremental":
        raise SignalError('only a snapshot of type "incremental" can be stopped')
    return signal


def _execute(signal: Signal, members: Mapping[str, Any]) -> Signal:
    if not signal.collections:
        raise SignalError("data-collections names no table")
    if members.get("additional-condition") is not None:
        raise SignalError("additional-condition isn't supported: use additional-conditions")
    if members.get("surrogate-key") is not None:
        _text(members, "surrogate-key")  # chunks are pages, so they need no key
    conditions = _list(members, "additional-conditions", dict, "objects")
    pairs = tuple(
        (_text(condition, "data-collection"), _text(condition, "filter"))
        for condition in conditions
    )
    if pairs:
        from cdc.postgres.checks.condition_tokens import CHARACTERS_MAX  # its parser is large

        if any(len(text) > CHARACTERS_MAX for _, text in pairs):
            raise SignalError(f"filter has more than {CHARACTERS_MAX:,} characters")
    reset = members.get("reset", False)
    if not isinstance(reset, bool):
        raise SignalError("reset isn't true or false")
    return signal._replace(kind=_kind(members), conditions=pairs, reset=reset)


def _members(data: object) -> Mapping[str, Any]:
    """Return the members of a signal's data: an object, or its JSON text, as in the table."""
    members = data
    try:
        if data is None or isinstance(data, str):
            members = read_json(data) if data and data.strip() else {}
    except ValueError as error:
        raise SignalError(f"its data isn't JSON: {error}") from None
    except RecursionError:
        raise SignalError("its data is nested too deeply") from None
    if not isinstance(members, Mapping):
        raise SignalError("its data isn't a JSON object")
    return members


def read_json(text: str | bytes) -> object:
    """Read JSON whose texts are UTF-8. Raise ValueError or RecursionError."""
    value: object = json.loads(text)
    # Half a surrogate pair, which an escape can produce, fits into no record.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _kind(members: Mapping[str, Any]) -> Literal["incremental", "blocking"]:
    kind = str(members.get("type") or "incremental").lower()
    if kind == "incremental":
        return "incremental"
    if kind == "blocking":
        return "blocking"
    raise SignalError(f"unknown snapshot type {kind!r}")


def _list(members: Mapping[str, Any], name: str, kind: type, what: str) -> list[Any]:
    """Return a member that is a list of such values. Empty if it is missing. Raise SignalError."""
    given = [] if members.get(name) is None else members[name]
    if not isinstance(given, list) or not all(isinstance(each, kind) for each in given):
        raise SignalError(f"{name} isn't a list of {what}")
    if len(given) > NAMES_MAX:
        raise SignalError(f"{name} has more than {NAMES_MAX:,} {what}")
    return given


def _text(members: Mapping[str, Any], name: str) -> str:
    text = members.get(name)
    if not isinstance(text, str) or not text.strip():
        raise SignalError(f"{name} is missing, or isn't text")
    return text.strip()
