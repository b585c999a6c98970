"""Rows of the stream → the component that acts on them: control of a running capture.

The daemon must not import the snapshots package, so the protocol below has what it needs. The
tables' state records keep the requested reads (SnapshotRequest), so that a start continues them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from cdc.compiled import fast
from cdc.events.changes import Row
from cdc.records.position import Position, Transaction
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import SignalOffset
from cdc.tables.tables import NO_EFFECTS, Effects
from cdc.wal.messages import Relation

WATERMARK: Final = "millrace.watermark"
"""Prefix of the logical messages that mark the place of a chunk's rows in the stream."""


DDL: Final = "millrace.ddl"
"""Prefix of the logical messages with which a user's event trigger announces DDL."""


class StreamedRow(NamedTuple):
    """A row message that the log doesn't have yet. Without old and new row: a TRUNCATE."""

    relation: Relation
    old: Row | None
    new: Row | None
    transaction: Transaction
    position: Position

    @property
    def table(self) -> TableName:
        """Return the row's table."""
        return TableName(self.relation.namespace, self.relation.name)


class SignalOutput(NamedTuple):
    """The log's records for an item of the stream: events at its position, and states.

    ``effects`` must be done before any of it is written.
    """

    events: list[RecordOrBatch]
    states: list[Record]
    effects: Effects = NO_EFFECTS


NOTHING: Final = SignalOutput([], [])


class KeyTracking(NamedTuple):
    """How a table's changed keys are recorded. ``of`` returns the list for a transaction.

    A key is the texts of the columns at ``identity``, joined by NUL. None: it may be any.
    """

    identity: tuple[int, ...]
    of: Callable[[int], list[bytes | None]]


class Signals(Protocol):
    """Reads signals in the stream, and acts on them. One instance per stay on the stream."""

    def watches(self, table: TableName) -> bool:
        """Whether this table's rows must be shown. May change with every row shown."""

    def key_tracking(self, relation: Relation) -> KeyTracking | None:
        """Return how to record the changed keys of a table. None: its rows must be shown."""

    def announce(self, relation: Relation) -> None:
        """Record the form of a table's rows from here on."""

    def note_row(self, row: StreamedRow) -> SignalOutput:
        """Process a row. Return the log's records that belong with it."""

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Process a watermark. Return the records that belong there."""

    def note_ddl(self) -> None:
        """Record that the stream has reached DDL."""

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Do what is due, without waiting, and return the log's records.

        Called many times a second.

        ``cursor`` is the stream's position. Raises errors that must end this stay on it.
        """

    @property
    def awaits_stream(self) -> bool:
        """Whether a signal waits for the stream's position."""

    @property
    def offset(self) -> SignalOffset:
        """Return the offset up to which all signals so far are processed.

        The Kafka transaction with their results records it.
        """

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """Return the tables to read while streaming pauses, each with its own SELECT."""

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Record that these were read. Return the log's records."""

    def close(self) -> None:
        """End background work."""


ReadNow = Callable[[Mapping[TableName, str | None], int | None], int]
"""Reads tables, each with its own SELECT if it has one, after a streamed transaction (its xid).
Returns the number of events.
"""
