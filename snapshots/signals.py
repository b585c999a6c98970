"""A signal's type and data (JSON) → what it asks for; pure.

https://debezium.io/documentation/reference/3.6/configuration/signalling.html
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["incremental", "blocking"]

_IGNORED: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})
"""Watermarks: they are known by their ids."""


class SignalError(ValueError):
    """A signal that can't be followed; the text says why."""


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """Read tables whose names match; ``conditions``: SQL for some of them, by their patterns.

    ``reset``, a member of our own: rows that are gone are to disappear.
    """

    collections: tuple[str, ...]
    kind: Kind
    conditions: tuple[tuple[str, str], ...] = ()
    reset: bool = False


@dataclass(frozen=True, slots=True)
class StopSnapshot:
    """Give up incremental snapshots: of the tables whose names match, or of all."""

    collections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """Read no further chunk: of the tables whose names match, or of all."""

    collections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeSnapshot:
    """Go on after a pause: with the tables whose names match, or with all."""

    collections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Write a line to our log."""

    message: str


Signal = ExecuteSnapshot | StopSnapshot | PauseSnapshot | ResumeSnapshot | LogMessage


def parse(kind: str, data: str | Mapping[str, Any] | None) -> Signal | None:
    """Read a signal of that type; None where there is nothing to do; raises SignalError.

    ``data`` is the JSON's text, or what it says.
    """
    if kind in _IGNORED:
        return None
    if kind == "execute-snapshot":
        return _execute(_members(data))
    if kind == "stop-snapshot":
        members = _members(data)
        if _kind(members) != "incremental":
            raise SignalError('only a snapshot of type "incremental" can be stopped')
        return StopSnapshot(_names(members))
    if kind == "pause-snapshot":
        return PauseSnapshot(_names(_members(data)))
    if kind == "resume-snapshot":
        return ResumeSnapshot(_names(_members(data)))
    if kind == "log":
        return LogMessage(_text(_members(data), "message"))
    raise SignalError(f"there is no signal of type {kind!r}")


def _execute(members: Mapping[str, Any]) -> ExecuteSnapshot:
    collections = _names(members)
    if not collections:
        raise SignalError("data-collections names no table")
    for unknown in ("additional-condition", "surrogate-key"):
        if members.get(unknown) is not None:
            raise SignalError(f"{unknown} isn't supported (additional-conditions is)")
    conditions = _list(members, "additional-conditions")
    if conditions is None or not all(isinstance(condition, dict) for condition in conditions):
        raise SignalError("additional-conditions isn't a list of objects")
    pairs = tuple(
        (_text(condition, "data-collection"), _text(condition, "filter"))
        for condition in conditions
    )
    reset = members.get("reset", False)
    if not isinstance(reset, bool):
        raise SignalError("reset isn't true or false")
    return ExecuteSnapshot(collections, _kind(members), pairs, reset)


def _members(data: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(data, Mapping):
        return data
    try:
        members = json.loads(data) if data and data.strip() else {}
    except ValueError as error:
        raise SignalError(f"its data isn't JSON: {error}") from None
    except RecursionError:
        raise SignalError("its data is nested too deeply") from None
    if not isinstance(members, dict):
        raise SignalError("its data isn't a JSON object")
    return members


def _kind(members: Mapping[str, Any]) -> Kind:
    kind = str(members.get("type") or "incremental").lower()
    if kind == "incremental":
        return "incremental"
    if kind == "blocking":
        return "blocking"
    raise SignalError(f"there is no snapshot of type {kind!r}")


def _names(members: Mapping[str, Any]) -> tuple[str, ...]:
    names = _list(members, "data-collections")
    if names is None or not all(isinstance(name, str) for name in names):
        raise SignalError("data-collections isn't a list of names")
    return tuple(name.strip() for name in names)


def _list(members: Mapping[str, Any], name: str) -> list[Any] | None:
    """A list, empty where there is none; None where it is something else."""
    given = members.get(name)
    if given is None:
        return []
    return given if isinstance(given, list) else None


def _text(members: Mapping[str, Any], name: str) -> str:
    text = members.get(name)
    if not isinstance(text, str) or not text.strip():
        raise SignalError(f"{name} is missing, or isn't text")
    return text.strip()
