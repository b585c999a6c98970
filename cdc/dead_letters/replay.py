"""Orders about dead letters → the records that carry them out, at the order's position.

An order is a transactional logical message at the source: so it has a position, is followed once,
and by the only one who writes to the log. A row with a key is sent as it is now (what changes it
later follows in the stream), or as deleted if it is gone: so nothing newer is undone, in the log
nor in what is derived from it. One without a key is an event of its own, and is sent as it was.
"""

import shlex
import time
from collections.abc import Mapping
from typing import Final, Protocol

import psycopg
import structlog
from pydantic import ValidationError

from cdc.convert.pipeline import Encoder
from cdc.dead_letters.guard import Refusals
from cdc.dead_letters.row_bytes import row_of
from cdc.errors import (
    ROW_ERRORS,
    LogAccessError,
    LogFormatError,
    MillraceError,
    RecordRefusedError,
    SourceError,
    SourceUnreachableError,
)
from cdc.events.changes import Row
from cdc.kafka.topics import LogTopics
from cdc.log.following import DeadLetterReader
from cdc.log.state import read_pieces
from cdc.postgres.captured import described_tables
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import explained
from cdc.postgres.reselect import INVISIBLE, await_visible, current_row
from cdc.records.dead_letters import DeadLetter, Order, outcome_records
from cdc.records.position import Lsn, Position, Transaction, header
from cdc.records.record import Record
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import TableState
from cdc.records.topics import dead_letter_topic
from cdc.settings import Settings

log = structlog.get_logger()
_ROWS: Final = {"c", "r", "u", "d"}
_WARN_S: Final = 10.0


class _InVainError(MillraceError):
    """Why a dead letter can't be replayed."""


class Schemas(Protocol):
    """The tables' schema versions (cdc.tables)."""

    def newest(self, table: TableName) -> TableSchema | None:
        """The newest version, if there is one."""

    def described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        """The schema of a table as the catalog has it, and what the log gets if it is new."""


class EncoderSource(Protocol):
    """What encodes rows (cdc.tables)."""

    def encoder(self, schema: TableSchema) -> Encoder:
        """The encoder of a table, in this version of its schema."""


