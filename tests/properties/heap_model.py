"""A table as PostgreSQL has it, in miniature: pages, versions of rows, transactions, a WAL.

What matters to a read in chunks is here: a commit is in the WAL before it is visible, its rows are
locked until then; updates move rows to where there is room; VACUUM makes room, a rewrite moves all.
"""

import struct
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, NamedTuple

from cdc.events.changes import ABSENT, Value
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import Leaf, TableDescription
from cdc.records.position import Lsn
from cdc.records.schema import Column, TableName
from cdc.stream.signals import WATERMARK
from cdc.wal.messages import Relation, RelationColumn
from snapshots.overtaken import Visibility
from snapshots.pages import Range, tid
from tests.unit.cdc import wal_bytes as wal

OID: Final = 16_385
NAME: Final = TableName("public", "t")
BLOCK: Final = 8192
SLOTS: Final = 2
"""Rows that fit into a page."""
FIRST_XID: Final = (3 << 32) - 20
"""So that the stream's 32 bits wrap around."""
XID_MASK: Final = (1 << 32) - 1

Values = dict[str, str | None]


@dataclass
class Version:
    """A row's state; ``place`` is its leaf, page and slot."""

    key: str
    values: Values
    made_by: int
    place: tuple[int, int, int]
    ended_by: int | None = None


@dataclass
class Transaction:
    """What one has done; in the WAL once it is committed, shown to others some time after."""

    xid: int
    frames: list[bytes] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    made: list[Version] = field(default_factory=list)
    ended: list[Version] = field(default_factory=list)
    state: Literal["open", "committed", "done"] = "open"
    locks_all: bool = False


