"""Crashes of the source while it streams → an end, before the stream causes more of them."""

from typing import Final

from cdc.errors import DecodingCrashError, SourceUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.state import Progress

_CRASHES_MAX: Final = 3


class CrashGuard:
    """Counter of crashes during which the stream makes no progress.

    Some WAL crashes the process that decodes it, at each start, and so ends all sessions of the
    server. After any other crash the stream makes progress, which resets the count.
    """

    def __init__(self) -> None:
        self._crashes = 0
        self._reached: tuple[Position, Lsn] | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether the server has crashed and the stream has made no progress since."""
        return self._crashes > 0

    def note_progress(self, progress: Progress) -> None:
        """Record the log's progress, when streaming begins and at each commit."""
        reached = progress.position, progress.flush_lsn
        if self._reached not in {None, reached}:
            self._crashes = 0
        self._reached = reached

    def note_crash(self, error: SourceUnreachableError, behind: Lsn) -> None:
        """Record that a crash has ended the stream. Raise DecodingCrashError at the third."""
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
