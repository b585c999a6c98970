"""Signals, whichever channel they come by → the reads that tables' state records ask for.

What a signal asks for gets into these records in the same Kafka transaction as the place that the
channel has reached: after a start it is neither forgotten nor done twice. A signal that can't be
followed is a warning, never an error; so it must neither take long, nor fill a record, since each
start would come by it again.
https://debezium.io/documentation/reference/3.6/configuration/signalling.html
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import structlog

from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.settings import CaptureSettings
from cdc.settings.modes import Patterns
from cdc.tables.tables import Tables

log = structlog.get_logger()
_ALL = (".*",)
_TYPES: Final = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log")
_IGNORED: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})
"""Watermarks: they are known by their ids."""


_CHARACTERS_MAX: Final = 1_000
"""Of a signal's id, and of each name or pattern in it."""
_NAMES_MAX: Final = 1_000
_REPEATS_MAX: Final = 3
"""Of a pattern, none of them of its one group: what it takes to match grows with each."""
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_REPEATS: Final = re.compile(r"[*+?{]")
_REQUESTS_BYTES_MAX: Final = 256 << 10
"""Of a table whose requests have so many nothing more is asked for: its record has to fit."""


class SignalError(ValueError):
    """A signal that can't be followed; the text says why."""


class Signal(NamedTuple):
    """What a signal of a type asks for: of the tables whose names match, or else of all.

    Only execute-snapshot has the others: ``kind`` of read; ``conditions``, SQL for some of the
    tables, by their patterns; and ``reset``, a member of our own: rows that are gone are to
    disappear. A log signal's ``message`` is a line for our log.
    """

    type: str
    collections: tuple[str, ...] = ()
    kind: Literal["incremental", "blocking"] = "incremental"
    conditions: tuple[tuple[str, str], ...] = ()
    reset: bool = False
    message: str = ""


def parse(type_: str, data: object) -> Signal | None:
    """Read a signal of that type; None where there is nothing to do; raises SignalError.

    ``data`` is the JSON's text, or what it says.
    """
    if type_ in _IGNORED:
        return None
    if type_ not in _TYPES:
        raise SignalError(f"there is no signal of type {type_!r}")
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


def _check_channel(signal: Signal, *, by_topic: bool) -> None:
    if by_topic and signal.kind == "blocking" and signal.conditions:
        raise SignalError("a SELECT of one's own is taken from the signal table alone")


def _execute(signal: Signal, members: Mapping[str, Any]) -> Signal:
    if not signal.collections:
        raise SignalError("data-collections names no table")
    if members.get("additional-condition") is not None:
        raise SignalError("additional-condition isn't supported (additional-conditions is)")
    if members.get("surrogate-key") is not None:
        _text(members, "surrogate-key")  # no key is needed to tell chunks apart: pages do
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
    """A signal's data are an object; a text is one within, as it is in the table."""
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
    """Read JSON whose texts are UTF-8; raises ValueError and RecursionError."""
    value: object = json.loads(text)
    # A half of a surrogate pair, which an escape can give, fits into no record.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _kind(members: Mapping[str, Any]) -> Literal["incremental", "blocking"]:
    kind = str(members.get("type") or "incremental").lower()
    if kind == "incremental":
        return "incremental"
    if kind == "blocking":
        return "blocking"
    raise SignalError(f"there is no snapshot of type {kind!r}")


def _list(members: Mapping[str, Any], name: str, kind: type, what: str) -> list[Any]:
    """A list of such things, empty where there is none."""
    given = [] if members.get(name) is None else members[name]
    if not isinstance(given, list) or not all(isinstance(each, kind) for each in given):
        raise SignalError(f"{name} isn't a list of {what}")
    if len(given) > _NAMES_MAX:
        raise SignalError(f"{name} has more than {_NAMES_MAX:,} {what}")
    return given


def _text(members: Mapping[str, Any], name: str) -> str:
    text = members.get(name)
    if not isinstance(text, str) or not text.strip():
        raise SignalError(f"{name} is missing, or isn't text")
    return text.strip()


def queued(tables: Tables, *, paused: bool | None = None) -> list[TableName]:
    """The tables that signals want read while streaming goes on, in order; or the paused ones."""
    tables_in_order = sorted(
        (request.order, name)
        for name in tables.states.requested
        for request in tables.states[name].requests
        if request.kind == "incremental" and not request.is_own
        if paused in {None, request.paused}
    )
    return list(dict.fromkeys(name for _, name in tables_in_order))


