"""What the log has of tables → all that is known of them, by what it is asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from cdc.convert.pipeline import RecordPipeline
from cdc.dead_letters.guard import DeadLetters
from cdc.events.rules import EventRules
from cdc.records.schema import TableSchema
from cdc.records.state import TableState
from cdc.settings import Settings
from cdc.tables.joining import Joining, Lookups
from cdc.tables.notifications import Notifications
from cdc.tables.reads import TableReads
from cdc.tables.registry import EncoderRegistry
from cdc.tables.schema_history import SchemaVersions
from cdc.tables.states import TableStates


@dataclass(frozen=True, slots=True)
class Tables:
    """The captured tables as the log knows them.

    What is new (a schema version, a table's state) is handed out as a state record, to be written
    in the same Kafka transaction as the rows that need it.
    """

    states: TableStates
    reads: TableReads
    schemas: SchemaVersions
    encoders: EncoderRegistry
    joining: Joining
    notifications: Notifications

    @classmethod
    def restored(
        cls,
        settings: Settings,
        database: str,
        states: Iterable[TableState],
        schemas: Iterable[TableSchema],
        rules: EventRules,
        pipeline: RecordPipeline,
        lookups: Lookups,
        dead_letters: DeadLetters | None = None,
    ) -> Self:
        """The tables as these records have them."""
        capture = settings.capture
        all_states = TableStates(settings, states, rules)
        reads = TableReads(all_states)
        versions = SchemaVersions(capture, schemas, rules, reads, lookups.filled)
        encoders = EncoderRegistry(capture, database, all_states, rules, pipeline, dead_letters)
        notifications = Notifications(capture, pipeline)
        joining = Joining(capture, all_states, reads, versions, encoders, notifications, lookups)
        return cls(all_states, reads, versions, encoders, joining, notifications)