class Committed(NamedTuple):
    """A transaction in the WAL; ``columns`` are those of its rows."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    frames: list[bytes]
    columns: tuple[str, ...]


class Heap:
    """The table ``t (id int PRIMARY KEY, v text, big text)``, and who writes to it."""

    def __init__(self, leaves: int, rows: int) -> None:
        self.columns: tuple[str, ...] = ("id", "v", "big")
        self.pages: list[list[list[Version | None]]] = [[] for _ in range(leaves)]
        self.files = [1 for _ in range(leaves)]
        self.altered = 0
        self.open: list[Transaction] = []
        self.wal: list[Committed] = []
        self._next_xid = FIRST_XID
        self._newest_done = FIRST_XID - 1
        self._lsn = 1_000
        self._counted = 0
        for number in range(rows):
            self._put(str(number), {"v": self.fresh(), "big": self.fresh()}, 1)
        self.start = Lsn(self._lsn)

    def fresh(self) -> str:
        """A value that was never there."""
        self._counted += 1
        return f"value {self._counted}"

    # Who sees what

    @property
    def visibility(self) -> Visibility:
        """What a snapshot taken now shows."""
        xmax = self._newest_done + 1
        running = frozenset(one.xid for one in self.open if one.xid < xmax)
        return Visibility(min(running, default=xmax), xmax, running)

    def versions(self) -> list[Version]:
        """All that stands in pages."""
        return [one for leaf in self.pages for page in leaf for one in page if one is not None]

    def rows(self) -> dict[str, Values]:
        """What a SELECT gives once nothing is under way: key → values."""
        return {one.key: dict(one.values) for one in self.versions() if one.ended_by is None}

    def read(self, leaf: int, tids: Range, visibility: Visibility) -> list[tuple[int, Version]]:
        """The rows of a range that are visible, with their TIDs."""
        found = []
        for page, slots in enumerate(self.pages[leaf]):
            for slot, one in enumerate(slots):
                number = page << 16 | (slot + 1)
                if one is not None and tids[0] <= number < tids[1] and _is_seen(one, visibility):
                    found.append((number, one))
        return found

    def now(self, key: str) -> Version | None:
        """A row as everybody sees it who may change it."""
        return next((o for o in self.versions() if o.key == key and o.ended_by is None), None)

    @property
    def locked(self) -> set[str]:
        """Keys that only their transaction may touch."""
        return {key for one in self.open for key in one.keys}

    @property
    def is_locked(self) -> bool:
        """Whether not even a SELECT may be made."""
        return any(one.locks_all for one in self.open)

    # Transactions

    def begin(self) -> Transaction:
        """Enter one."""
        made = Transaction(self._next_xid)
        self._next_xid += 1
        self.open.append(made)
        return made

    def commit(self, one: Transaction) -> None:
        """Write it to the WAL; others don't see it yet."""
        commit_lsn = Lsn(self._advance(10 * len(one.frames) + 10))
        end = Lsn(self._advance(8))
        self.wal.append(Committed(one.xid, commit_lsn, end, one.frames, self.columns))
        one.state = "committed"

    def show(self, one: Transaction) -> None:
        """Others see what it has done, and its locks are gone."""
        one.state = "done"
        self.open.remove(one)
        self._newest_done = max(self._newest_done, one.xid)

    def abort(self, one: Transaction) -> None:
        """It was never there, but for holes in pages."""
        for version in one.made:
            self._clear(version)
        for version in one.ended:
            version.ended_by = None
        self.show(one)

    def insert(self, one: Transaction, key: str) -> None:
        """A new row."""
        values: Values = {name: self.fresh() for name in self.columns[1:]}
        one.keys.add(key)
        one.made.append(self._put(key, values, one.xid))
        one.frames.append(b"I" + wal.u32(OID) + b"N" + self._tuple(key, values))

    def update(
        self, one: Transaction, version: Version, *, big: bool, key: str | None = None
    ) -> None:
        """A row's next state, elsewhere; without ``big`` its large value isn't sent."""
        values = version.values | {"v": self.fresh()}
        if big:
            values["big"] = self.fresh()
        old_key, new_key = version.key, key if key is not None else version.key
        one.keys |= {old_key, new_key}
        version.ended_by = one.xid
        one.ended.append(version)
        put = self._put(new_key, values, one.xid)
        one.made.append(put)
        before = b"K" + self._key_tuple(old_key)
        if put.place[0] != version.place[0]:  # it goes to another partition
            one.frames.append(b"D" + wal.u32(OID) + before)
            one.frames.append(b"I" + wal.u32(OID) + b"N" + self._tuple(new_key, values))
            return
        old = before if new_key != old_key else b""
        new = self._tuple(new_key, values, without_big=not big)
        one.frames.append(b"U" + wal.u32(OID) + old + b"N" + new)

    def delete(self, one: Transaction, version: Version) -> None:
        """A row less."""
        one.keys.add(version.key)
        version.ended_by = one.xid
        one.ended.append(version)
        one.frames.append(b"D" + wal.u32(OID) + b"K" + self._key_tuple(version.key))

    def truncate(self) -> Transaction:
        """All rows gone, at once; returns who did it, who has still to commit."""
        one = self.begin()
        one.locks_all = True
        one.frames.append(b"T" + wal.u32(1) + wal.u8(0) + wal.u32(OID))
        self.pages = [[] for _ in self.pages]
        self.files = [number + 1 for number in self.files]
        return one

    def mark(self, text: str) -> None:
        """Write a watermark."""
        one = self.begin()
        message = WATERMARK.encode() + b"\0" + wal.sized(text.encode())
        one.frames.append(b"M" + wal.u8(1) + wal.u64(self._lsn) + message)
        self.commit(one)
        self.show(one)

    # What nobody may do while others write

    def vacuum(self) -> None:
        """Make room where rows were that nobody sees."""
        busy = {one.xid for one in self.open}
        for version in self.versions():
            if version.ended_by is not None and version.ended_by not in busy:
                self._clear(version)

    def rewrite(self, choose: Random) -> None:
        """VACUUM FULL: all rows stand elsewhere."""
        self.vacuum()
        kept = self.versions()
        choose.shuffle(kept)
        self.pages = [[] for _ in self.pages]
        self.files = [number + 1 for number in self.files]
        for one in kept:
            one.place = self._room(one)

    def add_column(self) -> None:
        """ALTER TABLE ADD COLUMN."""
        self.altered += 1
        self.columns += (f"x{self.altered}",)
        for one in self.versions():
            one.values[self.columns[-1]] = None

    def drop_column(self) -> None:
        """ALTER TABLE DROP COLUMN, of one that was added."""
        if len(self.columns) > 3:
            self.altered += 1
            for one in self.versions():
                one.values.pop(self.columns[-1], None)
            self.columns = self.columns[:-1]

    # How it is described

    @property
    def table(self) -> TableDescription:
        """As the catalog has it."""
        leaves = tuple(
            Leaf(OID + number, NAME, len(pages), "d", frozenset({"id"}))
            for number, pages in enumerate(self.pages)
        )
        return TableDescription(
            oid=OID,
            name=NAME,
            columns=columns_of(self.columns),
            primary_key=("id",),
            replica_identity="d",
            identity=frozenset({"id"}),
            partitioned=len(leaves) > 1,
            leaves=leaves,
            rows_estimated=0,
            block_bytes=BLOCK,
            row_filter=None,
            signature=relation_signature(relation_of(self.columns)),
            entry=9,
        )

    def _tuple(self, key: str, values: Values, *, without_big: bool = False) -> bytes:
        row: list[Value] = [key.encode()]
        for name in self.columns[1:]:
            text = values.get(name)
            absent = without_big and name == "big"
            row.append(ABSENT if absent else None if text is None else text.encode())
        return wal.row(row)

    def _key_tuple(self, key: str) -> bytes:
        return wal.row([key.encode(), *([None] * (len(self.columns) - 1))])

    def _put(self, key: str, values: Values, xid: int) -> Version:
        made = Version(key, values, xid, (0, 0, 0))
        made.place = self._room(made)
        return made

    def _room(self, version: Version) -> tuple[int, int, int]:
        leaf = int(version.key) % len(self.pages)
        free = (page for page, slots in enumerate(self.pages[leaf]) if None in slots)
        page = next(free, len(self.pages[leaf]))
        if page == len(self.pages[leaf]):
            self.pages[leaf].append([None] * SLOTS)
        slot = self.pages[leaf][page].index(None)
        self.pages[leaf][page][slot] = version
        return leaf, page, slot

    def _clear(self, version: Version) -> None:
        leaf, page, slot = version.place
        self.pages[leaf][page][slot] = None

    def _advance(self, by: int) -> int:
        self._lsn += by
        return self._lsn