class Requests:
    """The requests of signals, and what becomes of them."""

    def __init__(self, settings: CaptureSettings, tables: Tables) -> None:
        self._settings = settings
        self._tables = tables
        self._states = tables.states

    def follow(
        self,
        signal: str,
        type_: str,
        data: object,
        position: Position,
        *,
        by_topic: bool = False,
    ) -> list[Record]:
        """Do what the signal of that id says, at the stream's position; returns the records.

        Who may write to the topic may not read what the daemon may: no SELECT comes ``by_topic``.
        """
        try:
            _check_id(signal)
            asked = parse(type_, data)
            if asked is None:
                return []
            _check_channel(asked, by_topic=by_topic)
            match asked.type:
                case "execute-snapshot":
                    return self._execute(signal, asked, position)
                case "stop-snapshot":
                    return self._stop(signal, asked.collections, position)
                case "pause-snapshot" | "resume-snapshot" as wanted:
                    paused = wanted == "pause-snapshot"
                    return self._pause(signal, asked.collections, position, paused=paused)
                case "log":
                    log.info("signal", signal=signal, message=asked.message)
        except SignalError as error:
            reason, kind = str(error)[:_CHARACTERS_MAX], type_[:_CHARACTERS_MAX]
            shown = signal[:_CHARACTERS_MAX]
            log.warning("a signal is ignored", signal=shown, type=kind, reason=reason)
        return []

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables that are to be read while streaming pauses, in order."""
        tables_in_order = sorted(
            (request.order, name, request.condition)
            for name in self._states.requested
            if not self._states.is_set_aside(name)
            for request in self._states[name].requests
            if request.kind == "blocking"
        )
        return {name: condition for _, name, condition in tables_in_order}

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Take notice that these were read."""
        return [
            self._states.set_requests(table, [each for each in requests if each.kind != "blocking"])
            for table in tables
            if (requests := self._states[table].requests)
        ]

    def _execute(self, signal: str, asked: Signal, position: Position) -> list[Record]:
        incremental = asked.kind == "incremental"
        is_first = not queued(self._tables)
        paused = incremental and not is_first and not queued(self._tables, paused=False)
        conditions = [(_pattern(name), text) for name, text in asked.conditions]
        is_reset = incremental and asked.reset
        matching = self._matching(asked.collections)
        names, left_out = self._without_set_aside(matching, signal, is_reset=is_reset)
        for name in names:
            _check_room(name, self._states[name].requests)
        if not incremental and self._settings.lossless:
            names = [name for name in names if self._has_key(name, signal)]
        wanted = {
            name: next((text for pattern, text in conditions if pattern.match(str(name))), None)
            for name in names
        }
        ask = self._tables.reads.ask
        records = ask(wanted, signal, asked.kind, paused=paused, reset=asked.reset)
        log.info("snapshot asked for", signal=signal, type=asked.kind, tables=list(map(str, names)))
        if incremental and is_first and names:
            records += self._tables.notifications.incremental("STARTED", position, signal, names)
        return [*left_out, *records]

    def _without_set_aside(
        self, names: Sequence[TableName], signal: str, *, is_reset: bool
    ) -> tuple[list[TableName], list[Record]]:
        """Those of the tables that can be read; of the others, what tells whoever has asked.

        Changes of a table that is set aside are taken again with a reset alone. One that could
        never be captured has no topic: that is made as soon as it can be (joining.py).
        """
        possible, records = list[TableName](), list[Record]()
        for name in names:
            state = self._states[name]
            if state.doubt is None or not state.is_set_aside or (is_reset and state.is_in_log):
                possible.append(name)
                continue
            log.warning(
                "a snapshot leaves a table out: it is set aside",
                signal=signal,
                table=str(name),
                reason=state.doubt.reason,
                remedy=f"once it can be captured: millrace snapshot --reset {name}"
                if state.is_in_log
                else "it is read by itself once it can be captured",
            )
            outcome = SnapshotOutcome(
                signal=signal, status="SQL_EXCEPTION", reason=state.doubt.reason
            )
            records.append(self._states.set_requests(name, state.requests, outcome))
        return possible, records

    def _has_key(self, table: TableName, signal: str) -> bool:
        """Whether a row that is read again takes the place of the one that the log has."""
        has_key = self._tables.schemas.has_key(table)
        if not has_key:
            log.warning(
                "a blocking snapshot leaves a table out: it has no key, so that derived tables"
                " would have each row twice",
                signal=signal,
                table=str(table),
                remedy=f"stop the daemon, and run millrace snapshot {table}",
            )
        return has_key

    def _stop(self, signal: str, collections: tuple[str, ...], position: Position) -> list[Record]:
        records = []
        stopped = self._requested(collections, lambda request: request.kind == "incremental")
        for table in stopped:
            reason = f"signal {signal} has stopped it"
            requests = self._states[table].requests
            ended = [request for request in requests if request.kind == "incremental"]
            if any(request.is_own for request in ended):
                log.warning(
                    "a signal stops a read of rows that DDL had changed: the log keeps old values",
                    table=str(table),
                    signal=signal,
                    remedy="have the table read again: execute-snapshot",
                )
                records += self._tables.reads.refuse(table, reason, is_stopped=True)
            records += self._tables.reads.end(table, ended, "ABORTED", reason)
        if stopped:
            named = stopped if collections else ()
            records += self._tables.notifications.incremental("ABORTED", position, signal, named)
        else:
            reason = "first reads, and resets, can be paused; all others can be stopped"
            log.warning("a signal stops nothing", signal=signal, reason=reason)
        return records

    def _pause(
        self, signal: str, collections: tuple[str, ...], position: Position, *, paused: bool
    ) -> list[Record]:
        def is_changed(request: SnapshotRequest) -> bool:
            return request.kind != "blocking" and request.paused != paused

        records = []
        changed = self._requested(collections, is_changed)
        for table in changed:
            requests = [
                request.model_copy(update={"paused": paused}) if is_changed(request) else request
                for request in self._states[table].requests
            ]
            records.append(self._states.set_requests(table, requests))
        if changed:
            tell = self._tables.notifications.incremental
            records += tell("PAUSED" if paused else "RESUMED", position, signal, changed)
        else:
            reason = "nothing is being read" if paused else "nothing is paused"
            log.warning("a signal changes nothing", signal=signal, reason=reason)
        return records

    def _requested(
        self, collections: tuple[str, ...], is_meant: Callable[[SnapshotRequest], bool]
    ) -> list[TableName]:
        """Those of the tables that match, or of all, with such a request; in the reads' order."""
        named = self._matching(collections or _ALL)
        orders = {
            name: min(request.order for request in self._states[name].requests)
            for name in self._states.requested & set(named)
            if any(map(is_meant, self._states[name].requests))
        }
        return sorted(orders, key=lambda name: (orders[name], name))

    def _matching(self, collections: Sequence[str]) -> list[TableName]:
        """The captured tables whose names match, by the first pattern that does."""
        tables: dict[TableName, None] = {}
        captured = [name for name in self._states if self._settings.captures(str(name))]
        for collection in collections:
            pattern = _pattern(collection)
            names = sorted(name for name in captured if pattern.match(str(name)))
            if not names:
                log.warning("a signal names no captured table", name=collection)
            tables.update(dict.fromkeys(names))
        return list(tables)


