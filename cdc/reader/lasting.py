"""A reader's loop: items until it must end. Whatever ends it, processed items are kept."""

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeVar

from cdc.errors import LogUnreachableError
from cdc.reader.access import LogAccess, ReaderStoppedError, log
from cdc.records.position import Position

KEEP_S: Final = 1.0
"""Minimum interval between kept positions."""
_LAST_S: Final = 3.0
"""How long the last position may take to be kept ..."""
_AWAY_S: Final = 1.0
"""... and while brokers are unavailable, which may last for hours."""
ReadItem = TypeVar("ReadItem")


class LastingReader(Iterator[ReadItem]):
    """An iterator to be closed: a ``with`` block always does that."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._is_open: bool | None = None
        self._kept_at = time.monotonic()
        self._since = ""
        """The first item that is processed and not kept."""

    def __del__(self) -> None:
        """End a loop that its caller left, without a ``with`` block, before its end."""
        if getattr(self, "_is_open", None):
            with suppress(Exception):
                self.close()

    def __next__(self) -> ReadItem:
        """Return the next item. End when the reader must, or has nothing more to read."""
        try:
            if self._is_open is None:
                self._access.stopping.begin()
                self._is_open = True
                self._open()
            self._settle()
            while self._is_open and not (self._access.stopping.is_set or self._is_done):
                if (item := self._next()) is not None:
                    return item
        except ReaderStoppedError:
            pass
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Close it. A body whose wait for brokers was stopped also ends without an error."""
        self.close()
        return kind is ReaderStoppedError

    def close(self) -> None:
        """Keep the processed items, and leave the group. The item returned last doesn't count."""
        if self._is_open:
            self._is_open = False
            try:
                self._finish()
                self._hurry(_AWAY_S if self._is_alone else _LAST_S)
                self._keep()
            finally:
                self._leave()
                self._access.stopping.end()

    def _keep(self) -> None:
        """Keep the processed items. While no broker takes them, a kill causes more repetitions."""
        self._kept_at = time.monotonic()
        try:
            self._write()
        except LogUnreachableError as error:
            if self._since:
                end = "come again" if self._is_open is False else "would come again after a crash"
                what = "the group's position can't be stored (%s): changes since %s %s"
                log.warning(what, error.what, self._since, end)
        else:
            self._since = ""

    def _process(self, position: Position | None, commit_time: datetime) -> None:
        """Mark an item as processed."""
        if not self._since:
            lsn = f"LSN {position.commit_lsn}, " if position is not None else ""
            self._since = f"{lsn}{commit_time:%Y-%m-%d %H:%M:%S.%fZ}"

    def _finish(self) -> None:
        """Finish the work before the last position is kept."""

    @property
    def _is_done(self) -> bool:
        """Whether the reader has reached its end."""
        return False

    @property
    @abstractmethod
    def _is_alone(self) -> bool:
        """Whether no broker was available recently."""

    @abstractmethod
    def _hurry(self, seconds: float) -> None:
        """Keep a position within this many seconds from now, or not at all."""

    @abstractmethod
    def _open(self) -> None:
        """Prepare the first item."""

    @abstractmethod
    def _settle(self) -> None:
        """Count the last item as processed, as the caller asks for more."""

    @abstractmethod
    def _next(self) -> ReadItem | None:
        """Return the next item, or None after a while."""

    @abstractmethod
    def _write(self) -> None:
        """Write the position of processed items, if there are any."""

    @abstractmethod
    def _leave(self) -> None:
        """Close everything that is open."""
