"""Rows of the signal table → what is done: the channel ``source``; implements cdc.signals.Signals.

What a signal asks for gets into the tables' state records in the same Kafka transaction as the
signal's own event: after a start it is neither forgotten nor done twice. A signal that can't be
followed is a warning, never an error.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from cdc.changes import Row
from cdc.modes import Patterns
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest
from cdc.settings import CaptureSettings, Settings
from cdc.signals import SeenRow
from cdc.tables import Tables
from snapshots.incremental import IncrementalSnapshots
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
from snapshots.windows import CLOSE, OPEN, WindowReader

log = structlog.get_logger()

SOURCE: Final = "source"


def open_channel(settings: Settings, tables: Tables) -> "SourceChannel | None":
    """The channel that the settings ask for, if any."""
    capture = settings.capture
    for other in set(capture.signal_enabled_channels) - {SOURCE}:
        log.warning("signal.enabled.channels: there is no such channel", channel=other)
    name = capture.signal_data_collection
    if name is None or SOURCE not in capture.signal_enabled_channels:
        return None
    namespace, _, table = name.partition(".")
    own = TableName(namespace, table)
    if own not in tables.states:
        log.warning("signal.data.collection: there is no such table", table=name)
    reader = WindowReader(settings.source, capture, own)
    return SourceChannel(capture, own, tables, IncrementalSnapshots(reader, tables))


class SourceChannel:
    """Follows the signals of one table."""

    def __init__(
        self,
        settings: CaptureSettings,
        own: TableName,
        tables: Tables,
        incremental: IncrementalSnapshots,
    ) -> None:
        self._settings = settings
        self._own = own
        self._tables = tables
        self._incremental = incremental
        self._deletes = settings.incremental_snapshot_watermarking_strategy == "insert_delete"

    def watches(self, table: TableName) -> bool:
        """The signal table, and those that are being read in chunks."""
        if table == self._own:
            return True
        state = self._tables.states.get(table)
        return state is not None and any(one.kind == "incremental" for one in state.requests)

    def saw(self, row: SeenRow) -> list[Record]:
        """Follow a signal, or take notice of a changed row."""
        if row.table != self._own:
            self._incremental.changed(row)
            return []
        self._incremental.changed(row)  # the signal table may be read, too
        if row.new is None:
            deleted = _text(row.old, 0)
            return self._incremental.closed(deleted, row.position) if self._deletes else []
        if row.old is not None:
            return []  # an UPDATE is no signal
        row_id, kind = _text(row.new, 0), _text(row.new, 1)
        if kind == OPEN:
            self._incremental.opened(row_id)
        elif kind == CLOSE:
            return self._incremental.closed(row_id, row.position)
        return self._followed(row_id, kind, _text(row.new, 2))

    def turn(self) -> list[Record]:
        """Begin the next window where none is open."""
        return self._incremental.turn()

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables that are to be read while streaming pauses, in order."""
        asked = sorted(
            (request.order, state.name, request.condition)
            for state in map(self._tables.states.__getitem__, self._tables.requested)
            for request in state.requests
            if request.kind == "blocking"
        )
        return {name: condition for _, name, condition in asked}

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Take notice that these were read."""
        return [
            self._tables.set_requests(table, [one for one in asked if one.kind != "blocking"])
            for table in tables
            if (asked := self._tables.states[table].requests)
        ]

    def close(self) -> None:
        """End what goes on in the background."""
        self._incremental.close()

    def _followed(self, row_id: str, kind: str, data: str) -> list[Record]:
        try:
            signal = parse(kind, data)
            return [] if signal is None else self._do(row_id, signal)
        except SignalError as error:
            log.warning("a signal is ignored", signal=row_id, type=kind, reason=str(error))
            return []

    def _do(self, row_id: str, signal: Signal) -> list[Record]:
        match signal:
            case ExecuteSnapshot():
                return self._ask(row_id, signal)
            case StopSnapshot(collections):
                return self._change(self._matching(collections or (".*",)), None)
            case PauseSnapshot():
                return self._change(self._matching((".*",)), {"paused": True})
            case ResumeSnapshot():
                return self._change(self._matching((".*",)), {"paused": False})
            case LogMessage(message):
                log.info("signal", signal=row_id, message=message)
                return []

    def _ask(self, row_id: str, signal: ExecuteSnapshot) -> list[Record]:
        asked = [one for state in self._tables.states.values() for one in state.requests]
        last = max((one.order for one in asked), default=0)
        paused = signal.kind == "incremental" and any(one.paused for one in asked)
        conditions = [(_patterns((name,)), text) for name, text in signal.conditions]
        names = self._matching(signal.collections)
        records = []
        for order, table in enumerate(names, last + 1):
            found = [text for pattern, text in conditions if pattern.match(str(table))]
            request = SnapshotRequest(
                kind=signal.kind,
                signal=row_id,
                order=order,
                condition=found[0] if found else None,
                paused=paused,
            )
            before = [
                one
                for one in self._tables.states[table].requests
                if signal.kind == "incremental" or one.kind == "incremental"
            ]
            records.append(self._tables.set_requests(table, [*before, request]))
        log.info(
            "snapshot asked for", signal=row_id, type=signal.kind, tables=list(map(str, names))
        )
        return records

    def _matching(self, collections: Sequence[str]) -> list[TableName]:
        """The captured tables whose names match, by the first pattern that does."""
        found: dict[TableName, None] = {}
        captured = [name for name in self._tables.states if self._settings.captures(str(name))]
        for collection in collections:
            pattern = _patterns((collection,))
            names = sorted(name for name in captured if pattern.match(str(name)))
            if not names:
                log.warning("a signal names no captured table", name=collection)
            found.update(dict.fromkeys(names))
        return list(found)

    def _change(
        self, tables: Iterable[TableName], update: Mapping[str, object] | None
    ) -> list[Record]:
        """Change the tables' incremental requests, or take them away."""
        records = []
        for table in tables:
            asked = self._tables.states[table].requests
            others = [one for one in asked if one.kind != "incremental"]
            own = [one for one in asked if one.kind == "incremental"]
            if own:
                changed = [one.model_copy(update=dict(update)) for one in own] if update else []
                records.append(self._tables.set_requests(table, [*others, *changed]))
        return records


def _text(row: Row | None, index: int) -> str:
    """A column of a signal; NULL, and what isn't there, is empty."""
    value = row[index] if row is not None and index < len(row) else None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _patterns(patterns: tuple[str, ...]) -> Patterns:
    try:
        return Patterns(patterns)
    except re.error as error:
        raise SignalError(f"{patterns[0]!r} is no regular expression: {error}") from None
