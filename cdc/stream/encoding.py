"""Relation OIDs of a stream → encoders of their rows, until something changes.

PostgreSQL announces a relation before its first row, and again after an ALTER. The tables give its
encoder once. New requests to read rows invalidate all encoders.
"""

from collections.abc import Callable
from typing import NamedTuple

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.errors import ROW_ERRORS, CorruptMessageError, MillraceError
from cdc.events.changes import Reread
from cdc.records.position import Position, Transaction
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.stream.signals import Signals
from cdc.tables.tables import NO_EFFECTS, Effects, Tables
from cdc.wal.messages import Relation


class Actions(NamedTuple):
    """Functions on the servers that the stream calls before it continues.

    ``perform``: the preparations of a table that joins, before its rows have an encoder.
    ``reread``: reads rows again whose unchanged values are wanted. ``follow_order``: returns the
    log's records for an order, which is a transaction's logical message.
    """

    perform: Callable[[Effects], None]
    reread: Reread
    follow_order: Callable[[str, bytes, Position, Transaction], list[Record]]


class Encoders:
    """The encoders of one stay on the stream. ``state_records`` are their records for the log."""

    def __init__(
        self, tables: Tables, signals: Signals | None, perform: Callable[[Effects], None]
    ) -> None:
        """``perform`` is that of Actions."""
        self._tables = tables
        self._perform = perform
        self._signals = signals
        self._relations: dict[int, Relation] = {}
        self._encoders: dict[int, Encoder | None] = {}
        self._active: dict[int, Encoder | None] = {}
        self._entered: Transaction | None = None
        self._requested_changes = tables.states.requested_changes
        self.state_records: list[Record] = []

    def announce(self, relation: Relation) -> None:
        """Record a relation's meaning from here on."""
        self._relations[relation.oid] = relation
        self._encoders.pop(relation.oid, None)
        self._active.pop(relation.oid, None)
        if self._signals is not None:
            self._signals.announce(relation)

    def relation(self, oid: int) -> Relation:
        """Return the last announcement."""
        relation = self._relations.get(oid)
        if relation is None:
            raise CorruptMessageError(f"a row of relation {oid}, which wasn't announced")
        return relation

    @property
    def announced(self) -> list[int]:
        """Return the OIDs of the relations that were announced."""
        return [*self._relations]

    def are_stale(self) -> bool:
        """Whether the requests to read tables have changed. Then all encoders are discarded.

        Unchanged values may be wanted now, or no longer, and changed keys recorded differently.
        """
        if self._requested_changes == self._tables.states.requested_changes:
            return False
        self._requested_changes = self._tables.states.requested_changes
        self._encoders.clear()
        self._active.clear()
        return True

    def leave(self) -> None:
        """Leave the transaction, as an encoder may have gone back to an earlier one."""
        self._entered = None

    def of(self, oid: int, transaction: Transaction | None, position: Position) -> Encoder | None:
        """Return the table's encoder, ready for this transaction.

        None if the table isn't captured, is set aside, or its snapshot has the transaction: older
        records after newer ones would outlive them when the topic is compacted.
        """
        if transaction is not self._entered:
            self._entered = transaction
            self._active.clear()
        try:
            return self._active[oid]
        except KeyError:
            pass
        if oid not in self._encoders:
            relation = self.relation(oid)
            states, name = self._tables.states, TableName(relation.namespace, relation.name)
            # Asked until it isn't so: positions only grow, and then there is an encoder.
            if states.has_read(relation, position) or states.is_set_aside(name):
                self._active[oid] = None
                return None
            encoder = self._arrived(relation, transaction, position)
            if not states.is_taken(name):
                self._active[oid] = None
                return None
            self._encoders[oid] = encoder
        encoder = self._active[oid] = self._encoders[oid]
        if encoder is not None and transaction is not None:
            encoder.begin(transaction)
        return encoder

    def _arrived(
        self, relation: Relation, transaction: Transaction | None, position: Position
    ) -> Encoder | None:
        xid = transaction.xid if transaction is not None else None
        arrival = self._tables.arrive(relation, position, xid)
        self.state_records += arrival.records
        if arrival.effects is not NO_EFFECTS:
            self._perform(arrival.effects)
        if arrival.schema is None:
            return None
        try:
            return self._tables.encoders.encoder(arrival.schema)
        except ROW_ERRORS as error:
            self.set_aside(relation.oid, error)
            return None

    def set_aside(self, oid: int, error: MillraceError) -> None:
        """Skip further changes of a relation. Raise the error if it must not be set aside.

        ``error`` is one of ROW_ERRORS.
        """
        relation = self.relation(oid)
        name = TableName(relation.namespace, relation.name)
        self.state_records += self._tables.obstacles.set_aside(name, error)
        self._encoders.pop(oid, None)
        self._active[oid] = None

    def is_heard(self, oid: int, position: Position) -> bool:
        """Whether a relation is set aside, and has signals that a read may wait for."""
        relation = self.relation(oid)
        states, name = self._tables.states, TableName(relation.namespace, relation.name)
        is_new = states.is_set_aside(name) and not states.has_read(relation, position)
        return is_new and self._tables.has_signals(name)

    def is_watched(self, oid: int) -> bool:
        """Whether signals want the relation's rows, or its changed keys."""
        if self._signals is None:
            return False
        relation = self.relation(oid)
        return self._signals.watches(TableName(relation.namespace, relation.name))

    def compiled(self, oid: int, encoder: Encoder) -> fast.Table | None:
        """Return the table for the compiled way, or None."""
        if self._signals is None or not self.is_watched(oid):
            return encoder.compiled()
        tracking = self._signals.key_tracking(self.relation(oid))
        table = encoder.compiled() if tracking else None
        if table is not None and tracking is not None:
            table.track_changes(*tracking)
        return table
