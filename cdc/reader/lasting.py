"""A reader's loop: items, until it is told to end; what is processed is kept, whatever ends it."""

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
"""Positions are kept at most so often."""
_LAST_S: Final = 3.0
"""How long the last position may take to be kept ..."""
_AWAY_S: Final = 1.0
"""... and where brokers are away, which may be so for hours."""
ReadItem = TypeVar("ReadItem")


class LastingReader(Iterator[ReadItem]):
    """An iterator to be closed: a ``with`` block does that whatever happens."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._is_open: bool | None = None
        self._kept_at = time.monotonic()
        self._since = ""
        """The first item that is processed and not kept."""

    def __del__(self) -> None:
        """End a loop that was left, without a ``with`` block, before its end."""
        if getattr(self, "_is_open", None):
            with suppress(Exception):
                self.close()

    def __next__(self) -> ReadItem:
        """The next item; ends once the reader is told to, or has nothing more to read."""
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
        """Close it; a body that was told to end while it waited for brokers ends so, too."""
        self.close()
        return kind is ReaderStoppedError

    def close(self) -> None:
        """Keep what is processed, and leave the group; the item that was given last isn't."""
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
        """Keep what is processed; while no broker takes it, more will be repeated after a kill."""
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
        """An item is processed."""
        if not self._since:
            lsn = f"LSN {position.commit_lsn}, " if position is not None else ""
            self._since = f"{lsn}{commit_time:%Y-%m-%d %H:%M:%S.%fZ}"

    def _finish(self) -> None:
        """Do what comes before the last position is kept."""

    @property
    def _is_done(self) -> bool:
        """Whether nothing more is to be read."""
        return False

    @property
    @abstractmethod
    def _is_alone(self) -> bool:
        """Whether no broker has been there lately."""

    @abstractmethod
    def _hurry(self, seconds: float) -> None:
        """Keep a position within so many seconds from now on, or not at all."""

    @abstractmethod
    def _open(self) -> None:
        """Do what comes before the first item."""

    @abstractmethod
    def _settle(self) -> None:
        """Take what was given last for processed: the caller asks for more."""

    @abstractmethod
    def _next(self) -> ReadItem | None:
        """The next item, or None after a while."""

    @abstractmethod
    def _write(self) -> None:
        """Write what is processed, if anything is."""

    @abstractmethod
    def _leave(self) -> None:
        """Let go of what is open."""
