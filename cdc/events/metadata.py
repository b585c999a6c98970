"""Stream events about no table → records: transaction markers, logical messages, heartbeats.

Like a table's, they are Connect records, for the same transforms and converter. Names, members and
schemas are Debezium's. A transaction's id is ``<xid>:<commit LSN>`` in its markers and in all its
events. Debezium has each record's own LSN after the colon (``lossless`` False), so only the part
before it groups them.
https://debezium.io/documentation/reference/3.6/connectors/postgresql.html#postgresql-transaction-metadata
"""

import time
from collections.abc import Callable
from typing import Any, Final, Literal

from cdc.errors import CorruptMessageError
from cdc.events import schemas
from cdc.events.reference import LogContext, TransactionBlocks, source
from cdc.events.rules import EventRules
from cdc.records.connect import SourceRecord
from cdc.records.position import Lsn, Transaction
from cdc.records.schema import TableName
from cdc.records.topics import message_topic
from cdc.wal.messages import LogicalMessage

MESSAGES: Final = "message"
"""The name under which a transaction's last marker counts logical messages."""
SOURCE_HEARTBEAT: Final = "millrace.heartbeat"
"""Prefix of the messages that the daemon writes into the source's WAL. They make no events."""
_JAVA_OBJECT: Final = (
    "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@1"
)
"""Debezium's name for messages: a Java object's, whose number differs in each run."""


class TransactionMetadata(TransactionBlocks):
    """provide.transaction.metadata: counts a transaction's events between its two markers.

    One instance serves all tables of a stream. ``begin`` starts the count, and each event then
    takes its block.
    """

    def __init__(self, rules: EventRules, topic: str) -> None:
        """``topic`` comes from transaction_topic()."""
        self._own_lsn = not rules.lossless
        self._topic = topic
        self._counts: dict[str, int] = {}

    def begin(self, transaction: Transaction, lsn: Lsn) -> SourceRecord:
        """Return the first marker. ``lsn`` is the Begin message's place in the WAL."""
        self._counts = {}
        return self._marker("BEGIN", transaction, lsn, None, None)

    def block(self, collection: str, transaction: Transaction, lsn: Lsn) -> dict[str, Any]:
        """Count an event of a table (``schema.table``) or of the messages, and return its block."""
        self._counts[collection] = self._counts.get(collection, 0) + 1
        return {
            "id": self._id(transaction, lsn),
            "total_order": sum(self._counts.values()),
            "data_collection_order": self._counts[collection],
        }

    def end(self, transaction: Transaction, lsn: Lsn) -> SourceRecord:
        """Return the last marker, with all counts.

        ``lsn`` is the Commit message's place in the WAL.
        """
        collections = [
            {"data_collection": name, "event_count": count} for name, count in self._counts.items()
        ]
        total = sum(self._counts.values())
        return self._marker("END", transaction, lsn, total, collections)

    def _marker(
        self,
        status: Literal["BEGIN", "END"],
        transaction: Transaction,
        lsn: Lsn,
        count: int | None,
        collections: list[dict[str, Any]] | None,
    ) -> SourceRecord:
        marked = self._id(transaction, lsn)
        value = {
            "status": status,
            "id": marked,
            "event_count": count,
            "data_collections": collections,
            "ts_ms": transaction.commit_ts_us // 1_000,
        }
        key, key_schema, schema = {"id": marked}, schemas.TRANSACTION_KEY, schemas.TRANSACTION_VALUE
        return SourceRecord(self._topic, key, key_schema, value, schema)

    def _id(self, transaction: Transaction, lsn: Lsn) -> str:
        return f"{transaction.xid}:{lsn if self._own_lsn else transaction.commit_lsn:d}"


class MessageEvents:
    """Converts messages from pg_logical_emit_message() to events (op ``m``)."""

    def __init__(
        self,
        rules: EventRules,
        log: LogContext,
        *,
        blocks: TransactionBlocks | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._rules = rules
        self._log = log
        self._blocks = blocks
        self._clock_ns = clock_ns
        self._collection = MESSAGES if rules.lossless else _JAVA_OBJECT
        self.topic = message_topic(log.prefix)

    def wants(self, prefix: str) -> bool:
        """Whether messages with the prefix become events."""
        return self._rules.wants_message(prefix)

    def record(
        self, message: LogicalMessage, latest: Transaction | None, lsn: Lsn
    ) -> SourceRecord | None:
        """Return the event of a message, or None if it isn't wanted.

        ``latest`` is the open transaction, or the last one if none is open. A message that isn't
        transactional has no commit time. Its time is now; in Debezium, the last commit.
        """
        inside = latest if message.transactional else None
        if message.transactional and inside is None:
            raise CorruptMessageError("a message outside of a transaction", where=f"LSN {lsn}")
        if not self.wants(message.prefix):
            return None
        transaction_block = None
        if inside is not None and self._blocks is not None:
            transaction_block = self._blocks.block(self._collection, inside, lsn)
        clock = self._clock_ns()
        happened = latest if inside is not None or not self._rules.lossless else None
        value = {
            "op": "m",
            "ts_ms": clock // 1_000_000,
            "source": source(
                self._log,
                TableName("", ""),
                lsn,
                happened.commit_ts_us if happened else clock // 1_000,
                snapshot="false" if self._rules.lossless else None,
                xid=inside.xid if inside else None,
                previous=_commit_before(latest, inside),
                origin=inside.origin if inside else None,
            ),
            "transaction": transaction_block,
            "message": {"prefix": message.prefix, "content": message.content},
        }
        return SourceRecord(
            self.topic,
            {"prefix": message.prefix},
            schemas.MESSAGE_KEY,
            value,
            schemas.MESSAGE_VALUE,
        )


def heartbeat(prefix: str, topic: str, clock_ns: Callable[[], int] = time.time_ns) -> SourceRecord:
    """Return a heartbeat for heartbeat.interval.ms. ``topic`` comes from heartbeat_topic()."""
    return SourceRecord(
        topic,
        {"serverName": prefix},
        schemas.HEARTBEAT_KEY,
        {"ts_ms": clock_ns() // 1_000_000},
        schemas.HEARTBEAT_VALUE,
    )


def _commit_before(latest: Transaction | None, inside: Transaction | None) -> Lsn | None:
    """Return the commit before the message: before its own transaction, or the last one."""
    if inside is not None:
        return inside.previous_commit_lsn
    return latest.commit_lsn if latest else None
