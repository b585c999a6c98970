"""Logical messages with orders → their records. An order that fails ends nothing."""

import time
from collections.abc import Mapping
from typing import Final

import psycopg
import structlog
from pydantic import ValidationError

from cdc.dead_letters.guard import Refusals
from cdc.errors import (
    ROW_ERRORS,
    LogAccessError,
    LogFormatError,
    SourceError,
    SourceUnreachableError,
)
from cdc.kafka.topics import LogTopics
from cdc.orders.current_rows import (
    CurrentRows,
    EncoderSource,
    ForgedOrderError,
    InVainError,
    Schemas,
)
from cdc.orders.repair import Repairs
from cdc.orders.replay import Replays
from cdc.records.orders import REPAIR_ORDERS, DeadLetterOrder, RepairOrder
from cdc.records.position import Position, Transaction
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.settings import Settings

log = structlog.get_logger()
_WARN_S: Final = 10.0


class Orders:
    """Executes orders, on a connection that nothing else uses at that time."""

    def __init__(
        self,
        settings: Settings,
        connection: psycopg.Connection,
        topics: LogTopics,
        states: Mapping[TableName, TableState],
        schemas: Schemas,
        encoders: EncoderSource,
        refusals: Refusals,
    ) -> None:
        """``refusals`` know the latest dead letter."""
        rows = CurrentRows(settings.capture, connection, topics.while_waiting, schemas, encoders)
        self._connection = connection
        self._replays = Replays(settings, rows, topics, states, refusals)
        self._repairs = Repairs(settings, rows, topics, states)
        self._next_warning = 0.0

    def follow(
        self, prefix: str, content: bytes, position: Position, transaction: Transaction
    ) -> list[Record]:
        """Return the records of an order. If it can't be executed, warn and return none."""
        try:
            if prefix == REPAIR_ORDERS:
                return self._repaired(content, position, transaction)
            order = DeadLetterOrder.model_validate_json(content)
            return self._replays.follow(order, position, transaction)
        except (ValidationError, ForgedOrderError):
            now = time.monotonic()
            if now < self._next_warning:
                return []
            self._next_warning = now + _WARN_S
            return _ignored(prefix, "no command of this pipeline wrote it")
        except (InVainError, SourceError, LogAccessError, LogFormatError, *ROW_ERRORS) as error:
            if error.retry or self._connection.broken:  # the next start executes it
                raise
            return _ignored(prefix, error.what)

    def _repaired(
        self, content: bytes, position: Position, transaction: Transaction
    ) -> list[Record]:
        """Return the records of a repair.

        It waits for no lock, which would hold up other tables.
        """
        order = RepairOrder.model_validate_json(content)
        try:
            return self._repairs.follow(order, position, transaction)
        except SourceUnreachableError as error:
            if self._connection.broken:
                raise
            raise InVainError(error.what) from None


def _ignored(prefix: str, reason: str) -> list[Record]:
    log.warning("an order is ignored", prefix=prefix, reason=reason)
    return []
