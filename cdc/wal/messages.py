"""pgoutput's messages, protocol 1 to 4 → typed values, named as PostgreSQL names them.

One class per message of a slot without two_phase, with streaming on or off. Those of transactions
in progress lack their xids (``plain_messages`` in cdc/compiled/transactions.pxi). Times are µs
since 1970, UTC. https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from enum import Enum
from typing import Final, Literal, NamedTuple

from cdc.records.position import Lsn
from cdc.records.position import Origin as Origin  # noqa: PLC0414 (it is a message, too)


class Absent(Enum):
    """The type of ABSENT. An enum, so that type checkers know its only value."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
"""A column whose value wasn't sent: a large (TOASTed) value that the update left unchanged."""

Value = bytes | Literal[Absent.ABSENT] | None
"""A column as sent: PostgreSQL's text, None for NULL, or ABSENT."""
Row = tuple[Value, ...]
"""The columns' values in the order of the Relation message."""

ReplicaIdentity = Literal["d", "n", "f", "i"]


class Begin(NamedTuple):
    """Start of a transaction. ``final_lsn`` is where its commit record starts."""

    final_lsn: Lsn
    commit_ts_us: int
    xid: int


class Commit(NamedTuple):
    """End of a transaction. ``end_lsn`` may be acknowledged."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int


class RelationColumn(NamedTuple):
    """A column of a relation. ``key``: part of the replica identity."""

    key: bool
    name: str
    type_oid: int
    modifier: int


class Relation(NamedTuple):
    """The meaning of a relation id from here on."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


class TypeMessage(NamedTuple):
    """The name of a type that isn't built in."""

    oid: int
    namespace: str
    name: str


class Insert(NamedTuple):
    """A new row."""

    relation_oid: int
    new: Row


class Update(NamedTuple):
    """A changed row. ``old`` only if a column of the replica identity changed, or it is FULL.

    With ``old_is_key`` only the identity's columns of the old row have values; the others are None.
    """

    relation_oid: int
    old: Row | None
    old_is_key: bool
    new: Row


class Delete(NamedTuple):
    """A deleted row; see Update for ``old_is_key``."""

    relation_oid: int
    old: Row
    old_is_key: bool


class Truncate(NamedTuple):
    """Relations emptied by one statement."""

    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(NamedTuple):
    """A message of pg_logical_emit_message()."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


class StreamStart(NamedTuple):
    """A part of a transaction in progress follows."""

    xid: int
    first_segment: bool


class StreamStop(NamedTuple):
    """The part ends."""


class StreamCommit(NamedTuple):
    """A streamed transaction committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int


class StreamAbort(NamedTuple):
    """A streamed transaction, or its subtransaction ``subxid``, was rolled back."""

    xid: int
    subxid: int


Message = (
    Begin
    | Commit
    | Origin
    | Relation
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
)
