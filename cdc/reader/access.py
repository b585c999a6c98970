"""A configuration → everything that both kinds of readers need: topics, events, start positions."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from confluent_kafka import Message

from cdc.log.offsets import LogReader, Offsets
from cdc.reader.envelope import Envelopes, place_of
from cdc.reader.group import ReaderGroup
from cdc.reader.references import References
from cdc.reader.start import Start, StartFinder, parse_start
from cdc.reader.stopping import Stopping
from cdc.reader.topics import ReadTopics, TableTopic
from cdc.records.dead_letters import DeadLetter
from cdc.records.position import FIRST_EPOCH, Position
from cdc.records.state import parse_state
from cdc.settings import Settings, load

Passed = Callable[[DeadLetter], None]
log = logging.getLogger("millrace.reader")


class ReaderStoppedError(Exception):
    """The reader must end while it waits for brokers."""


class LogAccess:
    """Everything that both kinds of readers need: topics, events, start positions."""

    def __init__(
        self,
        config: str | Path | Settings,
        tables: Iterable[str] | None,
        stop: threading.Event | None,
        on_dead_letter: Passed | None,
    ) -> None:
        self.settings = config if isinstance(config, Settings) else load(Path(config))
        self.stopping = Stopping(stop)
        self.topics = ReadTopics(self.settings, tables, self.end_when_stopped)
        self.finder = StartFinder(self.settings, self.end_when_stopped)
        self.envelopes = self._envelopes()
        self._on_dead_letter = on_dead_letter or _log_dead_letter
        self._tables = None if tables is None else frozenset(tables)

    def connect(self) -> None:
        """Connect again to brokers that were unavailable for too long."""
        self.topics.connect()
        self.finder = StartFinder(self.settings, self.end_when_stopped)

    def group(self, name: str | None) -> ReaderGroup | None:
        """Return a group's position, for a reader that belongs to one."""
        return None if name is None else ReaderGroup(self.settings, name, self.end_when_stopped)

    def log_reader(self) -> LogReader:
        """Return the reader of the log's state for successive rounds."""
        return LogReader(self.settings.kafka, self.end_when_stopped)

    def first_offsets(self, start: Start, topics: Mapping[str, TableTopic]) -> Offsets:
        """Return where a reader begins in topics that it hasn't read yet."""
        epoch = self.topics.progress().position.epoch if self.topics.has_cut else FIRST_EPOCH
        commit = self._commit_times(topics)
        return self.finder.offsets(parse_start(start), topics, commit, epoch)

    def first_cut(self, start: Start, topics: Mapping[str, TableTopic]) -> tuple[Position, Offsets]:
        """Return the cut up to which transactions are left out, and the offsets to begin at."""
        commit = self._commit_times(topics)
        return self.finder.cut(parse_start(start), topics, commit, self.topics.progress())

    def _commit_times(
        self, topics: Mapping[str, TableTopic]
    ) -> Callable[[Message], datetime | None]:
        envelopes = self._envelopes()

        def commit(message: Message) -> datetime | None:
            event = envelopes.event(message, topics[place_of(message)[0]].table)
            return None if event is None else event.commit_time

        return commit

    def dead_letter(self, message: Message) -> DeadLetter | None:
        """Return a dead letter of the tables read. None: it is settled, or of another table."""
        if (value := message.value()) is None:
            return None
        dead_letter = parse_state(DeadLetter, value, place_of(message)[0])
        is_read = self._tables is None or dead_letter.table in self._tables
        return dead_letter if is_read and dead_letter.outcome is None else None

    def tell(self, dead_letter: DeadLetter | None) -> None:
        """Call back for a dead letter that the reader has passed."""
        if dead_letter is not None:
            self._on_dead_letter(dead_letter)

    def _envelopes(self) -> Envelopes:
        return Envelopes(
            self.settings,
            References(self.settings, self.topics, self.end_when_stopped, log.warning),
        )

    def end_when_stopped(self) -> None:
        """Raise if the reader must end, during a wait or a long read."""
        if self.stopping.is_set:
            raise ReaderStoppedError


def _log_dead_letter(dead_letter: DeadLetter) -> None:
    log.warning(
        "a change of %s couldn't be written to the log: %s (dead letter %s)",
        dead_letter.table,
        dead_letter.reason,
        dead_letter.id,
    )
