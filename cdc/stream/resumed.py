"""A stream that begins again → whether it continues the log."""

from cdc.errors import GapError
from cdc.records.position import Lsn, Position


class Resumed:
    """Compares the repeated part of a stream with the log.

    A server that was set back (a copy of its disk, a snapshot of its volume) may have written until
    its WAL has its former length, on the same timeline. Only the contents show that. The slot has
    the stream's begin, so it is known whether the log's last transaction comes again. After it, no
    transaction with frames may come before the position up to which the log has everything.
    Transactions without frames don't count, as the server may or may not send them.
    """

    def __init__(self, last: Lsn, position: Position, cut: Position, begin: Lsn) -> None:
        """``last``: the log's last commit (0: unknown). ``begin``: the slot's."""
        self._last = last
        self._reached = position.commit_lsn
        self._is_awaited = last >= begin
        # The log has a part of a transaction: none of it was acknowledged, so it comes again.
        self._is_rest_awaited = position > cut
        self.is_settled = last == 0
        """Whether the comparison is complete. Nothing may be acknowledged before, since a slot
        moved up to the log would hide the difference from the next start.
        """

    def begins(self, commit_lsn: Lsn) -> None:
        """Check a Begin. Raise GapError if an expected transaction is missing before it."""
        self._passes(commit_lsn)

    def ends(self, commit_lsn: Lsn, frames: int) -> None:
        """Check a Commit. Raise GapError if the log lacks it but is past it."""
        if frames and self._last < commit_lsn < self._reached:
            raise self._gap(commit_lsn)
        if commit_lsn == self._last:
            self._is_awaited = False
        if commit_lsn == self._reached:
            self._is_rest_awaited = False
        self._settle(commit_lsn)

    def has_seen_all(self, wal_end: Lsn) -> None:
        """Check a keepalive: the stream has sent every commit before ``wal_end``."""
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
            "the server has another history, as after a restore from a copy: the log has a"
            f" commit at {self._last} and everything up to {self._reached}, but the server has"
            f" other WAL there (at {lsn}). Its changes are at LSNs that the log has passed",
            remedy="stop the daemon, and run `millrace new-epoch --yes`: the log continues from"
            " this server, and all tables are read again (docs/guides/operations.md)",
        )
