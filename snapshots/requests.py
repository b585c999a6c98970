"""Signals, whichever channel they come by → the reads that tables' state records ask for.

What a signal asks for gets into these records in the same Kafka transaction as the place that the
channel has reached: after a start it is neither forgotten nor done twice. A signal that can't be
followed is a warning, never an error.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.settings import CaptureSettings
from cdc.settings.modes import Patterns
from cdc.tables.tables import Tables
from snapshots.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    ResumeSnapshot,
    Signal,
    SignalError,
    StopSnapshot,
    parse,
)

log = structlog.get_logger()
_ALL = (".*",)


def queued(tables: Tables, *, paused: bool | None = None) -> list[TableName]:
    """The tables that signals want read while streaming goes on, in order; or the paused ones."""
    tables_in_order = sorted(
        (request.order, state.name)
        for state in map(tables.states.__getitem__, tables.states.requested)
        for request in state.requests
        if request.kind == "incremental" and not request.is_own
        if paused in {None, request.paused}
    )
    return list(dict.fromkeys(name for _, name in tables_in_order))


class Requests:
    """The requests of signals, and what becomes of them."""

    def __init__(self, settings: CaptureSettings, tables: Tables) -> None:
        self._settings = settings
        self._tables = tables

    def follow(
        self, signal: str, kind: str, data: str | Mapping[str, Any] | None, position: Position
    ) -> list[Record]:
        """Do what the signal of that id says, at the stream's position; returns the records."""
        try:
            parsed = parse(kind, data)
            return [] if parsed is None else self._do(signal, parsed, position)
        except SignalError as error:
            log.warning("a signal is ignored", signal=signal, type=kind, reason=str(error))
            return []

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables that are to be read while streaming pauses, in order."""
        tables_in_order = sorted(
            (request.order, state.name, request.condition)
            for state in map(self._tables.states.__getitem__, self._tables.states.requested)
            for request in state.requests
            if request.kind == "blocking"
        )
        return {name: condition for _, name, condition in tables_in_order}

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Take notice that these were read."""
        return [
            self._tables.states.set_requests(
                table, [request for request in requests if request.kind != "blocking"]
            )
            for table in tables
            if (requests := self._tables.states[table].requests)
        ]

    def _do(self, signal: str, parsed: Signal, position: Position) -> list[Record]:
        match parsed:
            case ExecuteSnapshot():
                return self._request(signal, parsed, position)
            case StopSnapshot(collections):
                return self._stop(signal, collections, position)
            case PauseSnapshot(collections):
                return self._pause(signal, collections, position, paused=True)
            case ResumeSnapshot(collections):
                return self._pause(signal, collections, position, paused=False)
            case LogMessage(message):
                log.info("signal", signal=signal, message=message)
                return []

    def _request(self, signal: str, parsed: ExecuteSnapshot, position: Position) -> list[Record]:
        incremental = parsed.kind == "incremental"
        requests = [request for state in self._tables.states.values() for request in state.requests]
        last = max((request.order for request in requests), default=0)
        is_first = not queued(self._tables)
        paused = incremental and not is_first and not queued(self._tables, paused=False)
        conditions = [(_patterns((name,)), text) for name, text in parsed.conditions]
        names = self._matching(parsed.collections)
        if not incremental and self._settings.lossless:
            names = [name for name in names if self._has_key(name, signal)]
        records = []
        for order, table in enumerate(names, last + 1):
            matching = [text for pattern, text in conditions if pattern.match(str(table))]
            request = SnapshotRequest(
                kind=parsed.kind,
                signal=signal,
                order=order,
                condition=matching[0] if matching else None,
                paused=paused,
                reset=parsed.reset,
                begun_ms=time.time_ns() // 1_000_000,
                behind_xid=self._tables.states[table].joined_xid if incremental else 0,
            )
            before = [
                request
                for request in self._tables.states[table].requests
                if incremental or request.kind != "blocking"
            ]
            records.append(self._tables.states.set_requests(table, [*before, request]))
        log.info(
            "snapshot asked for", signal=signal, type=parsed.kind, tables=list(map(str, names))
        )
        if incremental and is_first and names:
            records += self._tables.notifications.incremental("STARTED", position, signal, names)
        return records

    def _has_key(self, table: TableName, signal: str) -> bool:
        """Whether a row that is read again takes the place of the one that the log has."""
        if not self._tables.schemas.has_key(table):
            log.warning(
                "a blocking snapshot leaves a table out: it has no key, so that derived tables"
                " would have each row twice",
                signal=signal,
                table=str(table),
                remedy=f"stop the daemon, and run millrace snapshot {table}",
            )
            return False
        return True

    def _stop(self, signal: str, collections: tuple[str, ...], position: Position) -> list[Record]:
        stopped = []
        records = []
        for table in self._queued(collections):
            requests = self._tables.states[table].requests
            left = [request for request in requests if request.kind == "incremental"]
            others = [request for request in requests if request.kind != "incremental"]
            if any(request.is_own for request in left):
                log.warning(
                    "a signal stops a read of rows that DDL had changed: the log keeps old values",
                    table=str(table),
                    signal=signal,
                    remedy="have the table read again: execute-snapshot",
                )
            while left:  # a record for each: whoever waits for one of them looks for its outcome
                ended = left.pop(0)
                outcome = SnapshotOutcome(
                    signal=ended.signal,
                    status="ABORTED",
                    rows=ended.rows,
                    reason=f"signal {signal} has stopped it",
                )
                reported = outcome if ended.signal else None
                records.append(self._tables.states.set_requests(table, [*left, *others], reported))
            stopped.append(table)
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
        named = self._matching(collections or _ALL)
        changed = [
            table
            for table in sorted(self._tables.states.requested, key=self._order)
            if table in named and any(request.paused != paused for request in self._pausable(table))
        ]
        records = []
        for table in changed:
            requests = [
                request.model_copy(update={"paused": paused})
                if request.kind != "blocking"
                else request
                for request in self._tables.states[table].requests
            ]
            records.append(self._tables.states.set_requests(table, requests))
        if changed:
            tell = self._tables.notifications.incremental
            records += tell("PAUSED" if paused else "RESUMED", position, signal, changed)
        else:
            reason = "nothing is being read" if paused else "nothing is paused"
            log.warning("a signal changes nothing", signal=signal, reason=reason)
        return records

    def _order(self, table: TableName) -> tuple[int, TableName]:
        return min(request.order for request in self._tables.states[table].requests), table

    def _pausable(self, table: TableName) -> Iterable[SnapshotRequest]:
        requests = self._tables.states[table].requests
        return (request for request in requests if request.kind != "blocking")

    def _queued(self, collections: tuple[str, ...]) -> list[TableName]:
        """Those of the tables with an incremental snapshot that match; without names, all."""
        named = self._matching(collections or _ALL)
        return [
            table
            for table in sorted(self._tables.states.requested, key=self._order)
            if table in named
            if any(request.kind == "incremental" for request in self._tables.states[table].requests)
        ]

    def _matching(self, collections: Sequence[str]) -> list[TableName]:
        """The captured tables whose names match, by the first pattern that does."""
        tables: dict[TableName, None] = {}
        captured = [name for name in self._tables.states if self._settings.captures(str(name))]
        for collection in collections:
            pattern = _patterns((collection,))
            names = sorted(name for name in captured if pattern.match(str(name)))
            if not names:
                log.warning("a signal names no captured table", name=collection)
            tables.update(dict.fromkeys(names))
        return list(tables)


def _patterns(patterns: tuple[str, ...]) -> Patterns:
    try:
        return Patterns(patterns)
    except re.error as error:
        raise SignalError(f"{patterns[0]!r} is no regular expression: {error}") from None