class Orders:
    """Follows orders, on a connection that nothing else uses meanwhile."""

    def __init__(
        self,
        settings: Settings,
        connection: psycopg.Connection,
        topics: LogTopics,
        states: Mapping[TableName, TableState],
        schemas: Schemas,
        encoders: EncoderSource,
        refusals: Refusals,
    ) -> None:
        """``refusals`` know which dead letter was made last."""
        self._settings = settings
        self._topics = topics
        self._prefix = settings.capture.topic_prefix
        self._topic = dead_letter_topic(self._prefix)
        self._connection = connection
        self._keep_alive = topics.while_waiting
        self._states = states
        self._schemas = schemas
        self._encoders = encoders
        self._refusals = refusals
        self._next_warning = 0.0
        self._reader: DeadLetterReader | None = None
        self._dead_letters: Mapping[int, DeadLetter] = {}
        self._done: set[str] = set()

    def follow(self, content: bytes, position: Position, transaction: Transaction) -> list[Record]:
        """The records of an order; none, with a warning, where it can't be followed."""
        try:
            order = Order.model_validate_json(content)
        except ValidationError:  # by anybody, as often as they like
            now = time.monotonic()
            if now < self._next_warning:
                return []
            self._next_warning = now + _WARN_S
            return _ignored("it isn't one that `millrace dead-letters` wrote")
        try:
            dead_letter = self._dead_letter(order)
            if dead_letter is None:
                return []
            made: list[Record] = []
            if order.outcome == "replayed":
                made = self._replayed(dead_letter, position, transaction)
        except (_InVainError, SourceError, LogAccessError, LogFormatError, *ROW_ERRORS) as error:
            if error.retry or self._connection.broken:  # the next start follows it
                raise
            return _ignored(error.what)
        self._done.add(order.id)
        position_header = header(position, dead_letter.schema_version)
        ts_ms = time.time_ns() // 1_000_000
        return [
            *made,
            *outcome_records(self._prefix, dead_letter, order.outcome, position_header, ts_ms),
        ]

    def _dead_letter(self, order: Order) -> DeadLetter | None:
        """The dead letter that the order is about, if it still waits for its outcome.

        Nobody else makes dead letters, or deals with them: what was read of each remains true. Any
        role may write an order, of any number: an unknown one costs nothing where all that were
        made were read before.
        """
        newest = self._refusals.newest_dead_letter
        if order.number not in self._dead_letters:
            if self._reader is None:
                reader = DeadLetterReader(self._settings.kafka, self._topic, self._keep_alive)
                self._dead_letters = reader.read()
                self._reader = reader  # not before: where it can't be read, the next order tries
            elif newest and not self._reader.has_read(newest):
                self._dead_letters = self._reader.read()
        dead_letter = self._dead_letters.get(order.number)
        if dead_letter is None or dead_letter.id != order.id:
            return None
        return None if dead_letter.outcome or order.id in self._done else dead_letter

    def _replayed(
        self, dead_letter: DeadLetter, position: Position, transaction: Transaction
    ) -> list[Record]:
        state = self._replayable(dead_letter)
        # It may be a limit that was raised meanwhile.
        self._topics.refresh_limits({state.topic, dead_letter.topic or state.topic})
        pieces = read_pieces(self._settings.kafka, self._topic, dead_letter, self._keep_alive)
        contents = dead_letter.contents(pieces)
        before, after = (
            row_of(contents[image]) if image in contents else None for image in ("before", "after")
        )
        with explained(self._connection.pgconn):
            xids = frozenset({transaction.xid})
            is_visible = await_visible(self._connection, xids, self._keep_alive)
        if not is_visible:
            raise SourceUnreachableError(INVISIBLE)
        captured = [CapturedTable(state.oid, state.name)]
        described = described_tables(self._connection, self._settings.capture, captured)
        if not described:
            raise _InVainError(f"table {state.name} is gone")
        table = described[0]
        if not any(column.key for column in table.columns):
            encoder = self._encoder_of(state.name, dead_letter.schema_version)
            encoder.begin(transaction)
            return _as_it_was(dead_letter, before, after, position, encoder)
        keys = [_key(dead_letter, row, table) for row in (before, after) if row is not None]
        rows = {}
        for key in dict.fromkeys(filter(None, keys)):
            self._keep_alive()
            rows[key] = current_row(self._connection, table, key)
        if not rows:
            raise _InVainError(f"it has no key; {_read_again(dead_letter)}")
        # At the end: a schema version that is new then has to get into the log.
        schema, new = self._schemas.described(table, position)
        encoder = self._encoders.encoder(schema)
        encoder.begin(transaction)
        for key, row in rows.items():
            new += _as_it_is(table, key, row, position, encoder)
        return new

    def _replayable(self, dead_letter: DeadLetter) -> TableState:
        """The state of the table of a dead letter that can be replayed."""
        state = self._states.get(TableName.parse(dead_letter.table))
        capture = self._settings.capture
        was_refused = dead_letter.error == RecordRefusedError.exit_code.name
        has_way = was_refused and capture.oversized_record != "set_aside"
        if not has_way and not capture.sets_aside(dead_letter.table):
            # It might stop us, at each start.
            raise _InVainError(f"errors.dead.letter.include.list doesn't name {dead_letter.table}")
        if state is None or dead_letter.op not in _ROWS:
            raise _InVainError(_read_again(dead_letter))
        return state

    def _encoder_of(self, table: TableName, version: int) -> Encoder:
        schema = self._schemas.newest(table)
        if schema is None or schema.version != version:
            raise _InVainError("the table has other columns by now")
        return self._encoders.encoder(schema)


def _as_it_is(
    table: TableDescription,
    key: tuple[bytes, ...],
    row: Row | None,
    position: Position,
    encoder: Encoder,
) -> list[Record]:
    lsn = position.commit_lsn
    if row is not None:
        return encoder.snapshot_row(row, position, lsn, time.time_ns() // 1_000)
    texts = iter(key)
    old = tuple(None if column.key is None else next(texts) for column in table.columns)
    return encoder.delete(old, True, lsn, position)


def _key(dead_letter: DeadLetter, row: Row, table: TableDescription) -> tuple[bytes, ...] | None:
    """The row's key, in the order of the table's columns."""
    values = dict(zip(dead_letter.columns, row, strict=True))
    key = [values.get(column.name) for column in table.columns if column.key is not None]
    texts = tuple(value for value in key if isinstance(value, bytes))
    return texts if len(texts) == len(key) else None


def _as_it_was(
    dead_letter: DeadLetter,
    before: Row | None,
    after: Row | None,
    position: Position,
    encoder: Encoder,
) -> list[Record]:
    if dead_letter.masked:
        raise _InVainError(
            f"it doesn't hold what events mask ({', '.join(dead_letter.masked)});"
            f" {_read_again(dead_letter)}"
        )
    lsn = Lsn.parse(dead_letter.lsn)
    if dead_letter.op == "u" and after is not None:
        return encoder.update(before, dead_letter.before_is_key, after, lsn, position)
    if dead_letter.op == "d" and before is not None:
        return encoder.delete(before, dead_letter.before_is_key, lsn, position)
    if after is None:
        raise _InVainError("it has no row")
    return encoder.insert(after, lsn, position)


def _read_again(dead_letter: DeadLetter) -> str:
    return f"read the table again: millrace snapshot {shlex.quote(dead_letter.table)}"


def _ignored(reason: str) -> list[Record]:
    log.warning("an order about a dead letter is not followed", reason=reason)
    return []
