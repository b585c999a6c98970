"""When what was written becomes visible: two writers that take turns, or a writer at least once.

A transaction of the log can't begin before the brokers are done with the last one of the same
transactional.id; that of another one can. What makes the two one log: a transaction is written to
only after the brokers have all of its predecessor's records, so that offsets have the stream's
order, and committed only after its predecessor was. So those that are committed at any moment are
the first ones, without a gap, and a start that has fenced both finds nothing between them.
Commits are made by one thread, beside the reading. It is a daemon thread, so that a broker that
never answers can't keep the process from ending.

At least once, events aren't part of a transaction: readers see them sooner, and after a crash some
of them a second time. Progress and the other state records still are: written when every event
before them is durable, and fenced, so that a daemon that was taken for dead can't bring an old one
back. What it still had to send may come late, behind newer events; positions tell.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Final, Self

from confluent_kafka import KafkaError, Message

from cdc.kafka.admin import do_nothing
from cdc.kafka.errors import is_refusal, log_error
from cdc.kafka.producer import CLOSE_S, LogWriter, Suspects
from cdc.records.record import Record, RecordOrBatch
from cdc.records.topics import OWN_TOPICS

IDLE_WAIT_S: Final = 0.2
_FLUSHED: Final = b"f"
_DONE: Final = b"d"


_DOING: Final = "sending to the log"


class AlternatingWriters:
    """The pair; ``wake`` is readable when a commit that was begun has come further."""

    def __init__(self, first: LogWriter, second: LogWriter) -> None:
        self.current = first
        """The writer whose turn it is."""
        self._other = second
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

    def __exit__(self, *failure: object) -> None:
        """Let the thread end, which closes the pipe; a commit has a while to end before that."""
        self._commit_requests.put(None)
        self._thread.join(CLOSE_S)

    def write(self) -> bool:
        """Write what was added, once the turn has come; returns whether anything was written."""
        if not (self.may_write and self.current.has_unwritten):
            return False
        self.current.write()
        return True

    def begin_commit(self) -> None:
        """Begin to commit what the current writer has written; the next turn is the other's."""
        assert not self.is_committing, "the transaction before it isn't committed"  # noqa: S101
        assert not self.current.has_unwritten, "the commit would be too late"  # noqa: S101
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
                # Whoever waits for us keeps the connections alive.
                writer.commit(while_waiting=do_nothing)
            except BaseException as failure:  # noqa: BLE001 (raised where the commit is waited for)
                self._failure = failure
            self._notify(_DONE)
        os.close(self._awaken)
        os.close(self.wake)

    def _notify(self, news: bytes) -> None:
        os.write(self._awaken, news)
        self._has_news = True


class AtLeastOnceWriter(LogWriter):
    """A LogWriter whose events are visible before they are committed."""

    def __init__(
        self,
        kafka_options: Mapping[str, str],
        transactional_id: str,
        while_waiting: Callable[[], None],
        suspects: Suspects | None = None,
    ) -> None:
        super().__init__(kafka_options, None, while_waiting, suspects)
        self._state = LogWriter(kafka_options, transactional_id, while_waiting)
        self._pending_state: list[RecordOrBatch] = []
        self._lost: KafkaError | None = None

    @property
    def pending_records(self) -> int:
        """How many records were written or added since the last commit."""
        return super().pending_records + len(self._pending_state)

    def open(self) -> None:
        """Fence off every older writer of this id."""
        self._state.open()
        self._state.while_waiting = do_nothing  # commits have a thread of their own
        self._opened = True

    def _write(self, records: list[RecordOrBatch]) -> None:
        """Send events; keep state records for the commit."""
        events: list[RecordOrBatch] = []
        for item in records:
            is_state = isinstance(item, Record) and item.topic.startswith(OWN_TOPICS)
            (self._pending_state if is_state else events).append(item)
        super()._write(events)

    def commit(self, while_waiting: Callable[[], None] | None = None) -> None:
        """Wait until the brokers have all events, then write what says so."""
        self._deliver(while_waiting)
        state, self._pending_state = self._pending_state, []
        self._state.write(state)
        self._state.commit(while_waiting)
        self._begun = None
        self._written.clear()

    def close(self) -> None:
        """Let go; events that weren't sent yet come again with the next start."""
        self._producer = None
        self._state.close()

    def _begin(self) -> None:
        self._begun = time.monotonic()

    def _wait(self, timeout_s: float, while_waiting: Callable[[], None] | None = None) -> None:
        """Raise also if an event was lost: nothing else undoes what was written."""
        super()._wait(timeout_s, while_waiting)
        if self._lost is not None:
            raise log_error(self._lost, _DOING, self._where)

    def _on_refused(self, error: KafkaError | None, message: Message) -> None:
        super()._on_refused(error, message)
        if error is not None and not is_refusal(error):
            self._lost = error
