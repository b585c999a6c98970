"""A table's state ↔ its records. Lists that grow with its partitions are in pieces.

Lists of leaves are cut into pieces of ``PIECE_ENTRIES``. The rest stays in the state's record,
which names the pieces. A piece's name is a hash of its contents, so a piece never changes: each
state finds the pieces that it was written with, and only changed pieces are written. So a record
stays small, and a snapshot writes records in proportion to the partitions. Only the daemon compares
leaves, and so only the daemon reads pieces (``whole``). Other readers see shortened lists.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.fingerprint import DoubtfulLeaf, LeafFingerprint
from cdc.records.record import Record, to_json
from cdc.records.schema import TableName
from cdc.records.state import LeafRead, TableState, table_key, table_record
from cdc.records.topics import table_topic

FORMAT: Final = 2
"""A daemon that doesn't know pieces refuses the log."""
PIECE_ENTRIES: Final = 64
_NAME_BYTES: Final = 9
"""A name has 12 characters."""
_MARK: Final = b'","piece":"'
"""A table's name can't contain it, because JSON escapes quotes."""

Entries = tuple[Any, ...]


class StatePiece(BaseModel):
    """Entries of one list of a table's state."""

    model_config = ConfigDict(frozen=True)

    format: Literal[2]
    leaves: tuple[LeafFingerprint, ...] = ()
    doubtful: tuple[DoubtfulLeaf, ...] = ()
    read: tuple[LeafRead, ...] = ()


def piece_key(table: TableName, piece: str) -> bytes:
    """Return the key of a piece of a table's state."""
    return to_json({"table": str(table), "piece": piece})


def is_piece(key: bytes | None) -> bool:
    """Return whether a record of the table topic is a piece, not a state."""
    return key is not None and _MARK in key


def whole(state: TableState, read_piece: Callable[[bytes], StatePiece]) -> TableState:
    """Return the state with all entries of its lists. ``read_piece`` returns a piece by its key."""
    if not state.pieces:
        return state
    lists = _lists(state)
    for name, pieces in state.pieces.items():
        keys = (piece_key(state.name, piece) for piece in pieces)
        before = (entry for key in keys for entry in getattr(read_piece(key), _field(name)))
        lists[name] = (*before, *lists[name])
    return _with_lists(state, lists)


class StateRecords:
    """Tables' states → records. Of long lists, only the pieces that the log lacks."""

    def __init__(self, prefix: str, states: Iterable[TableState]) -> None:
        """``states`` are the states in the log."""
        self._prefix = prefix
        self._pieces = {state.name: _names(state.pieces) for state in states if state.pieces}
        """The names of a table's pieces in the log."""
        self._cut: dict[TableName, dict[str, list[tuple[Entries, str]]]] = {}
        """The last pieces of each list, with their names."""

    def of(self, state: TableState) -> list[Record]:
        """Return new pieces, the state, and tombstones of pieces that it doesn't name."""
        table = state.name
        before, made = self._pieces.get(table, frozenset()), dict[str, Record]()
        lists, pieces = _lists(state), dict[str, tuple[str, ...]]()
        cut = {
            name: list(self._pieces_of(table, name, entries, made))
            for name, entries in lists.items()
            if len(entries) > PIECE_ENTRIES
        }
        for name, parts in cut.items():
            lists[name] = lists[name][len(parts) * PIECE_ENTRIES :]
            pieces[name] = tuple(piece for _, piece in parts)
        if cut or before:
            self._cut[table], self._pieces[table] = cut, _names(pieces)
        if cut:
            state = _with_lists(state, lists)
        state = state if state.pieces == pieces else state.model_copy(update={"pieces": pieces})
        new = [record for name, record in made.items() if name not in before]
        gone = before - _names(pieces)
        return [*new, table_record(self._prefix, state), *self._tombstones(table, gone)]

    def gone(self, state: TableState) -> list[Record]:
        """Return tombstones of a table's state and pieces."""
        self._cut.pop(state.name, None)
        pieces = self._pieces.pop(state.name, frozenset())
        own = Record(table_topic(self._prefix), table_key(state.name), None, [], 0)
        return [own, *self._tombstones(state.name, pieces)]

    def _pieces_of(
        self, table: TableName, name: str, entries: Entries, made: dict[str, Record]
    ) -> Iterator[tuple[Entries, str]]:
        """Yield a list's pieces with their names. ``made`` gets the new ones."""
        before = self._cut.get(table, {}).get(name, [])
        for number, start in enumerate(range(0, len(entries) - PIECE_ENTRIES, PIECE_ENTRIES)):
            part = entries[start : start + PIECE_ENTRIES]
            if number < len(before) and before[number][0] == part:
                yield before[number]
                continue
            piece = StatePiece.model_validate({"format": FORMAT, _field(name): part})
            value = piece.model_dump_json(exclude_unset=True).encode()
            digest = urlsafe_b64encode(blake2b(value, digest_size=_NAME_BYTES).digest()).decode()
            key = piece_key(table, digest)
            made[digest] = Record(table_topic(self._prefix), key, value, [], 0)
            yield part, digest

    def _tombstones(self, table: TableName, pieces: Iterable[str]) -> list[Record]:
        topic = table_topic(self._prefix)
        return [Record(topic, piece_key(table, each), None, [], 0) for each in sorted(pieces)]


def _names(pieces: Mapping[str, Iterable[str]]) -> frozenset[str]:
    return frozenset(name for names in pieces.values() for name in names)


def _lists(state: TableState) -> dict[str, Entries]:
    """Return the lists that grow with a table's partitions."""
    lists: dict[str, Entries] = {
        f"read.{number}": request.read for number, request in enumerate(state.requests)
    }
    if state.fingerprint is not None:
        lists["leaves"] = state.fingerprint.leaves
    if state.doubt is not None:
        lists["doubtful"] = state.doubt.leaves
    return lists


def _with_lists(state: TableState, lists: Mapping[str, Entries]) -> TableState:
    fingerprint, doubt = state.fingerprint, state.doubt
    requests = tuple(
        request.model_copy(update={"read": lists[f"read.{number}"]})
        for number, request in enumerate(state.requests)
    )
    update: dict[str, object] = {"requests": requests}
    if fingerprint is not None:
        update["fingerprint"] = fingerprint.model_copy(update={"leaves": lists["leaves"]})
    if doubt is not None:
        update["doubt"] = doubt.model_copy(update={"leaves": lists["doubtful"]})
    return state.model_copy(update=update)


def _field(name: str) -> str:
    """Return the field of a piece that has a list's entries."""
    return name.partition(".")[0]
