"""A writer's commits, made beside the reading: begun here, waited for by whoever reads.

One thread makes one commit at a time. In between nobody else may use the writer: what comes
meanwhile is kept by the caller. It is a daemon thread, so that a broker that never answers can't
keep the process from ending.
"""

import os
import select
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from cdc.kafka.producer import CLOSE_S, LogWriter


class BackgroundCommits:
    """Commits of one writer; ``wake`` is readable when the one that was begun is done."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="commits", daemon=True)
        self.wake = self._awaken = -1

    def __enter__(self) -> Self:
        self.wake, self._awaken = os.pipe()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the thread end, which closes the pipe; a commit has a while to end before that."""
        self._asked.put(False)
        self._thread.join(CLOSE_S)

    def begin(self) -> None:
        """Begin to commit what the writer has."""
        self._done.clear()
        self._asked.put(True)

    def is_done(self) -> bool:
        """Whether the commit that was begun is done; raises what it has raised."""
        if not self._done.is_set():
            return False
        os.read(self.wake, 1)
        if self._failure is not None:
            raise self._failure
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, or the time is over."""
        poller = select.poll()  # select() knows no descriptors above 1,023
        poller.register(self.wake, select.POLLIN)
        poller.poll(timeout_s * 1_000)

    def _work(self) -> None:
        while self._asked.get():
            try:
                self._writer.commit(while_waiting=_nothing)
            except BaseException as failure:  # noqa: BLE001 (raised where the commit is waited for)
                self._failure = failure
            self._done.set()
            os.write(self._awaken, b"!")
        os.close(self._awaken)
        os.close(self.wake)


def _nothing() -> None:
    """Whoever waits for us keeps the connections alive."""
