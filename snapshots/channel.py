"""Rows of the signal table, records of the signal topic → the actions of cdc.stream.signals.

The channels are Debezium's ``source`` and ``kafka``. If the latter is off, a topic of our own takes
its place, for requests of commands. A signal has the same effect on each channel
(signals/requests.py).
https://debezium.io/documentation/reference/3.6/configuration/signalling.html
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from cdc.compiled import fast
from cdc.events.changes import Row
from cdc.kafka.signal_topic import Followed, Follower
from cdc.postgres.checks.standby import StandbyWatch
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SignalOffset
from cdc.settings import CaptureSettings, Settings
from cdc.stream.signals import (
    NOTHING,
    KeyTracking,
    SignalOutput,
    StreamedRow,
)
from cdc.tables.tables import Tables
from cdc.wal.messages import Relation
from snapshots.catalog_check import CatalogCheck
from snapshots.dropped_partitions import DroppedPartitions
from snapshots.incremental import IncrementalSnapshots
from snapshots.joining import NewTables
from snapshots.pace import Pace
from snapshots.signals.parsed import read_json
from snapshots.signals.requests import Requests
from snapshots.watermarks import CLOSE, Watermarks
from snapshots.windows import WindowReader

log = structlog.get_logger()

SOURCE: Final = "source"
KAFKA: Final = "kafka"
_TURN_S: Final = 0.5
"""The time in a turn after which no further record of the topic is processed."""


def open_channel(
    pace: Pace,
    settings: Settings,
    tables: Tables,
    offset: SignalOffset,
    *,
    standby_watch: StandbyWatch | None = None,
) -> "Channels":
    """Open the channels that the settings ask for. Follow the topic from its stored offset."""
    capture = settings.capture
    for other in set(capture.signal_enabled_channels) - {SOURCE, KAFKA}:
        log.warning("signal.enabled.channels: unknown channel", channel=other)
    own: TableName | None = None
    if capture.signal_data_collection and SOURCE in capture.signal_enabled_channels:
        own = TableName(*capture.signal_data_collection.split(".", 1))
        if own not in tables.states:
            log.warning("signal.data.collection: unknown table", table=str(own))
    marks = own if capture.watermarks_in_table else None
    reader = WindowReader(settings, Watermarks(capture, marks), pace, standby_watch)
    incremental = IncrementalSnapshots(reader, tables, capture.snapshot_chunk_bytes)
    follower = Follower(settings.kafka, capture.signal_topic, offset.topic_id, offset.offset)
    new_tables = NewTables(reader, tables, capture)
    check = CatalogCheck(reader, tables, capture)
    dropped = DroppedPartitions(reader, tables, capture)
    background = Background(incremental, new_tables, check, dropped)
    return Channels(capture, own, tables, background, follower, offset)


class Background(NamedTuple):
    """The background work that gets turns while streaming."""

    incremental: IncrementalSnapshots
    new_tables: NewTables
    check: CatalogCheck
    dropped: DroppedPartitions


class Channels:
    """Follows the signals of one table, and of one topic."""

    def __init__(
        self,
        settings: CaptureSettings,
        own: TableName | None,
        tables: Tables,
        background: Background,
        follower: Follower,
        offset: SignalOffset,
    ) -> None:
        """``own`` is the table of signals."""
        self._own = own
        self._name = settings.topic_prefix.encode()
        self._incremental, self._new_tables, self._check, self._dropped = background
        self._requests = Requests(settings, tables)
        self._deletes = settings.incremental_snapshot_watermarking_strategy == "insert_delete"
        self._follower = follower
        self.offset = offset

    def watches(self, table: TableName) -> bool:
        """Whether a table is the signal table, or is being read."""
        return table == self._own or self._incremental.changes_of(table) is not None

    def key_tracking(self, relation: Relation) -> KeyTracking | None:
        """Return how to record a table's changed keys. None for signals: their rows are shown."""
        table = TableName(relation.namespace, relation.name)
        changes = None if table == self._own else self._incremental.changes_of(table)
        return None if changes is None else changes.tracking(relation)

    def announce(self, relation: Relation) -> None:
        """Record the current form of a table's rows."""
        changes = self._incremental.changes_of(TableName(relation.namespace, relation.name))
        if changes is not None:
            changes.announce(relation)

    def note_row(self, row: StreamedRow) -> SignalOutput:
        """Follow a signal, or record a changed row."""
        changes = self._incremental.changes_of(row.table)
        if changes is not None:  # the signal table may be read, too
            changes.note(row)
        if row.table != self._own or (row.old is not None and row.new is not None):
            return NOTHING  # an UPDATE is no signal
        row_id, kind, data = (_text(row.new or row.old, index) for index in range(3))
        if row.new is None and self._deletes:
            return self.note_watermark(row_id.removesuffix("-open"), row.position)
        if row.new is None:
            return NOTHING
        if kind == CLOSE:
            return self.note_watermark(row_id.removesuffix("-close"), row.position)
        return SignalOutput([], self._requests.follow(row_id, kind, data, row.position))

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Process a watermark."""
        return self._incremental.note_watermark(watermark, position)

    def note_ddl(self) -> None:
        """Have the catalog checked at once."""
        self._check.note_ddl()

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Follow new records of the topic. Begin chunks on free threads."""
        records = self._follow_topic(cursor.reached)
        joined = self._new_tables.turn(cursor.reached)
        checked = self._check.turn(cursor)
        dropped = self._dropped.turn(cursor)
        output = self._incremental.turn(cursor)
        return SignalOutput(
            [*dropped.events, *output.events],
            [*records, *joined.records, *checked.records, *dropped.states, *output.states],
            joined.effects.and_then(checked.effects),
        )

    @property
    def awaits_stream(self) -> bool:
        """Whether a chunk, or a check, waits for the stream's position."""
        return any(each.awaits_stream for each in (self._incremental, self._check, self._dropped))

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables to read while streaming pauses, in order."""
        return self._requests.blocking

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Record that these tables were read."""
        return self._requests.blocking_done(tables)

    def close(self) -> None:
        """End the background work."""
        self._incremental.close()
        self._follower.close()

    def _follow_topic(self, position: Position) -> list[Record]:
        """Follow new records for a limited time. The rest waits for the next turn."""
        records: list[Record] = []
        begun = time.monotonic()
        for sent in self._follower.take():
            records += self._sent(sent, position)
            self.offset = SignalOffset(topic_id=sent.topic_id, offset=sent.offset + 1)
            if time.monotonic() - begun > _TURN_S:
                break
        return records

    def _sent(self, sent: Followed, position: Position) -> list[Record]:
        """Follow a record of the topic. Records with another key are for other daemons."""
        if sent.key != self._name or not sent.value:
            return []
        try:
            signal = read_json(sent.value)
        except (ValueError, RecursionError):
            signal = None
        if not isinstance(signal, dict):
            log.warning(
                "a signal is ignored", offset=sent.offset, reason="its value isn't a JSON object"
            )
            return []
        row_id = str(signal.get("id") or sent.offset)
        kind, data = str(signal.get("type")), signal.get("data")
        return self._requests.follow(row_id, kind, data, position, by_topic=True)


def _text(row: Row | None, index: int) -> str:
    """Return a column of a signal. NULL, or a missing column, is empty."""
    value = row[index] if row is not None and index < len(row) else None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
