"""Rows of the stream → whoever acts on them: the channel by which a running capture is told things.

The daemon must not import the snapshots package; what it needs of it is the protocol below. What
signals ask for is kept in the tables' state records (SnapshotRequest), so that a start goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cdc.changes import Row
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.transactions import Transaction
from cdc.wal.messages import Relation


class SeenRow(NamedTuple):
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


class Signals(Protocol):
    """Reads signals as they pass by in the stream, and acts on them; one for a stay on it."""

    def watches(self, table: TableName) -> bool:
        """Whether this table's rows are to be shown; may change with every row that is."""
        ...

    def saw(self, row: SeenRow) -> list[Record]:
        """Take notice of a row; returns what the log gets together with its own records."""
        ...

    def turn(self) -> list[Record]:
        """Do what is due, without waiting; returns what the log gets. Called many times a second.

        Raises what should end this stay on the stream.
        """
        ...

    @property
    def blocking(self) -> Mapping[TableName, str | None]:
        """The tables that are to be read while streaming pauses, each with a SELECT of its own."""
        ...

    def blocking_done(self, tables: Sequence[TableName]) -> list[Record]:
        """Take notice that these were read; returns what the log gets."""
        ...

    def close(self) -> None:
        """End what goes on in the background."""
        ...


ReadNow = Callable[[Mapping[TableName, str | None], int | None], int]
"""Reads tables, each with its own SELECT if it has one, after a transaction that was streamed (its
xid); returns the number of events."""


class Channel(NamedTuple):
    """Signals, and what reads tables while streaming pauses."""

    signals: Signals
    read_now: ReadNow
