"""Changes in the stream, and a chunk → the rows of it that are older than the log; pure.

A chunk is written into the log behind changes that its snapshot may not show: those of transactions
that committed after it was taken, and of some before, since a commit is in the WAL for a while
before it is visible. So each changed key of a table that is being read is remembered with its
transaction, until every later snapshot is known to show that.

A row is locked until its transaction is visible, so whoever shows a key's last change shows all.
https://www.postgresql.org/docs/current/functions-info.html (pg_current_snapshot)
"""

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Final, NamedTuple, Self

from cdc.compiled.fast import COMMITS_MAX
from cdc.events.changes import ABSENT, Row
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn
from cdc.stream.signals import StreamedRow
from cdc.wal.messages import Relation

KEYS_MAX: Final = 200_000
"""Changed keys of a table that are remembered; beyond, the chunks under way are read once more."""
_XID_BITS: Final = 32


class Visibility(NamedTuple):
    """Which transactions a snapshot shows: pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]
    is_awaited: bool = False
    """Whether it was waited for what was streamed before (a standby's replay)."""

    @classmethod
    def parse(cls, text: str, *, of_standby: bool = False) -> Self:
        """Read ``xmin:xmax:xid,xid…``.

        A standby's doesn't list what is running, so nothing from the oldest one on counts as shown.
        """
        xmin, xmax, running = text.split(":")
        if of_standby:
            return cls(int(xmin), int(xmin), frozenset(), is_awaited=True)
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Whether it shows what a transaction, as the stream numbers it (32 bits), has done."""
        half = 1 << (_XID_BITS - 1)
        distance = (xid - self.xmax + half) % (1 << _XID_BITS) - half
        full = self.xmax + distance
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def shows_all_before(self, lsn: Lsn, committed_at: Callable[[int], Lsn]) -> bool:
        """Whether it shows every transaction that the stream had committed up to there."""
        if self.is_awaited:
            return True
        mask = (1 << _XID_BITS) - 1
        # The newest ones may be in the WAL and have ended for nobody yet: xmax comes before them.
        newer = range(self.xmax, self.xmax + COMMITS_MAX)
        return not any(0 < committed_at(xid & mask) <= lsn for xid in chain(self.running, newer))


class Changes:
    """What the stream says of one table since its chunks are being read."""

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()
        """The columns that identify a row; as long as they aren't known, any may have changed."""
        self._keys: dict[int, list[bytes | None]] = {}
        self._key_count = 0
        self._last: list[bytes | None] = []
        self.forgotten = 1
        """How often what was known of changes was given up; chunks from before are of no use."""
        self.relation: Relation | None = None
        self.announced = 0
        """How often a Relation message came."""
        self._settled: tuple[Visibility, set[str]] | None = None

    def tell_apart_by(self, key: tuple[str, ...]) -> None:
        """Rows are identified by these columns from here on."""
        if key != self.key:
            self.key = key
            self.forget()

    def of(self, xid: int) -> list[bytes | None]:
        """Where a transaction's changed keys are appended; None: it may be any."""
        self._key_count += len(self._last)
        if self._key_count > KEYS_MAX:
            self.forget()
        self._last = self._keys.setdefault(xid, [])
        self._key_count -= len(self._last)
        return self._last

    def forget(self) -> None:
        """Forget all changed keys: chunks have to begin again."""
        self._keys.clear()
        self._last = []
        self._key_count = 0
        self.forgotten += 1

    def note(self, row: StreamedRow) -> None:
        """Take notice of a change that comes decoded."""
        self.of(row.transaction.xid).extend(self._keys_of(row))

    def announce(self, relation: Relation) -> None:
        """Take notice of how rows look from here on."""
        self.relation = relation
        self.announced += 1

    def fits(self, table: TableDescription, announced: int) -> bool:
        """Whether nothing says that a chunk's table was altered since so many announcements."""
        if self.relation is None or self.announced == announced:
            return True
        if relation_signature(self.relation) == table.signature:
            return True
        names = {column.name for column in table.columns}
        streamed_names = {column.name for column in self.relation.columns}
        return bool(table.unpublished) and names - streamed_names == table.unpublished

    def stale(self, visibility: Visibility) -> frozenset[bytes] | None:
        """The keys that were changed since a snapshot; None: it may be all of them."""
        stale_keys: set[bytes | None] = set()
        for xid, keys in self._keys.items():
            if not visibility.shows(xid):
                stale_keys.update(keys)
        return (
            None if None in stale_keys else frozenset(key for key in stale_keys if key is not None)
        )

    def settle(self, visibility: Visibility, begun: Collection[str]) -> None:
        """A chunk is done; ``begun`` are those under way, whose snapshots may be older.

        What it shows is shown by all that begin from here on.
        """
        if self._settled is None:
            self._settled = visibility, set(begun)

    def ended(self, chunk: str) -> None:
        """A chunk isn't under way any more."""
        if self._settled is None:
            return
        visibility, waiting = self._settled
        waiting.discard(chunk)
        if not waiting:
            self._settled = None
            kept = {x: keys for x, keys in self._keys.items() if not visibility.shows(x)}
            self._keys, self._last = kept, []
            self._key_count = sum(map(len, kept.values()))

    def _keys_of(self, row: StreamedRow) -> Iterable[bytes | None]:
        columns = [column.name for column in row.relation.columns]
        at = [columns.index(name) for name in self.key if name in columns]
        if len(at) != len(self.key) or not at or (row.old is None and row.new is None):
            return {None}
        old, new = _key(row.old, at), _key(row.new, at)
        if row.new is None:
            return {old}
        return {new if new is not None else old, old if old is not None else new}


def _key(row: Row | None, at: list[int]) -> bytes | None:
    """A row's key; None where it hasn't all of it."""
    if row is None:
        return None
    key = [value for index in at if (value := row[index]) is not ABSENT and value is not None]
    return b"\0".join(key) if len(key) == len(at) else None
