"""Signals of any channel → the reads that tables' state records request.

A signal's request enters these records in the same Kafka transaction as the channel's progress. So
after a start it is neither lost nor repeated. A signal that can't be followed causes a warning,
never an error. It must neither take long nor fill a record, since each start would meet it again.
https://debezium.io/documentation/reference/3.6/configuration/signalling.html
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from cdc.lines import name_first
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.settings import CaptureSettings
from cdc.tables.tables import Tables
from snapshots.signals.names import SignalNames
from snapshots.signals.parsed import Signal, SignalError, parse

log = structlog.get_logger()
_ALL = (".*",)
_CHARACTERS_MAX: Final = 1_000
"""The longest id of a signal, and the longest part of a signal in log lines."""
_REQUESTS_BYTES_MAX: Final = 256 << 10
"""The limit for a table's requests, which must fit its record, ..."""
_ALL_REQUESTS_BYTES_MAX: Final = 16 << 20
"""... and for signals' requests of all tables: one signal that changes them writes them at once."""


def queued(tables: Tables, *, paused: bool | None = None) -> list[TableName]:
    """Return the tables of signals' incremental reads, in order. ``paused`` selects some."""
    tables_in_order = sorted(
        (request.order, name)
        for name in tables.states.requested
        for request in tables.states[name].requests
        if request.kind == "incremental" and not request.is_own
        if paused in {None, request.paused}
    )
    return list(dict.fromkeys(name for _, name in tables_in_order))