def _check_id(signal: str) -> None:
    if len(signal) > _CHARACTERS_MAX:
        raise SignalError(f"its id has more than {_CHARACTERS_MAX:,} characters")


def _check_room(table: TableName, requests: Sequence[SnapshotRequest]) -> None:
    if sum(len(request.model_dump_json()) for request in requests) > _REQUESTS_BYTES_MAX:
        raise SignalError(f"{table} waits for too many reads already: stop them, or wait for them")


def _pattern(pattern: str) -> Patterns:
    """A pattern that takes no longer than a name's length allows."""
    plain = _ESCAPED.sub("", pattern)
    if len(pattern) > _CHARACTERS_MAX:
        raise SignalError(f"a name has more than {_CHARACTERS_MAX:,} characters")
    is_nested = plain.count("(") > 1 or any(f"){repeat}" in plain for repeat in "*+?{")
    if is_nested or len(_REPEATS.findall(plain)) > _REPEATS_MAX:
        raise SignalError(
            f"{pattern!r} could take long to match: it may have one pair of (), and {_REPEATS_MAX}"
            " of * + ? {, none of them behind a )"
        )
    try:
        return Patterns((pattern,))
    except (re.error, OverflowError, RecursionError) as error:
        raise SignalError(f"{pattern!r} is no regular expression: {error}") from None
