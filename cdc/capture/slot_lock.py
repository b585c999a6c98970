"""A slot's name → the right to it, held for as long as this process is heard of.

An advisory lock in a session of its own. A thread speaks in it all the time, and the server ends it
when it hears nothing (idle_session_timeout): so a process that was stopped, or whose machine is
gone, loses the right in seconds, in whatever it was at.
"""

import contextlib
import os
import socket
import threading
from typing import Final

from cdc.errors import MillraceError, SourceUnreachableError
from cdc.postgres import slot
from cdc.postgres.connection import connect, query
from cdc.settings import LibraryOptions

SILENCE_S: Final = 10
"""As wal_sender_timeout on the replication connection: both ends of the hold go together."""
_SPEAK_EVERY_S: Final = 2.0
_CLOSE_S: Final = 1.0


class SlotLock:
    """The lock, taken or still wanted; connected from the beginning."""

    def __init__(self, source: LibraryOptions, name: str) -> None:
        self._name = name
        pinned = {"idle_session_timeout": f"{SILENCE_S}s"}
        self._connection = connect(source, purpose="lock", pinned=pinned)
        self._closing = threading.Event()
        self._failure: MillraceError | None = None
        self._thread = threading.Thread(target=self._speak, name="slot lock", daemon=True)

    def take(self) -> bool:
        """Try to take it; returns whether it is ours now."""
        if not slot.lock(self._connection, self._name):
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Raise SourceUnreachableError once the right is lost."""
        if self._failure is not None:
            raise SourceUnreachableError(
                f"the right to slot {self._name} was lost: {self._failure.what}",
                where=self._failure.where,
                remedy="nothing, if the daemon takes it again: it starts over",
            ) from self._failure

    def close(self) -> None:
        """Give it back."""
        self._closing.set()
        if not self._thread.is_alive():
            self._connection.close()
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd())) as own:
            own.shutdown(socket.SHUT_RDWR)  # wakes the thread, which may wait for an answer
        self._thread.join(_CLOSE_S)

    def _fd(self) -> int:
        return self._connection.fileno()

    def _speak(self) -> None:
        try:
            while not self._closing.wait(_SPEAK_EVERY_S):
                query(self._connection, "SELECT 1")
        except MillraceError as failure:
            self._failure = failure
        self._connection.close()
