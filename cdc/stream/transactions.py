"""Begin, row and Commit messages → positions: what belongs to which transaction, in which place.

The cursor gives each frame of a transaction its position and tells which frames the log already
has, so that a start goes on in the middle of a transaction (docs/decisions/0002).
"""

from typing import Final

from cdc.errors import CorruptMessageError, GapError
from cdc.records.position import Lsn, Position
from cdc.records.transaction import Origin, Transaction

COMMITS_MAX: Final = 16_384
"""So many transactions are remembered by where they were committed."""


class Cursor:
    """The place in the stream: Begin, then frames, then Commit, over and over.

    ``reached`` is the last position handed out or already in the log, ``cut`` the last one with no
    transaction open. ``flush_lsn`` is the end of the last whole transaction: what may be
    acknowledged once everything up to ``reached`` is durable. ``cut_ts_us`` is when the last whole
    transaction was committed (µs since 1970, UTC). cdc/compiled/transactions.pxi has the same,
    compiled.
    """

    def __init__(
        self, reached: Position, cut: Position, flush_lsn: Lsn, cut_ts_us: int = 0
    ) -> None:
        self.reached = reached
        self.cut = cut
        self.flush_lsn = flush_lsn
        self.cut_ts_us = cut_ts_us
        self.transaction: Transaction | None = None
        self.latest: Transaction | None = None
        """The open one or, where none is, the last one."""
        self.last_commit = Lsn(0)
        """Commit LSN of the last whole transaction with frames; 0: none yet."""
        self._previous: Lsn | None = None
        self._index = 0
        self._commits: dict[int, tuple[int, Lsn]] = {}

    def begin(self, xid: int, commit_lsn: Lsn, commit_ts_us: int) -> Transaction:
        """Enter a transaction; raises CorruptMessageError inside of another one."""
        if self.transaction is not None:
            raise CorruptMessageError("Begin inside of a transaction", where=f"LSN {commit_lsn}")
        self.transaction = Transaction(xid, commit_lsn, commit_ts_us, self._previous)
        self.latest = self.transaction
        self._index = 0
        self._commits[xid % COMMITS_MAX] = xid, commit_lsn
        return self.transaction

    def committed_at(self, xid: int) -> Lsn:
        """Commit LSN of a transaction (its 32 bits) that came lately; 0: none such did."""
        stored_xid, lsn = self._commits.get(xid % COMMITS_MAX, (xid, Lsn(0)))
        return lsn if stored_xid == xid else Lsn(0)

    def came_from(self, origin: Origin) -> None:
        """Take in where the open transaction was replicated from; this is before its first row."""
        if self.transaction is None:
            raise CorruptMessageError("an origin outside of a transaction")
        self.transaction = self.latest = self.transaction._replace(origin=origin)

    @property
    def position(self) -> Position:
        """The position of the open transaction's last frame so far, also if the log has it."""
        if self.transaction is None:
            raise CorruptMessageError("a row outside of a transaction")
        return Position(self.reached.epoch, self.transaction.commit_lsn, self._index)

    @property
    def is_ended(self) -> bool:
        """Whether the log has the open transaction with all that belongs to its end."""
        return self.position <= self.cut

    def next(self) -> Position | None:
        """The position of the next frame, or None when the log has it already."""
        self._index += 1
        position = self.position
        if position <= self.reached:
            return None
        self.reached = position
        return position

    def message_at(self, lsn: Lsn) -> Position | None:
        """The position of a message that isn't part of a transaction, or None if the log has it.

        It comes between two transactions. ``lsn`` is its end in the WAL, where the commit of the
        very transaction that wrote it may start: index 0 is before that one's frames.
        """
        if self.transaction is not None:
            raise CorruptMessageError("a message inside of a transaction", where=f"LSN {lsn}")
        position = Position(self.reached.epoch, lsn, 0)
        if position <= self.reached:
            return None
        self.reached, self.cut = position, max(self.cut, position)
        return position

    def commit(self, commit_lsn: Lsn, end_lsn: Lsn) -> Transaction:
        """Leave the transaction; raises CorruptMessageError when it isn't the one begun."""
        transaction = self.transaction
        if transaction is None or transaction.commit_lsn != commit_lsn:
            raise CorruptMessageError("Commit of another transaction", where=f"LSN {commit_lsn}")
        self.transaction = None
        self._previous = commit_lsn
        if self._index:
            self.last_commit = commit_lsn
        self.cut_ts_us = transaction.commit_ts_us
        end = Position(self.reached.epoch, commit_lsn, self._index)
        # Not the same: a start in the middle of a transaction sees those before it once more.
        self.reached, self.cut = max(self.reached, end), max(self.cut, end)
        self.flush_lsn = max(self.flush_lsn, end_lsn)
        return transaction

    def idle_at(self, wal_end: Lsn) -> None:
        """Take in a keepalive: everything that committed before ``wal_end`` was seen."""
        if self.transaction is None and wal_end > self.flush_lsn:
            point = Position(self.reached.epoch, wal_end, 0)
            self.reached, self.cut = max(self.reached, point), max(self.cut, point)
            self.flush_lsn = wal_end


