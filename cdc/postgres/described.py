"""A captured table → its description from catalog.py, before the daemon reads any of its rows."""

from dataclasses import dataclass
from typing import NamedTuple

from cdc.records.fingerprint import TableFingerprint
from cdc.records.schema import Column, TableName
from cdc.wal.messages import ReplicaIdentity


class CapturedTable(NamedTuple):
    """A relation that passes the lists: a table, or the root of a partitioned one."""

    oid: int
    name: TableName


@dataclass(frozen=True, slots=True)
class Leaf:
    """A unit with rows: a plain table itself, or each partition of a partitioned one.

    ``identity`` names the columns of the replica identity; empty without one. A ``heap`` stores its
    rows in pages.
    """

    oid: int
    name: TableName
    pages: int
    replica_identity: ReplicaIdentity
    identity: frozenset[str]
    heap: bool = True


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The daemon's information about a table before it reads it.

    ``columns`` are the published ones. ``primary_key`` names all key columns, published or not;
    without a key, those of the replica identity's index. ``rows_estimated`` is the planner's guess.
    ``row_filter`` is SQL. ``entry`` is the OID of the publication's entry for the table; 0: it
    isn't published. ``all_changes``: it publishes INSERT, UPDATE and DELETE. ``unpublished`` names
    columns that the stream lacks, ``left_out`` those that the publication's column list excludes.
    ``fingerprint`` is from the same time, or earlier; None: it isn't compared.
    """

    oid: int
    name: TableName
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    replica_identity: ReplicaIdentity
    identity: frozenset[str]
    partitioned: bool
    leaves: tuple[Leaf, ...]
    rows_estimated: int
    block_bytes: int
    row_filter: str | None
    signature: str
    entry: int
    all_changes: bool = True
    unpublished: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    fingerprint: TableFingerprint | None = None

    @property
    def pages(self) -> int:
        """The number of pages of the table's rows, without TOAST."""
        return sum(leaf.pages for leaf in self.leaves)

    @property
    def identifying_columns(self) -> tuple[str, ...]:
        """Names of the columns that identify a row in the stream. Empty: none do."""
        keyed = [(column.key, column.name) for column in self.columns if column.key is not None]
        if self.replica_identity == "f":
            return tuple(name for _, name in sorted(keyed))
        names = tuple(column.name for column in self.columns if column.name in self.identity)
        return names if len(names) == len(self.identity) and keyed else ()

    @property
    def is_chunked(self) -> bool:
        """Whether its rows can be read under several snapshots, while it is streamed."""
        in_heaps = all(leaf.heap for leaf in self.leaves)
        return bool(self.identifying_columns) and self.all_changes and in_heaps
