"""A row message in its transaction → Change: the reference form of a row's change."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cdc.errors import TableRefusedError
from cdc.records.bounds import EndedRows
from cdc.records.position import Lsn, Position, Transaction
from cdc.records.schema import TableSchema
from cdc.records.sql_names import sql_names
from cdc.wal.messages import ABSENT, Relation, Row, Value

__all__ = [
    "ABSENT", "Change", "IdentityKey", "Operation", "Read", "Reread", "RereadRequest", "Row",
    "Value", "filled", "no_key",
]  # fmt: skip

IdentityKey = tuple[bytes, ...]
"""The texts of a row's replica identity, in the order of its columns."""


class Operation(StrEnum):
    """Debezium's codes, and our ENDED: rows within bounds went at once, with their partition."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    TRUNCATE = "t"
    ENDED = "p"


class Read(NamedTuple):
    """The part of an event about the snapshot that read its row.

    ``marker`` is Debezium's word for the row's place in the snapshot (``first``, ``last``,
    ``incremental`` …). ``xid`` is the transaction that created the slot; None omits it.
    """

    marker: str = "true"
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one row, or of the whole table (truncate), before any rule of Debezium's.

    ``before`` is the old row as far as PostgreSQL sent it. With ``before_is_key`` only the replica
    identity's columns have values; the others are None. ``transaction`` is None for a snapshot's
    row, which has ``read``. ``lsn`` is the row's own place in the WAL. ``ts_us`` is the time of its
    commit, or of its read in a snapshot (µs since 1970, UTC). ``ended`` says which rows were
    removed at once.
    """

    operation: Operation
    before: Row | None
    before_is_key: bool
    after: Row | None
    position: Position
    lsn: Lsn
    transaction: Transaction | None
    ts_us: int
    read: Read = Read()  # noqa: RUF009 (immutable)
    ended: EndedRows | None = None


class RereadRequest(NamedTuple):
    """A request to read rows of a relation again.

    ``identity`` and ``columns`` are indexes of the relation's columns. ``keys`` have the texts of
    ``identity``, and the answer has those of ``columns``. The reader must see the transactions
    ``xids``.
    """

    relation: Relation
    identity: tuple[int, ...]
    columns: tuple[int, ...]
    keys: tuple[IdentityKey, ...]
    xids: frozenset[int]


Reread = Callable[[RereadRequest], Mapping[IdentityKey, Row] | None]
"""A request → the existing rows: the texts of its columns, ABSENT for a column without a value now.

None if the source doesn't allow the read.
"""


def filled(new: Row, old: Row, *, old_is_key: bool) -> Row:
    """Return the new row, with unchanged values from the old row if it has them."""
    missing = (None, ABSENT) if old_is_key else (ABSENT,)
    return tuple(
        was if value is ABSENT and was not in missing else value
        for value, was in zip(new, old, strict=True)
    )


def no_key(schema: TableSchema) -> TableRefusedError:
    """Return the error for a replica identity that doesn't cover the record's key."""
    again = f"millrace snapshot {shlex.quote(str(schema.name))}"
    return TableRefusedError(
        "an old row has no key: the replica identity doesn't contain it",
        where=f"table {schema.name}",
        remedy=f"ALTER TABLE {sql_names([schema.name])} REPLICA IDENTITY DEFAULT (or FULL); then"
        f" read it again, since what the WAL has by now stays without: {again}",
    )
