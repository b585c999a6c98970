"""A chunk, and changes in the stream → the rows of which the stream had no newer state; pure.

A row is older than the stream where its key was changed between the chunk's watermarks, as Debezium
has it; or before them by a transaction that the chunk's snapshot doesn't show, since a commit can
be in the WAL for a while before it is visible.

An update that leaves a large value unchanged comes without it. Where the log has nothing else of
such a row, the chunk's row is needed after all: with what the updates say, it is the row as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from cdc.changes import ABSENT, Row, Value
from cdc.postgres.catalog import TableDescription, relation_signature
from cdc.records.schema import TableName
from cdc.signals import SeenRow
from cdc.wal.messages import Relation
from snapshots.keyset import Chunk, Key, Visibility

CHANGES_MAX: Final = 200_000
"""Keys of a table that are remembered as changed; beyond, the chunk is read once more."""


class _Changed(NamedTuple):
    """A key that a transaction has changed; None: it may be any.

    ``part``: what an update says of a row that it doesn't say all of, by column.
    """

    xid: int
    inside: bool
    key: Key | None
    part: Mapping[str, Value] | None


class Changes:
    """What the stream has said of the tables that are being read, since their last chunks."""

    def __init__(self, key_names: Callable[[Relation], tuple[str, ...]]) -> None:
        """``key_names`` gives the columns by which a table is read."""
        self._key_names = key_names
        self._changes: dict[TableName, list[_Changed]] = {}
        self._relations: dict[TableName, Relation] = {}
        self._keys: dict[Relation, tuple[str, ...]] = {}
        self._overflown: set[TableName] = set()

    def note(self, row: SeenRow, *, inside: bool) -> None:
        """Take notice of a change; ``inside``: between the watermarks."""
        self._relations[row.table] = row.relation
        changes = self._changes.setdefault(row.table, [])
        part = None
        if row.new is not None and ABSENT in row.new:
            names = [column.name for column in row.relation.columns]
            part = dict(zip(names, row.new, strict=True))
        changes += [_Changed(row.transaction.xid, inside, k, part) for k in self._keys_of(row)]
        if len(changes) > CHANGES_MAX:
            changes.clear()
            self._overflown.add(row.table)

    def clear(self) -> None:
        """Forget all: nothing is being read."""
        self._changes.clear()
        self._relations.clear()
        self._overflown.clear()

    def kept(self, chunk: Chunk) -> list[Row] | None:
        """The rows that the log is to get; None: the chunk is to be read again."""
        table = chunk.table.name
        newer: dict[Key | None, list[_Changed]] = {}
        for change in self._changes.get(table, ()):
            if change.inside or not chunk.visibility.shows(change.xid):
                newer.setdefault(change.key, []).append(change)
        relation = self._relations.pop(table, None)
        altered = relation is not None and not _fits(relation, chunk.table)
        overflown = table in self._overflown
        self._overflown.discard(table)
        self._changes = {
            name: later
            for name, changes in self._changes.items()
            if (later := _unseen(changes, chunk.visibility))
        }
        if None in newer or altered or overflown:
            return None
        names = [column.name for column in chunk.table.columns]
        pairs = zip(chunk.keys, chunk.rows, strict=True)
        rows = [_as_it_is(row, names, newer.get(key, ())) for key, row in pairs]
        return [row for row in rows if row is not None]

    def _keys_of(self, row: SeenRow) -> set[Key | None]:
        names = self._names(row.relation)
        at = [i for name in names for i, c in enumerate(row.relation.columns) if c.name == name]
        if len(at) != len(names) or not names:
            return {None}
        old, new = _key(row.old, at), _key(row.new, at)
        if row.new is None:
            return {old}
        return {new if new is not None else old, old if old is not None else new}

    def _names(self, relation: Relation) -> tuple[str, ...]:
        if relation not in self._keys:
            self._keys[relation] = self._key_names(relation)
        return self._keys[relation]


def _as_it_is(row: Row, names: Sequence[str], changes: Iterable[_Changed]) -> Row | None:
    """A chunk's row with what the stream says of it; None where the log has all of it."""
    for change in changes:
        if change.part is None:
            return None
        told = [change.part.get(name, ABSENT) for name in names]
        row = tuple(was if now is ABSENT else now for was, now in zip(row, told, strict=True))
    return row


def _fits(relation: Relation, table: TableDescription) -> bool:
    """Whether a chunk is no older than a relation: it may have more columns, as generated ones."""
    if relation_signature(relation) == table.signature:
        return True
    names = {column.name for column in table.columns}
    return len(names) > len(relation.columns) and names.issuperset(
        column.name for column in relation.columns
    )


def _unseen(changes: Iterable[_Changed], visibility: Visibility) -> list[_Changed]:
    """Those that may be invisible to the next chunk, too; they are before its window."""
    return [one._replace(inside=False) for one in changes if not visibility.shows(one.xid)]


def _key(row: Row | None, at: list[int]) -> Key | None:
    """A row's key; None where it hasn't all of it."""
    if row is None:
        return None
    key = [value for index in at if (value := row[index]) is not ABSENT]
    return tuple(key) if len(key) == len(at) else None
