"""Rows of the stream → whoever acts on them: the channel that controls a running capture.

The daemon must not import the snapshots package; what it needs of it is the protocol below. What is
to be read is kept in the tables' state records (SnapshotRequest), so that a start goes on.
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
"""Prefix of the logical messages that tell where a chunk's rows belong in the stream."""


DDL: Final = "millrace.ddl"
"""Prefix of the logical messages by which an event trigger of the user's tells of DDL."""


class StreamedRow(NamedTuple):
    """A row message that the log doesn't have yet; without old and new row: a TRUNCATE."""

    relation: Relation
    old: Row | None
    new: Row | None
    transaction: Transaction
    position: Position

    @property
    def table(self) -> TableName:
        """Whose row it is."""
        return TableName(self.relation.namespace, self.relation.name)


class SignalOutput(NamedTuple):
    """What the log gets for something in the stream: events at its position, and states.

    ``effects`` are to be done before any of it is written.
    """

    events: list[RecordOrBatch]
    states: list[Record]
    effects: Effects = NO_EFFECTS


NOTHING: Final = SignalOutput([], [])


class KeyTracking(NamedTuple):
    """How a table's changed keys are noted: ``of`` gives the list for a transaction.

    A key is the texts of the columns at ``identity``, joined by NUL; None: it may be any.
    """

    identity: tuple[int, ...]
    of: Callable[[int], list[bytes | None]]


class Signals(Protocol):
    """Reads signals as they pass by in the stream, and acts on them; one for a stay on it."""

    def watches(self, table: TableName) -> bool:
        """Whether this table's rows are to be shown; may change with every row that is."""

    def key_tracking(self, relation: Relation) -> KeyTracking | None:
        """How to note the changed keys of a table; None: its rows have to be shown."""

    def announce(self, relation: Relation) -> None:
        """Take notice of how a table's rows look from here on."""

    def note_row(self, row: StreamedRow) -> SignalOutput:
        """Take notice of a row; returns what the log gets together with its own records."""

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Take notice of a watermark; returns what belongs there."""

    def note_ddl(self) -> None:
        """Take notice that the stream has come to DDL."""

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Do what is due, without waiting; returns what the log gets. Called many times a second.

        ``cursor`` is what the stream has reached. Raises what should end this stay on it.
        """

    @property
    def awaits_stream(self) -> bool:
        """Whether something waits for the stream to say how far it is."""

    @property
    def offset(self) -> SignalOffset:
        """Up to where the signal topic was followed, by all that was returned so far.

        The Kafka transaction with the results of these signals records it.
        """

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables that are to be read while streaming pauses, each with a SELECT of its own."""

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Take notice that these were read; returns what the log gets."""

    def close(self) -> None:
        """End what goes on in the background."""


ReadNow = Callable[[Mapping[TableName, str | None], int | None], int]
"""Reads tables, each with its own SELECT if it has one, after a transaction that was streamed (its
xid); returns the number of events."""
