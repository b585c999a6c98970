"""Schemas of tables → their encoders, as settings and states want them; asking changes nothing."""

import uuid
from collections.abc import Mapping

from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder
from cdc.events.metadata import MessageEvents, TransactionMetadata
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import TableState
from cdc.settings import CaptureSettings


class EncoderRegistry:
    """What makes records of rows, of transactions and of logical messages."""

    def __init__(
        self,
        settings: CaptureSettings,
        database: str,
        states: Mapping[TableName, TableState],
        rules: EventRules,
        pipeline: RecordPipeline,
        dead_letters: DeadLetters | None,
    ) -> None:
        self._prefix = settings.topic_prefix
        self._database = database
        self._states = states
        self._rules = rules
        self._log = LogContext(self._prefix, database, 1, compacted=False, run_id=str(uuid.uuid4()))
        self.pipeline = pipeline
        self.dead_letters = dead_letters
        self.transactions = (
            TransactionMetadata(rules, settings.transaction_topic)
            if rules.events.transaction_metadata
            else None
        )
        self.messages = MessageEvents(rules, self._log, blocks=self.transactions)

    def encoder(self, schema: TableSchema) -> Encoder:
        """The encoder of a table, in this version of its schema."""
        state = self._states[schema.name]
        compacted = state.cleanup == "compact"
        log = self._log._replace(partitions=state.partitions, compacted=compacted)
        # A row that an update moves to where all is read is in the log by its event alone.
        rules = self._rules.with_all_updates if state.is_being_completed else self._rules
        blocks, reselects = self.transactions, self._reselects(state)
        if self.dead_letters is not None and self.dead_letters.covers(schema):
            return GuardedEncoder(
                self.dead_letters,
                schema,
                rules,
                log,
                self.pipeline,
                blocks=blocks,
                reselects=reselects,
            )
        return Encoder(schema, rules, log, self.pipeline, blocks=blocks, reselects=reselects)

    def _reselects(self, state: TableState) -> bool:
        """Whether unchanged values are read again: a compacted topic would forget them."""
        if state.requests:
            return True  # an update may move a row to where no chunk is read any more
        return state.cleanup == "compact" and self._rules.events.reselect
