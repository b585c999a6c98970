"""Two writers that take turns: one is written to while the other's commit comes to its end.

A transaction of the log can't begin before the brokers are done with the last one of the same
transactional.id; that of another one can. What makes the two one log: a transaction is written to
only after the brokers have all of its predecessor's records, so that offsets have the stream's
order, and committed only after its predecessor was. So those that are committed at any moment are
the first ones, without a gap, and a start that has fenced both finds nothing between them.

Commits are made by one thread, beside the reading. It is a daemon thread, so that a broker that
never answers can't keep the process from ending.
"""

import os
import select
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Self

from cdc.kafka.producer import CLOSE_S, LogWriter
from cdc.records.record import RecordOrBatch

IDLE_WAIT_S: Final = 0.2
_FLUSHED: Final = b"f"
_DONE: Final = b"d"


class AlternatingWriters:
    """The pair; ``wake`` is readable when a commit that was begun has come further."""

    def __init__(self, first: LogWriter, second: LogWriter) -> None:
        self.current = first
        """The writer whose turn it is."""
        self._other = second
        self._ahead: list[RecordOrBatch] = []
        self._ahead_records = self._ahead_bytes = 0
        self._commit_requests: SimpleQueue[LogWriter | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_commits, name="commits", daemon=True)
        self.is_committing = False
        self.may_write = True
        """Whether the brokers have all records of the commit that was begun last."""
        self.wake = self._awaken = -1
        self._has_news = False
        """Spares reading the pipe, which costs a system call."""

    def __enter__(self) -> Self:
        self.wake, self._awaken = os.pipe()
        os.set_blocking(self.wake, False)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the thread end, which closes the pipe; a commit has a while to end before that."""
        self._commit_requests.put(None)
        self._thread.join(CLOSE_S)

    @property
    def pending_records(self) -> int:
        """How many records the next commit has so far, whether they may be written yet or not."""
        return self.current.pending_records + self._ahead_records

    @property
    def pending_bytes(self) -> int:
        """Bytes of their keys and values."""
        return self.current.pending_bytes + self._ahead_bytes

    def add(self, records: Iterable[RecordOrBatch], count: int, size: int) -> None:
        """Take records to write; ``count`` and ``size`` (bytes) are those that limits count."""
        self._ahead += records
        self._ahead_records += count
        self._ahead_bytes += size

    def write(self) -> bool:
        """Write what was added, once the turn has come; returns whether anything was written."""
        if not (self._ahead and self.may_write):
            return False
        records, self._ahead = self._ahead, []
        self._ahead_records = self._ahead_bytes = 0
        self.current.write(records)
        return True

    def begin_commit(self) -> None:
        """Begin to commit what the current writer has; the next turn is the other's."""
        assert not self.is_committing, "its predecessor isn't committed"  # noqa: S101
        self.is_committing, self.may_write = True, False
        self._commit_requests.put(self.current)
        self.current, self._other = self._other, self.current

    def has_committed(self) -> bool:
        """Look how far the commit is; whether it has ended since. Raises what it has raised."""
        if not self._has_news:
            return False
        self._has_news = False
        try:
            news = os.read(self.wake, 2)
        except BlockingIOError:
            return False
        self.may_write = True
        if _DONE not in news:
            return False
        if self._failure is not None:
            raise self._failure
        self.is_committing = False
        return True

    def wait(self) -> None:
        """Wait until the commit has come further, a while at most."""
        poller = select.poll()  # select() knows no descriptors above 1,023
        poller.register(self.wake, select.POLLIN)
        if poller.poll(IDLE_WAIT_S * 1_000):
            self._has_news = True

    def end_commit(self) -> None:
        """Wait until the commit that was begun has ended."""
        while not self.has_committed():
            self.wait()
            self.current.while_waiting()

    def _run_commits(self) -> None:
        while (writer := self._commit_requests.get()) is not None:
            try:
                if writer.flush():
                    self._notify(_FLUSHED)
                writer.commit(while_waiting=_nothing)
            except BaseException as failure:  # noqa: BLE001 (raised where the commit is waited for)
                self._failure = failure
            self._notify(_DONE)
        os.close(self._awaken)
        os.close(self.wake)

    def _notify(self, news: bytes) -> None:
        os.write(self._awaken, news)
        self._has_news = True


def _nothing() -> None:
    """Whoever waits for us keeps the connections alive."""