class Resumed:
    """Holds what a stream sends once more against what the log says of it.

    A server that was set back (a copy of its disk, a snapshot of its volume) may have written on
    until its WAL is as long as before, on the same timeline: only what stands in it tells. The
    slot says where the stream begins, so the last transaction that the log has is known to come
    again or not to; and behind it none that has frames may come, up to where the log has
    everything. Those without frames don't count: whether they are sent is up to the server.
    """

    def __init__(self, last: Lsn, position: Position, cut: Position, begin: Lsn) -> None:
        """``last``: the commit that the log has last (0: not known); ``begin``: the slot's."""
        self._last = last
        self._reached = position.commit_lsn
        self._is_awaited = last >= begin
        # The log has a transaction in part: none of it was acknowledged, so it comes again.
        self._is_rest_awaited = position > cut
        self.is_settled = last == 0
        """Whether there is nothing left to look at: before, nothing may be acknowledged, since a
        slot that was moved up to the log would hide the difference from the next start."""

    def begins(self, commit_lsn: Lsn) -> None:
        """Take in a Begin; raises GapError where something should have come before."""
        self._passes(commit_lsn)

    def ends(self, commit_lsn: Lsn, frames: int) -> None:
        """Take in a Commit; raises GapError where the log has passed what it never had."""
        if frames and self._last < commit_lsn < self._reached:
            raise self._gap(commit_lsn)
        if commit_lsn == self._last:
            self._is_awaited = False
        if commit_lsn == self._reached:
            self._is_rest_awaited = False
        self._settle(commit_lsn)

    def has_seen_all(self, wal_end: Lsn) -> None:
        """Take in a keepalive: everything that committed before ``wal_end`` was seen."""
        self._passes(wal_end)
        self._settle(wal_end)

    def _passes(self, lsn: Lsn) -> None:
        if (self._is_awaited and lsn > self._last) or (
            self._is_rest_awaited and lsn > self._reached
        ):
            raise self._gap(lsn)

    def _settle(self, lsn: Lsn) -> None:
        is_awaited = self._is_awaited or self._is_rest_awaited
        self.is_settled = self.is_settled or (not is_awaited and lsn >= self._reached)

    def _gap(self, lsn: Lsn) -> GapError:
        return GapError(
            f"the server's history is another one: the log has a commit at {self._last} and "
            f"everything up to {self._reached}, the server has something else there (at {lsn}), as "
            "after a restore from a copy. Its changes stand in places that the log has passed",
            remedy="`millrace new-epoch --yes`, with the daemon stopped, goes on from this server: "
            "it reads all tables again (docs/operations.md)",
        )
