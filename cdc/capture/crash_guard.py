"""Crashes of the source while it is streamed from → an end, before we are what crashes it."""

from typing import Final

from cdc.errors import DecodingCrashError, SourceUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.state import Progress

_CRASHES_MAX: Final = 3


class CrashGuard:
    """Counts crashes that come while the stream gets no further.

    WAL that crashes the process that decodes it does so at each start, and takes all sessions of
    the server with it. Behind any other crash the stream goes on, which sets the count back.
    """

    def __init__(self) -> None:
        self._crashes = 0
        self._reached: tuple[Position, Lsn] | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether the server has crashed, and the stream hasn't got any further since."""
        return self._crashes > 0

    def note_progress(self, progress: Progress) -> None:
        """Note how far the log is, as streaming begins and at each commit."""
        reached = progress.position, progress.flush_lsn
        if self._reached not in {None, reached}:
            self._crashes = 0
        self._reached = reached

    def note_crash(self, error: SourceUnreachableError, behind: Lsn) -> None:
        """Note that the stream has ended with a crash; raises DecodingCrashError for the third."""
        self._crashes += 1
        if self._crashes < _CRASHES_MAX:
            return
        raise DecodingCrashError(
            f"the server has crashed {self._crashes} times in a row while it decoded its WAL"
            f" after {behind}; another start may crash it again",
            where=error.where,
            remedy="read the server's log. If the crashed process ran START_REPLICATION, this is a"
            " bug of PostgreSQL: finish a pending DETACH PARTITION … CONCURRENTLY"
            " (docs/guides/postgresql.md), update PostgreSQL, and start again; if the server"
            " still crashes, `millrace new-epoch` continues without that WAL, and reads"
            " every table again. If another process crashed, start again",
        ) from error
