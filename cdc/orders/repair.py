"""Keys whose derived rows differ from the source → records of their current rows."""

from collections.abc import Mapping

import structlog

from cdc.errors import MillraceError
from cdc.kafka.topics import LogTopics
from cdc.log.state import last_progress
from cdc.orders.current_rows import (
    CurrentRows,
    ForgedOrderError,
    InVainError,
    Repaired,
    key_of,
)
from cdc.records.orders import REPAIR_HEADER, RepairOrder
from cdc.records.position import Position, Transaction
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.records.topics import progress_topic
from cdc.settings import Settings

log = structlog.get_logger()


class Repairs:
    """Executes orders to repair rows."""

    def __init__(
        self,
        settings: Settings,
        rows: CurrentRows,
        topics: LogTopics,
        states: Mapping[TableName, TableState],
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._topics = topics
        self._states = states
        self._name: str | None = None

    def follow(
        self, order: RepairOrder, position: Position, transaction: Transaction
    ) -> list[Record]:
        """Return the records of an order. Raise InVainError or ForgedOrderError."""
        if order.log != self._name_of_log():
            raise ForgedOrderError("it doesn't name the log")
        state = self._repairable(order)
        table = self._rows.described(state, transaction)
        keys = [
            key_of(table, {name: text.encode() for name, text in key.items()}) for key in order.keys
        ]
        columns = {column.name for column in table.columns if column.key is not None}
        if not columns or any(key.keys() != columns for key in order.keys):
            raise InVainError(f"the key of table {state.name} has other columns now")
        self._topics.refresh_limits({state.topic})
        left_out = list[MillraceError]()
        repaired = Repaired(left_out.append, keeps_gone=state.gone_partitions > 0)
        made = self._rows.records(table, filter(None, keys), position, transaction, repaired)
        log.info("rows are repaired", table=str(state.name), rows=len(keys), repair=order.id)
        if left_out:
            log.warning(
                "rows aren't repaired",
                table=str(state.name),
                rows=len(left_out),
                reason=left_out[0].what,
                repair=order.id,
            )
        if not self._settings.capture.position_header:
            return made
        mark = (REPAIR_HEADER, order.id.encode())
        return [
            each._replace(headers=[*each.headers, mark]) if each.topic == state.topic else each
            for each in made
        ]

    def _name_of_log(self) -> str:
        """Return the log's name, read only once, so that forged orders cost no further reads."""
        if self._name is None:
            capture = self._settings.capture
            progress = last_progress(
                self._settings.kafka,
                progress_topic(capture.topic_prefix),
                capture.slot_name,
                self._topics.while_waiting,
            )
            if progress is None:
                raise ForgedOrderError("the log has no name yet")
            self._name = progress.log
        return self._name

    def _repairable(self, order: RepairOrder) -> TableState:
        state = self._states.get(TableName.parse(order.table))
        if state is None or not state.is_in_log or state.gone_ms:
            raise InVainError(f"table {order.table} isn't captured")
        if state.is_set_aside:
            raise InVainError(f"table {order.table} is set aside")
        return state
