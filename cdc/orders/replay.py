"""Orders about dead letters → the records that execute them, at the order's position.

A row with a key is sent in its current state, or as deleted if it is gone; later changes follow in
the stream. A row without a key is an event of its own, and is sent unchanged.
"""

import shlex
import time
from collections.abc import Mapping
from typing import Final

from cdc.convert.pipeline import Encoder
from cdc.dead_letters.guard import Refusals
from cdc.dead_letters.row_bytes import row_of
from cdc.errors import RecordRefusedError
from cdc.events.changes import Row
from cdc.kafka.topics import LogTopics
from cdc.log.following import DeadLetterReader
from cdc.log.state import read_pieces
from cdc.orders.current_rows import CurrentRows, InVainError, Key, key_of
from cdc.postgres.described import TableDescription
from cdc.records.dead_letters import DeadLetter, outcome_records
from cdc.records.orders import DeadLetterOrder
from cdc.records.position import Lsn, Position, Transaction, header
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.records.topics import dead_letter_topic
from cdc.settings import Settings

_ROWS: Final = {"c", "r", "u", "d"}


class Replays:
    """Executes orders about dead letters."""

    def __init__(
        self,
        settings: Settings,
        rows: CurrentRows,
        topics: LogTopics,
        states: Mapping[TableName, TableState],
        refusals: Refusals,
    ) -> None:
        """``refusals`` know the latest dead letter."""
        self._settings = settings
        self._rows = rows
        self._topics = topics
        self._prefix = settings.capture.topic_prefix
        self._topic = dead_letter_topic(self._prefix)
        self._states = states
        self._refusals = refusals
        self._reader: DeadLetterReader | None = None
        self._dead_letters: Mapping[int, DeadLetter] = {}
        self._done: set[str] = set()

    def follow(
        self, order: DeadLetterOrder, position: Position, transaction: Transaction
    ) -> list[Record]:
        """Return the records of an order. Raise InVainError if it can't be executed."""
        dead_letter = self._dead_letter(order)
        if dead_letter is None:
            return []
        made: list[Record] = []
        if order.outcome == "replayed":
            made = self._replayed(dead_letter, position, transaction)
        self._done.add(order.id)
        position_header = header(position, dead_letter.schema_version)
        ts_ms = time.time_ns() // 1_000_000
        return [
            *made,
            *outcome_records(self._prefix, dead_letter, order.outcome, position_header, ts_ms),
        ]

    def _dead_letter(self, order: DeadLetterOrder) -> DeadLetter | None:
        """Return the order's dead letter, if it still waits for its outcome.

        Only this daemon makes dead letters or settles them, so earlier reads stay valid. Any role
        can write an order with any number. If all dead letters were read before, an unknown number
        costs nothing.
        """
        newest = self._refusals.newest_dead_letter
        if order.number not in self._dead_letters:
            if self._reader is None:
                keep_alive = self._topics.while_waiting
                reader = DeadLetterReader(self._settings.kafka, self._topic, keep_alive)
                self._dead_letters = reader.read()
                self._reader = reader  # not earlier: after a failed read, the next order retries
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
        # A user may have raised a limit in the meantime.
        self._topics.refresh_limits({state.topic, dead_letter.topic or state.topic})
        keep_alive = self._topics.while_waiting
        pieces = read_pieces(self._settings.kafka, self._topic, dead_letter, keep_alive)
        contents = dead_letter.contents(pieces)
        before, after = (
            row_of(contents[image]) if image in contents else None for image in ("before", "after")
        )
        table = self._rows.described(state, transaction)
        if not any(column.key for column in table.columns):
            encoder = self._encoder_of(state.name, dead_letter.schema_version)
            encoder.begin(transaction)
            return _as_it_was(dead_letter, before, after, position, encoder)
        keys = [_key(dead_letter, row, table) for row in (before, after) if row is not None]
        known = [key for key in keys if key is not None]
        if not known:
            raise InVainError(f"it has no key; {_read_again(dead_letter)}")
        return self._rows.records(table, known, position, transaction)

    def _replayable(self, dead_letter: DeadLetter) -> TableState:
        """Return the state of the table of a dead letter that can be replayed."""
        state = self._states.get(TableName.parse(dead_letter.table))
        capture = self._settings.capture
        was_refused = dead_letter.error == RecordRefusedError.exit_code.name
        has_way = was_refused and capture.oversized_record != "set_aside"
        if not has_way and not capture.sets_aside(dead_letter.table):
            # It could stop the daemon at each start.
            raise InVainError(f"errors.dead.letter.include.list doesn't name {dead_letter.table}")
        if state is None or dead_letter.op not in _ROWS:
            raise InVainError(_read_again(dead_letter))
        return state

    def _encoder_of(self, table: TableName, version: int) -> Encoder:
        schema = self._rows.schemas.newest(table)
        if schema is None or schema.version != version:
            raise InVainError("the table has other columns now")
        return self._rows.encoders.encoder(schema)


def _key(dead_letter: DeadLetter, row: Row, table: TableDescription) -> Key | None:
    """Return the row's key, in the order of the table's columns."""
    return key_of(table, dict(zip(dead_letter.columns, row, strict=True)))


def _as_it_was(
    dead_letter: DeadLetter,
    before: Row | None,
    after: Row | None,
    position: Position,
    encoder: Encoder,
) -> list[Record]:
    if dead_letter.masked:
        raise InVainError(
            f"it lacks values that events mask ({', '.join(dead_letter.masked)});"
            f" {_read_again(dead_letter)}"
        )
    lsn = Lsn.parse(dead_letter.lsn)
    if dead_letter.op == "u" and after is not None:
        return encoder.update(before, dead_letter.before_is_key, after, lsn, position)
    if dead_letter.op == "d" and before is not None:
        return encoder.delete(before, dead_letter.before_is_key, lsn, position)
    if after is None:
        raise InVainError("it has no row")
    return encoder.insert(after, lsn, position)


def _read_again(dead_letter: DeadLetter) -> str:
    return f"read the table again: millrace snapshot {shlex.quote(dead_letter.table)}"
