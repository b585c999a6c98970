"""Change → Connect records by Debezium's rules: the readable definition of an event.

If a row's key changes, a delete and a tombstone with the old key precede a create with the new one.
A tombstone follows a delete. Deletes have ``before``; updates have it if the replica identity is
full. A column without a value (an unchanged TOASTed one, or all but the key in a deleted row) is
missing; a NULL is present. TRUNCATE goes to every partition of a compacted topic, and so does our
event for the end of a partition's rows. The extension writes the same bytes: tests/properties
compares both.
https://debezium.io/documentation/reference/3.6/connectors/postgresql.html#postgresql-events
"""

import importlib.metadata
import json
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

from cdc.errors import BrokenRowError
from cdc.events import schemas
from cdc.events.changes import ABSENT, Change, Operation, Row, filled, no_key
from cdc.events.fields import EventField, EventPlan, plan
from cdc.events.rules import EventRules
from cdc.records.bounds import ENDED_KEY, EndedRows
from cdc.records.connect import Header, Schema, SourceRecord
from cdc.records.position import Lsn, Origin, Transaction
from cdc.records.record import to_json
from cdc.records.schema import TableName, TableSchema


def _version() -> str:
    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "0"


VERSION: Final = _version()
"""``source.version``: Millrace's own."""
CONNECTOR: Final = "postgresql"
NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
INCREMENTAL: Final = "incremental"
_TASK: Final = "0"

Image = dict[str, Any]
ValueOf = Callable[[EventField, Row], Any]
"""A field and a row → the event's value. ABSENT: none."""


class LogContext(NamedTuple):
    """The part of an event about its log. ``run_id`` names this run of the daemon."""

    prefix: str
    database: str
    partitions: int
    compacted: bool
    run_id: str = ""


class TransactionBlocks(Protocol):
    """A counter of a transaction's events (cdc.events.metadata)."""

    def block(self, collection: str, transaction: Transaction, lsn: Lsn) -> Image:
        """Return the transaction block of a data collection's next event."""


