"""A stream that begins again → whether it goes on with what the log has."""

from cdc.errors import GapError
from cdc.records.position import Lsn, Position


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
            "the server has another history, as after a restore from a copy: the log has a"
            f" commit at {self._last} and everything up to {self._reached}, but the server has"
            f" other WAL there (at {lsn}). Its changes are at LSNs that the log has passed",
            remedy="stop the daemon, and run `millrace new-epoch --yes`: the log continues from"
            " this server, and all tables are read again (docs/guides/operations.md)",
        )