class Requests:
    """The requests of signals, and their outcomes."""

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
        """Follow a signal at the stream's position. Return the records.

        Writers of the topic may lack the daemon's right to read, so no SELECT is accepted
        ``by_topic``.
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
        """The tables to read while streaming pauses, in order."""
        tables_in_order = sorted(
            (request.order, name, request.condition)
            for name in self._states.requested
            if not self._states.is_set_aside(name)
            for request in self._states[name].requests
            if request.kind == "blocking"
        )
        return {name: condition for _, name, condition in tables_in_order}

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Record that these tables were read."""
        records = list[Record]()
        for table in tables:
            if requests := self._states[table].requests:
                left = [each for each in requests if each.kind != "blocking"]
                records += self._states.set_requests(table, left)
        return records

    def _execute(self, signal: str, asked: Signal, position: Position) -> list[Record]:
        incremental = asked.kind == "incremental"
        is_first = not queued(self._tables)
        paused = incremental and not is_first and not queued(self._tables, paused=False)
        is_reset = incremental and asked.reset
        signal_names = self._signal_names()
        conditions = dict[TableName, str]()
        for name, text in asked.conditions:
            for table in signal_names.tables(name):
                conditions.setdefault(table, text)
        matching = _matching(signal_names, asked.collections)
        names, left_out = self._without_set_aside(matching, signal, is_reset=is_reset)
        if not incremental and self._settings.lossless:
            names = [table for table in names if self._has_key(table, signal)]
        wanted = {table: conditions.get(table) for table in names}
        self._check_room(wanted, signal)
        ask = self._tables.reads.ask
        records = ask(wanted, signal, asked.kind, paused=paused, reset=asked.reset)
        about = {"signal": signal, "type": asked.kind}
        log.info("a snapshot is requested", **about, tables=name_first(names))
        if incremental and is_first and names:
            records += self._tables.notifications.incremental("STARTED", position, signal, names)
        return [*left_out, *records]

    def _check_room(self, wanted: Mapping[TableName, str | None], signal: str) -> None:
        """Raise SignalError if a request doesn't fit. Each table's record keeps the condition."""
        asked = [
            request
            for table in self._states.requested
            for request in self._states[table].requests
            if request.signal
        ]
        total = _bytes(asked)
        for table, condition in wanted.items():
            request = SnapshotRequest(kind="incremental", signal=signal, condition=condition)
            total += _bytes([request])
            waiting = _bytes([*self._states[table].requests, request])
            if waiting > _REQUESTS_BYTES_MAX or total > _ALL_REQUESTS_BYTES_MAX:
                whose = str(table) if waiting > _REQUESTS_BYTES_MAX else "a table"
                raise SignalError(f"{whose} waits for too many reads: stop some, or wait for them")

    def _without_set_aside(
        self, names: Sequence[TableName], signal: str, *, is_reset: bool
    ) -> tuple[list[TableName], list[Record]]:
        """Return the tables that can be read, and records that report the others to the requester.

        Only a reset captures a table again that is set aside. A table that could never be captured
        has no topic. It gets one as soon as it can be captured (snapshots/joining.py).
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
                remedy="once it can be captured:"
                f" millrace snapshot --reset {shlex.quote(str(name))}"
                if state.is_in_log
                else "the daemon reads it once it can be captured",
            )
            outcome = SnapshotOutcome(
                signal=signal, status="SQL_EXCEPTION", reason=state.doubt.reason
            )
            records += self._states.set_requests(name, state.requests, outcome)
        return possible, records

    def _has_key(self, table: TableName, signal: str) -> bool:
        """Whether a row that is read again replaces the log's row."""
        has_key = self._tables.schemas.has_key(table)
        if not has_key:
            log.warning(
                "a blocking snapshot leaves a table out: it has no key, so derived tables would"
                " have each row twice",
                signal=signal,
                table=str(table),
                remedy=f"stop the daemon, and run millrace snapshot {shlex.quote(str(table))}",
            )
        return has_key

    def _stop(self, signal: str, collections: tuple[str, ...], position: Position) -> list[Record]:
        records = []
        stopped = self._requested(collections, lambda request: request.kind == "incremental")
        for table in stopped:
            reason = f"signal {signal} stopped it"
            requests = self._states[table].requests
            ended = [request for request in requests if request.kind == "incremental"]
            if any(request.is_own for request in ended):
                log.warning(
                    "a signal stops a read of rows that DDL had changed: the log keeps old values",
                    table=str(table),
                    signal=signal,
                    remedy="read the table again with the signal execute-snapshot",
                )
                records += self._tables.reads.refuse(table, reason, is_stopped=True)
            records += self._tables.reads.end(table, ended, "ABORTED", reason)
        if stopped:
            named = stopped if collections else ()
            records += self._tables.notifications.incremental("ABORTED", position, signal, named)
        else:
            reason = "only first reads and resets can be paused; all others can be stopped"
            log.warning("a signal stops nothing", signal=signal, reason=reason)
        return records

    def _pause(
        self, signal: str, collections: tuple[str, ...], position: Position, *, paused: bool
    ) -> list[Record]:
        def is_changed(request: SnapshotRequest) -> bool:
            return request.kind != "blocking" and request.paused != paused

        records = list[Record]()
        changed = self._requested(collections, is_changed)
        for table in changed:
            requests = [
                request.model_copy(update={"paused": paused}) if is_changed(request) else request
                for request in self._states[table].requests
            ]
            records += self._states.set_requests(table, requests)
        if changed:
            tell = self._tables.notifications.incremental
            records += tell("PAUSED" if paused else "RESUMED", position, signal, changed)
        else:
            reason = "no snapshot is running" if paused else "no snapshot is paused"
            log.warning("a signal changes nothing", signal=signal, reason=reason)
        return records

    def _requested(
        self, collections: tuple[str, ...], is_meant: Callable[[SnapshotRequest], bool]
    ) -> list[TableName]:
        """Return the matching tables with such a request, in the order of their reads."""
        named = _matching(self._signal_names(), collections or _ALL)
        orders = {
            name: min(request.order for request in self._states[name].requests)
            for name in self._states.requested & set(named)
            if any(map(is_meant, self._states[name].requests))
        }
        return sorted(orders, key=lambda name: (orders[name], name))

    def _signal_names(self) -> SignalNames:
        captured = (table for table in self._states if self._settings.captures(str(table)))
        return SignalNames(captured)


def _matching(names: SignalNames, collections: Sequence[str]) -> list[TableName]:
    """Return the captured tables that match, by the first pattern that does."""
    tables: dict[TableName, None] = {}
    unknown = []
    for collection in collections:
        matching = names.tables(collection)
        tables.update(dict.fromkeys(matching))
        if not matching:
            unknown.append(collection)
    if unknown:
        log.warning("a signal names no captured table", names=name_first(unknown))
    return list(tables)


def _bytes(requests: Iterable[SnapshotRequest]) -> int:
    """Return the requests' size in records. Lists of read partitions are in separate pieces."""
    return sum(len(request.model_dump_json(exclude={"read"}).encode()) for request in requests)


def _check_id(signal: str) -> None:
    if len(signal) > _CHARACTERS_MAX:
        raise SignalError(f"its id has more than {_CHARACTERS_MAX:,} characters")


def _check_channel(signal: Signal, *, by_topic: bool) -> None:
    if by_topic and signal.kind == "blocking" and signal.conditions:
        raise SignalError("only the signal table can request a snapshot with your own SELECT")