def columns_of(names: tuple[str, ...]) -> tuple[Column, ...]:
    """Described: an int4 key, texts."""
    first = Column(name="id", type="int4", type_oid=23, declared="integer", key=1)
    return (
        first,
        *(Column(name=name, type="text", type_oid=25, declared="text") for name in names[1:]),
    )


def relation_of(names: tuple[str, ...]) -> Relation:
    """As the stream announces it."""
    columns = [RelationColumn(name == "id", name, 23 if name == "id" else 25, -1) for name in names]
    return Relation(OID, *NAME, "d", tuple(columns))


def relation_message(names: tuple[str, ...]) -> bytes:
    """The same as bytes."""
    columns = b"".join(
        wal.u8(c.key) + c.name.encode() + b"\0" + struct.pack(">Ii", c.type_oid, c.modifier)
        for c in relation_of(names).columns
    )
    head = b"R" + wal.u32(OID) + b"public\0t\0d"
    return head + struct.pack(">H", len(names)) + columns


def copy_text(names: tuple[str, ...], number: int, version: Version) -> bytes:
    """A row as COPY sends it, its TID behind it, as a CopyData message."""
    values = [version.values.get(name) for name in names[1:]]
    texts = [version.key, *(r"\N" if one is None else one for one in values), tid(number)]
    line = "\t".join(texts).encode() + b"\n"
    return b"d" + struct.pack(">I", len(line) + 4) + line


def _is_seen(version: Version, visibility: Visibility) -> bool:
    if not visibility.shows(version.made_by & XID_MASK) and version.made_by >= FIRST_XID:
        return False
    return version.ended_by is None or not visibility.shows(version.ended_by & XID_MASK)
