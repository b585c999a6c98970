"""Tables → their topics, from the log's state or, with a real Debezium, from the brokers."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cdc.errors import ConfigError, LogMissingError, MillraceError, TopicMismatchError
from cdc.kafka.admin import LogAdmin, do_nothing
from cdc.log.offsets import log_missing
from cdc.log.state import StateReader
from cdc.records.schema import TableSchema
from cdc.records.state import Progress, TableState
from cdc.records.topics import (
    dead_letter_topic,
    progress_topic,
    schema_topic,
    table_topic,
    tables_of,
)
from cdc.settings import Settings


class TableTopic(NamedTuple):
    """A topic to read, and the table of its changes. The dead letters' topic has none.

    ``begun_ms`` is when the table's snapshot began (ms since 1970; 0: unknown).
    """

    table: str
    name: str
    partitions: int
    id: str
    begun_ms: int = 0


class ReadTopics:
    """The topics of the tables that a reader wants. None: of all captured tables."""

    def __init__(
        self,
        settings: Settings,
        tables: Iterable[str] | None,
        while_waiting: Callable[[], None] = do_nothing,
    ) -> None:
        self._settings = settings
        self._prefix = settings.capture.topic_prefix
        self._wanted = None if tables is None else frozenset(tables)
        for table in sorted(self._wanted or ()):
            if not settings.capture.captures(table):
                raise ConfigError(
                    f"{table} isn't captured",
                    where="tables",
                    remedy="name a table as schema.table; table.include.list must capture it",
                )
        self._while_waiting = while_waiting
        self._states = StateReader(settings.kafka, while_waiting)
        self.connect()
        self._topics: dict[str, TableTopic] = {}
        self._begun_ms: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        """Topics of tables in the log that aren't wanted, and the tables."""
        self._schemas: dict[tuple[str, int], TableSchema] = {}

    def connect(self) -> None:
        """Connect with a new client, which hasn't abandoned any topic."""
        self._admin = LogAdmin(self._settings.kafka, self._while_waiting)

    @property
    def has_cut(self) -> bool:
        """Whether the log has a cut with whole transactions."""
        return self._settings.captures_itself

    def progress(self) -> Progress:
        """Return the log's progress. Raise LogMissingError if no daemon has written one."""
        slot = self._settings.capture.slot_name
        progress = self._states.last_progress(progress_topic(self._prefix), slot)
        if progress is None:
            raise log_missing(self._prefix, slot, self._admin.servers)
        return progress

    def read(self) -> dict[str, TableTopic]:
        """Return the current topics by name. Raise TopicMismatchError if one was replaced.

        Earlier topics stay, as a reader holds offsets of them. A real Debezium's topic may have
        more partitions now.
        """
        existing = self._admin.partitions()
        names = self._names(existing)
        for name, topic in self._topics.items():
            if topic.table and existing.get(name, 0) > topic.partitions:
                self._topics[name] = self._grown(topic, existing[name])
        new = [name for name in names if name not in self._topics]
        failed: dict[str, MillraceError] = {}
        self.require_same(self._admin.ids(self._topics, failed))
        for name, details in self._admin.details(new, failed).items():
            partitions = details.partitions if names[name] else 1  # the others have contents
            begun_ms = self._begun_ms.get(names[name], 0)
            topic = TableTopic(names[name], name, partitions, details.id, begun_ms)
            self._topics[name] = topic
        for error in failed.values():
            raise error
        return dict(self._topics)

    def _grown(self, topic: TableTopic, partitions: int) -> TableTopic:
        if self.has_cut:
            raise TopicMismatchError(
                f"the topic has {partitions} partitions, but had {topic.partitions} so far: keys"
                " move between partitions, and their changes lose their order",
                where=f"topic {topic.name}",
                remedy="begin a new log (millrace drop --yes --topics, then millrace run)",
            )
        return topic._replace(partitions=partitions)

    def require_same(self, ids: Mapping[str, str]) -> None:
        """Raise TopicMismatchError if a topic's id differs."""
        for name, id_ in ids.items():
            topic = self._topics.get(name)
            if topic is not None and topic.id != id_:
                of_table = "; a group can't continue in another topic: choose a new group"
                raise TopicMismatchError(
                    "the topic was created again since the last read",
                    where=f"topic {name}",
                    remedy=f"start again{of_table if topic.table else ''}",
                )

    def schema(self, table: str, version: int) -> TableSchema | None:
        """Return a version of a table's schema, if the log has it now."""
        if (table, version) not in self._schemas:
            for schema in self._states.read_all(schema_topic(self._prefix), TableSchema):
                self._schemas[str(schema.name), schema.version] = schema
        return self._schemas.get((table, version))

    def _names(self, existing: Mapping[str, int]) -> dict[str, str]:
        """Return topics of wanted tables → the tables, and the topic of dead letters."""
        if self.has_cut:
            states = self._states.read_all(table_topic(self._prefix), TableState)
            tables = {str(state.name): state.topic for state in states if state.is_in_log}
            self._begun_ms = {str(state.name): state.begun_ms for state in states}
        else:
            captured = tables_of(existing, self._prefix, self._settings.capture.captures)
            tables = {str(table): topic for table, topic in captured.items()}
            if not tables:
                raise LogMissingError(
                    f"topic.prefix {self._prefix} has no topic of a captured table",
                    where=f"bootstrap.servers {self._admin.servers}",
                    remedy="start Debezium first, or correct topic.prefix, table.include.list or"
                    " bootstrap.servers",
                )
        in_log = {topic: table for table, topic in tables.items() if topic in existing}
        wanted = frozenset(tables) if self._wanted is None else self._wanted
        self.left_out = {topic: table for topic, table in in_log.items() if table not in wanted}
        names = {topic: table for topic, table in in_log.items() if table in wanted}
        letters = dead_letter_topic(self._prefix)
        return names | ({letters: ""} if letters in existing and self.has_cut else {})
