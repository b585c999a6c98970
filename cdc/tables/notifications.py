"""The progress of snapshots → notifications for programs that wait for it, in Debezium's form.

The channel ``log`` writes lines to our log. The channel ``sink`` makes records, which enter the
Kafka transaction of the state that they report: each exists once, whatever fails in between. Names,
members and schemas are Debezium's.
https://debezium.io/documentation/reference/3.6/configuration/notification.html
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

import structlog

from cdc.convert.pipeline import RecordPipeline
from cdc.events import schemas
from cdc.records.connect import SourceRecord
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome
from cdc.settings import CaptureSettings

log = structlog.get_logger()

LOG: Final = "log"
SINK: Final = "sink"
INITIAL: Final = "Initial Snapshot"
INCREMENTAL: Final = "Incremental Snapshot"

NotificationType = Literal[
    "STARTED",
    "IN_PROGRESS",
    "TABLE_SCAN_COMPLETED",
    "COMPLETED",
    "ABORTED",
    "SKIPPED",
    "PAUSED",
    "RESUMED",
]


class Notifications:
    """Reports the progress of snapshots. Each call returns the log's records, in order.

    ``position`` is the position of the stream, or of the snapshot. Blocking snapshots are reported
    as initial ones, as Debezium does it.
    """

    def __init__(self, settings: CaptureSettings, pipeline: RecordPipeline) -> None:
        self._name = settings.topic_prefix
        self._pipeline = pipeline
        channels = set(settings.notification_enabled_channels)
        self._logs = LOG in channels
        self._topic = settings.notification_topic
        self.is_on = self._logs or self._topic is not None
        """Whether any channel is on."""
        for other in channels - {LOG, SINK}:
            log.warning("notification.enabled.channels: unknown channel", channel=other)

    def initial(
        self, kind: NotificationType, position: Position, tables: Iterable[TableName] = ()
    ) -> list[Record]:
        """Report on a snapshot of these tables as a whole."""
        return self._tell(INITIAL, kind, position, None, tables)

    def initial_table(
        self, position: Position, tables: Iterable[TableName], now: TableName
    ) -> list[Record]:
        """Report which of the tables is read now."""
        more = {"current_collection_in_progress": str(now)}
        return self._tell(INITIAL, "IN_PROGRESS", position, None, tables, more)

    def initial_table_done(
        self, position: Position, tables: Iterable[TableName], now: TableName, rows: int
    ) -> list[Record]:
        """Report that one of the tables was read."""
        more = {
            "scanned_collection": str(now),
            "total_rows_scanned": str(rows),
            "status": "SUCCEEDED" if rows else "EMPTY",
        }
        return self._tell(INITIAL, "TABLE_SCAN_COMPLETED", position, None, tables, more)

    def incremental(
        self,
        kind: NotificationType,
        position: Position,
        signal: str,
        tables: Iterable[TableName] = (),
    ) -> list[Record]:
        """Report on the incremental snapshot that a signal began, as a whole."""
        return self._tell(INCREMENTAL, kind, position, signal, tables)

    def chunk(
        self,
        position: Position,
        tables: Iterable[TableName],
        now: TableName,
        signal: str,
        pages_done: int,
        pages_total: int,
    ) -> list[Record]:
        """Report that a chunk of a table is in the log, and how many of its pages were read."""
        more = {
            "current_collection_in_progress": str(now),
            "maximum_key": str(pages_total),
            "last_processed_key": str(pages_done),
        }
        return self._tell(INCREMENTAL, "IN_PROGRESS", position, signal, tables, more)

    def table_done(
        self,
        position: Position,
        tables: Iterable[TableName],
        now: TableName,
        outcome: SnapshotOutcome,
    ) -> list[Record]:
        """Report how the read of a table ended."""
        more = {
            "scanned_collection": str(now),
            "total_rows_scanned": str(outcome.rows),
            "status": outcome.status,
        }
        signal = outcome.signal
        return self._tell(INCREMENTAL, "TABLE_SCAN_COMPLETED", position, signal, tables, more)

    def _tell(
        self,
        about: str,
        kind: NotificationType,
        position: Position,
        signal: str | None,
        tables: Iterable[TableName],
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Record]:
        """Report on the enabled channels. Without any this costs nothing, even for many tables."""
        if not self.is_on:
            return []
        names = ",".join(map(str, tables))
        named = {"data_collections": names} if names else {}
        data = {"connector_name": self._name, **named, **more}
        notification_id = str(uuid.uuid4()) if signal is None else signal
        if self._logs:
            log.info("notification", id=notification_id, aggregate_type=about, type=kind, **data)
        if self._topic is None:
            return []
        value = {
            "id": notification_id,
            "type": kind,
            "aggregate_type": about,
            "additional_data": data,
            "timestamp": time.time_ns() // 1_000_000,
        }
        key_schema, schema = schemas.NOTIFICATION_KEY, schemas.NOTIFICATION_VALUE
        made = SourceRecord(self._topic, {"id": notification_id}, key_schema, value, schema)
        return self._pipeline.of_stream([made], position)
