"""Records → the log at least once: events as they come, state when the brokers have all of them.

Events aren't part of a transaction, so readers see them sooner, and after a crash some of them a
second time. Progress and the other state records still are: written when every event before them
is durable, and fenced, so that a daemon that was taken for dead can't bring an old one back. What
it still had to send may come late, behind newer events; positions tell.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, Message

from cdc.kafka.admin import do_nothing
from cdc.kafka.errors import is_refusal, log_error
from cdc.kafka.producer import LogWriter, Suspects
from cdc.records.record import Record, RecordOrBatch
from cdc.records.topics import OWN_TOPICS

_DOING: Final = "sending to the log"


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
        """How many records were written since the last commit."""
        return super().pending_records + len(self._pending_state)

    def open(self) -> None:
        """Fence off every older writer of this id."""
        self._state.open()
        self._state.while_waiting = do_nothing  # commits have a thread of their own
        self._opened = True

    def write(self, records: Iterable[RecordOrBatch]) -> None:
        """Send events; keep state records for the commit."""
        events: list[RecordOrBatch] = []
        for item in records:
            is_state = isinstance(item, Record) and item.topic.startswith(OWN_TOPICS)
            (self._pending_state if is_state else events).append(item)
        super().write(events)

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