class TableEvents:
    """Converts the changes of one table, in one version of its schema, to Connect records.

    Pass ``blocks`` if events must show their place in their transaction. Raises BrokenRowError for
    a malformed text, TableRefusedError for a missing old key.
    """

    def __init__(
        self,
        schema: TableSchema,
        rules: EventRules,
        log: LogContext,
        *,
        blocks: TransactionBlocks | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._schema = schema
        self.rules = rules
        self.log = log
        self._blocks = blocks
        self._clock_ns = clock_ns
        self.plan: EventPlan = plan(schema, rules)
        self.context = context_headers(log) if rules.events.context_headers else ()
        """Headers of every event."""
        always, compacted = rules.events.tombstones, log.compacted
        self.tombstones = compacted if always is None else always
        """Whether a tombstone follows a delete."""

    @property
    def columns(self) -> frozenset[int]:
        """Indexes of the columns that events have."""
        return frozenset(field.column for field in self.plan.row)

    def records(self, change: Change) -> list[SourceRecord]:
        """Return the records of one change, in order."""
        if change.operation is Operation.TRUNCATE:
            return self._truncated(change)
        if change.ended is not None:
            return self._ended(change, change.ended)
        old, new = change.before, change.after
        self._check(old)
        self._check(new)
        if old is not None and new is not None:
            new = filled(new, old, old_is_key=change.before_is_key)
        old_key, new_key = self._old_key(change), self._new_key(change.operation, new)
        before = None if old is None else _image(self.plan.row, old, _of_old_row(change))
        fields = self.plan.read_row if change.operation is Operation.READ else self.plan.row
        after = None if new is None else _image(fields, new)
        if change.operation is Operation.DELETE:
            return self._deleted(change, old_key, before)
        moved = old is not None and bool(self.plan.key) and repr(old_key) != repr(new_key)
        if self._says_nothing(change, before, after, moved=moved):
            return []
        if not moved:
            has_before = not (change.before_is_key and self.rules.lossless)
            shown = before if has_before else None
            return self._events(change, change.operation, new_key, shown, after)
        return [
            *self._deleted(change, old_key, before, self._key_header(NEW_KEY, new_key)),
            *self._events(
                change, Operation.CREATE, new_key, None, after, self._key_header(OLD_KEY, old_key)
            ),
        ]

    def _check(self, row: Row | None) -> None:
        columns = len(self._schema.columns)
        if row is not None and len(row) != columns:
            raise BrokenRowError(
                f"a row has {len(row)} columns; its relation has {columns}",
                where=f"table {self._schema.name}",
            )

    def _says_nothing(
        self, change: Change, before: Image | None, after: Image | None, *, moved: bool
    ) -> bool:
        """skip.messages.without.change. If lossless, a move to another key is a change."""
        if change.operation is not Operation.UPDATE or before is None:
            return False
        if not self.rules.events.skip_without_change or (moved and self.rules.lossless):
            return False
        return repr(before) == repr(after)

    def _truncated(self, change: Change) -> list[SourceRecord]:
        """Return the records that remove all rows: one per partition, as each has some keys.

        A compacted topic takes no record without a key. A retained one gets Debezium's single event
        under Debezium's rules.
        """
        made = self._events(change, Operation.TRUNCATE, None, None, None)
        if not self.log.compacted and not self.rules.lossless:
            return made
        return self._to_each_partition(made, {"__millrace_truncate": True}, schemas.TRUNCATE_KEY)

    def _ended(self, change: Change, ended: EndedRows) -> list[SourceRecord]:
        """Return the records that remove rows within bounds: one per partition, keyed by bounds."""
        made = [
            event._replace(
                value={**event.value, "ended": ended.model_dump_json()},
                value_schema=self._ended_envelope,
            )
            for event in self._events(change, Operation.ENDED, None, None, None)
        ]
        bounds = to_json([bound.model_dump(mode="json") for bound in ended.bounds]).decode()
        return self._to_each_partition(made, {ENDED_KEY: bounds}, schemas.ENDED_ROWS_KEY)

    @cached_property
    def _ended_envelope(self) -> Schema:
        return schemas.ended_envelope(self.plan.envelope_schema)

    def _to_each_partition(
        self, made: list[SourceRecord], key: Image, key_schema: Schema
    ) -> list[SourceRecord]:
        """Copy the records to each partition, with a reserved key if the topic needs one."""
        keyed = (key, key_schema) if self.log.compacted else (None, None)
        return [
            event._replace(key=keyed[0], key_schema=keyed[1], partition=partition)
            for event in made
            for partition in range(self.log.partitions)
        ]

    def _deleted(
        self,
        change: Change,
        key: Image | None,
        before: Image | None,
        headers: tuple[Header, ...] = (),
    ) -> list[SourceRecord]:
        made = self._events(change, Operation.DELETE, key, before, None, headers)
        if made and self.tombstones:
            made.append(made[0]._replace(value=None, value_schema=None))
        return made

    def _events(
        self,
        change: Change,
        operation: Operation,
        key: Image | None,
        before: Image | None,
        after: Image | None,
        headers: tuple[Header, ...] = (),
    ) -> list[SourceRecord]:
        """Return one event, or none if the operation is skipped."""
        if operation.value in self.rules.events.skipped:
            return []
        transaction_block = None
        if self._blocks is not None and change.transaction is not None:
            transaction_block = self._blocks.block(
                str(self._schema.name), change.transaction, change.lsn
            )
        clock = self._clock_ns()
        value = {
            "before": before,
            "after": after,
            "source": self.source(change),
            "transaction": transaction_block,
            "op": operation.value,
            "ts_ms": clock // 1_000_000,
            "ts_us": clock // 1_000,
            "ts_ns": clock,
        }
        schema = self.plan.key_schema if key is not None else None
        return [
            SourceRecord(
                self._schema.topic,
                key,
                schema,
                value,
                self.plan.envelope_schema,
                (*self.context, *headers),
            )
        ]

    def source(self, change: Change) -> Image:
        """Return the source block of a change's events."""
        transaction = change.transaction
        # Debezium writes null while streaming, and the schema's default is ``false``.
        streaming = "false" if self.rules.lossless else None
        source_block = source(
            self.log,
            self._schema.name,
            change.lsn,
            change.ts_us,
            snapshot=streaming if transaction else change.read.marker,
            xid=transaction.xid if transaction else change.read.xid,
            previous=transaction.previous_commit_lsn if transaction else None,
            origin=transaction.origin if transaction else None,
        )
        if transaction is None and change.read.marker == INCREMENTAL:
            source_block["lsn"] = None
        return source_block

    def _new_key(self, operation: Operation, row: Row | None) -> Image | None:
        if row is None or not self.plan.key:
            return None
        fields = self.plan.read_key if operation is Operation.READ else self.plan.key
        key = _image(fields, row)
        if len(key) < len(fields):
            raise BrokenRowError("a row without its key", where=f"table {self._schema.name}")
        return key

    def _old_key(self, change: Change) -> Image | None:
        old = change.before
        if old is None or not self.plan.key:
            return None
        key = _image(self.plan.key, old, _of_old_row(change))
        if len(key) < len(self.plan.key):
            raise no_key(self._schema)
        return key

    def _key_header(self, name: str, key: Image | None) -> tuple[Header, ...]:
        if not self.rules.events.key_change_headers or self.plan.key_schema is None:
            return ()
        return (Header(name, key, self.plan.key_schema),)


def source(
    log: LogContext,
    table: TableName,
    lsn: Lsn,
    ts_us: int,
    *,
    snapshot: str | None,
    xid: int | None,
    previous: Lsn | None,
    origin: Origin | None = None,
) -> Image:
    """Return the source block. ``previous`` is the commit LSN of the transaction before."""
    sequence = [None if previous is None else f"{previous:d}", f"{lsn:d}"]
    return {
        "version": VERSION,
        "connector": CONNECTOR,
        "name": log.prefix,
        "ts_ms": ts_us // 1_000,
        "snapshot": snapshot,
        "db": log.database,
        "sequence": json.dumps(sequence, separators=(",", ":")),
        "ts_us": ts_us,
        "ts_ns": ts_us * 1_000,
        "schema": table.namespace,
        "table": table.name,
        "txId": xid,
        "lsn": int(lsn),
        "xmin": None,
        "origin": origin.name if origin else None,
        "origin_lsn": int(origin.commit_lsn) if origin else None,
    }


def context_headers(log: LogContext) -> tuple[Header, ...]:
    """extended.headers.enabled: return the headers that name the connector."""
    context = {
        "connectorLogicalName": log.prefix,
        "taskId": _TASK,
        "connectorName": CONNECTOR,
        "runId": log.run_id,
    }
    return tuple(
        Header(f"__debezium.context.{name}", value, schemas.STRING)
        for name, value in context.items()
        if value
    )


def _image(fields: tuple[EventField, ...], row: Row, of: ValueOf = EventField.of) -> Image:
    """Return names and values, without absent ones."""
    return {field.name: value for field in fields if (value := of(field, row)) is not ABSENT}


def _of_old_row(change: Change) -> ValueOf:
    return EventField.of_old_key if change.before_is_key else EventField.of
