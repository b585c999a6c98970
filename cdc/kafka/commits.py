"""Written records → visible ones: two writers in turn, or one writer at least once.

A transaction of the log can't begin before the brokers have finished the last one of the same
transactional.id. One of another id can. Two rules make the two writers one log. A transaction is
written only after the brokers have all records of its predecessor, so offsets have the stream's
order. It is committed only after its predecessor. So the committed ones are always the first ones,
without a gap, and a start that has fenced both finds nothing between them. One thread commits while
the loop reads. It is a daemon thread, so a broker that never answers can't keep the process from
ending.

At least once, events aren't part of a transaction: readers see them sooner, and after a crash some
of them twice. Progress and the other state records are still transactional, and fenced: a daemon
that was presumed dead can't restore old progress. They are written when every event before them is
durable. Events that such a daemon still sends can arrive late, behind newer ones; positions show
that.
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
    """The pair of writers. ``wake`` is readable when the commit begun has made progress."""

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
        """Saves reading the pipe, which costs a system call."""

    def __enter__(self) -> Self:
        self.wake, self._awaken = os.pipe()
        os.set_blocking(self.wake, False)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Let the thread end, which closes the pipe. A commit gets some time to end first."""
        self._commit_requests.put(None)
        self._thread.join(CLOSE_S)

    def write(self) -> bool:
        """Write the added records if it is the writer's turn. Return whether it wrote any."""
        if not (self.may_write and self.current.has_unwritten):
            return False
        self.current.write()
        return True

    def begin_commit(self) -> None:
        """Begin to commit the current writer's records. The other writer takes the next turn."""
        assert not self.is_committing, "the transaction before it isn't committed"  # noqa: S101
        assert not self.current.has_unwritten, "the commit would be too late"  # noqa: S101
        self.is_committing, self.may_write = True, False
        self._commit_requests.put(self.current)
        self.current, self._other = self._other, self.current

    def has_committed(self) -> bool:
        """Check the commit, and return whether it has ended. Raise its error."""
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
        """Wait until the commit has made progress, for a limited time."""
        poller = select.poll()  # select() has no descriptors above 1,023
        poller.register(self.wake, select.POLLIN)
        if poller.poll(IDLE_WAIT_S * 1_000):
            self._has_news = True

    def end_commit(self) -> None:
        """Wait until the commit has ended."""
        while not self.has_committed():
            self.wait()
            self.current.while_waiting()

    def _run_commits(self) -> None:
        while (writer := self._commit_requests.get()) is not None:
            try:
                if writer.flush():
                    self._notify(_FLUSHED)
                # The thread that waits for us keeps the connections alive.
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
        """The number of records written or added since the last commit."""
        return super().pending_records + len(self._pending_state)

    def open(self) -> None:
        """Fence off every older writer of this id."""
        self._state.open()
        self._state.while_waiting = do_nothing  # commits have their own thread
        self._opened = True

    def _write(self, records: list[RecordOrBatch]) -> None:
        """Send events, and keep state records for the commit."""
        events: list[RecordOrBatch] = []
        for item in records:
            is_state = isinstance(item, Record) and item.topic.startswith(OWN_TOPICS)
            (self._pending_state if is_state else events).append(item)
        super()._write(events)

    def commit(self, while_waiting: Callable[[], None] | None = None) -> None:
        """Wait until the brokers have all events, then write the state records."""
        self._deliver(while_waiting)
        state, self._pending_state = self._pending_state, []
        self._state.write(state)
        self._state.commit(while_waiting)
        self._begun = None
        self._written.clear()

    def close(self) -> None:
        """Close. The next start sends events again that weren't sent yet."""
        self._producer = None
        self._state.close()

    def _begin(self) -> None:
        self._begun = time.monotonic()

    def _wait(self, timeout_s: float, while_waiting: Callable[[], None] | None = None) -> None:
        """Also raise if an event was lost, as no abort undoes the others."""
        super()._wait(timeout_s, while_waiting)
        if self._lost is not None:
            raise log_error(self._lost, _DOING, self._where)

    def _on_refused(self, error: KafkaError | None, message: Message) -> None:
        super()._on_refused(error, message)
        if error is not None and not is_refusal(error):
            self._lost = error
