"""A record that can't be made, or that its topic refuses → a dead letter that replaces it.

This applies to tables in errors.dead.letter.include.list. For others, oversized.record decides, or
the table is set aside (cdc/tables/obstacles.py). A dead letter is in the same Kafka transaction as
its neighbours and the progress. docs/decisions/0008-dead-letters.md.
"""

import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias

import structlog

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.dead_letters.claims import Claims
from cdc.dead_letters.row_bytes import row_bytes
from cdc.errors import ROW_ERRORS, ExitCode, MillraceError, RecordRefusedError, RefusedRecord
from cdc.events.changes import Change
from cdc.events.reference import LogContext, TransactionBlocks
from cdc.events.rules import EventRules
from cdc.kafka.producer import Suspects
from cdc.kafka.topics import TopicLimits
from cdc.records.dead_letters import (
    PIECE_BYTES_MAX,
    ClaimHead,
    DeadLetter,
    dead_letter_records,
)
from cdc.records.position import Position, header
from cdc.records.record import Record, record_bytes
from cdc.records.schema import TableName, TableSchema
from cdc.records.topics import dead_letter_topic
from cdc.settings.modes import ColumnModes

log = structlog.get_logger()

_BATCH_BYTES: Final = 100
_HEADER_BYTES: Final = 10
"""Bytes that a broker counts in addition to ours, per batch and per header."""
_ROOM_BYTES: Final = 1_024
"""A record this close to a limit takes the readable way, which measures it."""
_GROUP: Final = 128
_SEARCHES_MAX: Final = 3
_AGAIN_S: Final = 600.0
"""If a topic refuses batches twice within this time, the batch's size isn't the reason."""
_VAIN_MAX: Final = 3
"""A reset can be asked for, begun and refused in one transaction; the log then shows none."""
_SNAPSHOT: Final = f"{0:016x}"
"""End of a position whose rows get another position at each start."""
_REASON_CHARS_MAX: Final = 2_000
_WARN_S: Final = 10.0

Oversized: TypeAlias = "Claims | Literal['set_aside', 'dead_letter']"
"""How to replace a record that is too large if the list doesn't name its table."""


class Refusals:
    """Records that brokers have refused, kept from one start of the daemon to the next.

    A refusal dooms its transaction, and doesn't name the record. So the daemon restarts at the
    recorded progress, and sends the suspects in groups, then one by one. It does so for ``topics``:
    their records aren't written alone, or come from any table. For other topics the topic names the
    table, which is set aside. ``routed`` are topics with records of tables that they aren't named
    after. There, the writer of the record names the table.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, records_max: int = 40_000
    ) -> None:
        """``records_max``: how many records all writers may have written and not committed yet."""
        self._clock = clock
        self.topics: set[str] = set()
        self.routed: dict[str, set[TableName]] = {}
        self._written: deque[tuple[str, bytes | None, Position, TableName]] = deque(
            maxlen=records_max
        )
        """Topic, key, position and table of the last records written there."""
        self.reasons: dict[tuple[str, str, bytes | None], str] = {}
        """Position, topic and key of each refused record → the reason."""
        self.of_tables: dict[str, RecordRefusedError] = {}
        """Topics whose tables the next start sets aside, with the reason ..."""
        self.of_writers: dict[TableName, RecordRefusedError] = {}
        """... and tables whose records go to other topics."""
        self._batches: dict[str, float] = {}
        """When (monotonic) a topic has refused several records at once."""
        self._vain = Counter[str]()
        self.has_any = False
        """Whether a broker has refused a record. Then batches keep to their topics' limits."""
        self.suspects: Suspects | None = None
        self.dead_letter_counts: Counter[str] = Counter()
        """Table → the number of dead letters since the daemon began."""
        self.newest_dead_letter = ""
        """The id of the latest dead letter."""
        self.messages_left_out: Counter[str] = Counter()
        """Reason → the number of logical messages left out since the daemon began."""
        self._searches = 0
        self._end = ""
        """The last position that was ever suspect."""

    def learn(self, error: RecordRefusedError) -> bool:
        """Record a refusal. Return whether a restart makes sense."""
        refused = error.refused
        if refused is None:
            return False
        if refused.topic in self.topics and self._search(refused, error.what):
            return True
        now, before = self._clock(), self._batches.pop(refused.topic, -math.inf)
        if refused.suspects > 1 and now - before >= _AGAIN_S:
            self._batches[refused.topic] = now  # the batch alone may be too large
        elif refused.topic in self.routed:
            self.of_writers |= dict.fromkeys(self._writers(refused), error)
        else:
            self.of_tables[refused.topic] = error
        self.has_any = True
        return True

    def note_routed(self, record: Record, table: TableName, position: Position) -> None:
        """Record that a record goes to another topic than its table's."""
        self.routed.setdefault(record.topic, set()).add(table)
        self._written.append((record.topic, record.key, position, table))

    def _writers(self, refused: RefusedRecord) -> set[TableName]:
        """Return tables that may have written a record. Several may have written its key."""
        alike = [
            (str(position), table)
            for topic, key, position, table in self._written
            if (topic, key) == (refused.topic, refused.key)
        ]
        there = {table for position, table in alike if position == refused.position}
        return there or {table for _, table in alike} or self.routed[refused.topic]

    def is_in_vain(self, topic: str, *, is_over: bool) -> bool:
        """Whether a restart for a topic doesn't help.

        ``is_over``: its table is set aside, and none of its rows are requested. A repetition means
        that another program writes to the topic.
        """
        self._vain[topic] = self._vain[topic] + 1 if is_over else 0
        return self._vain[topic] > _VAIN_MAX

    def _search(self, refused: RefusedRecord, reason: str) -> bool:
        """Narrow down the refused record. Return whether that makes progress."""
        if refused.suspects > 1:
            if refused.first > self._end and not refused.first.endswith(_SNAPSHOT):
                self._searches = 0  # the log has the earlier suspects
            self._searches += 1
            self._end = max(self._end, refused.last)
            group = _GROUP if refused.suspects > _GROUP else 1
            self.suspects = Suspects(refused.first, refused.last, group)
            return self._searches <= _SEARCHES_MAX
        record = refused.first, refused.topic, refused.key
        if record in self.reasons:
            return False
        self.reasons[record] = reason
        self.has_any = True
        self._searches = 0
        # There may be more near it.
        more = refused.first < self._end
        self.suspects = Suspects(refused.first, self._end, _GROUP) if more else None
        return True


class DeadLetters:
    """Makes the dead letters of one stay on the stream."""

    def __init__(
        self,
        prefix: str,
        sets_aside: Callable[[str], bool],
        limits: Mapping[str, TopicLimits],
        refusals: Refusals,
        columns: ColumnModes = ColumnModes(),  # noqa: B008 (immutable)
        oversized: Oversized = "set_aside",
    ) -> None:
        """``columns`` names the columns that events hide. Dead letters hide them, too."""
        self._columns = columns
        self._prefix = prefix
        self._sets_aside = sets_aside
        self._limits = limits
        self._refusals = refusals
        self._oversized = oversized
        self._next_warning: dict[str, float] = {}
        self._refused_until = max((position for position, _, _ in refusals.reasons), default="")

    def covers(self, schema: TableSchema) -> bool:
        """Whether other records may replace the table's."""
        if self._oversized == "set_aside" and not self.sets_aside(schema):
            return False
        self._refusals.topics.add(schema.topic)
        return True

    def sets_aside(self, schema: TableSchema) -> bool:
        """Whether all broken records of the table become dead letters."""
        return self._sets_aside(str(schema.name))

    @property
    def awaits_refused(self) -> bool:
        """Whether a record that was refused before is still ahead."""
        return bool(self._refused_until)

    def has_passed(self, reached: Position) -> bool:
        """Whether the last refused record has passed. Returns True only once."""
        if not self._refused_until or str(reached) < self._refused_until:
            return False
        self._refused_until = ""
        return True

    def takes_keyless(self, topic: str) -> bool:
        """Whether a topic takes records without a key, as far as its limits are known."""
        limits = self._limits.get(topic)
        return limits is None or limits.keyless

    def bytes_max(self, topic: str) -> int:
        """Return the bytes of key and value that the topic accepts for certain.

        0: no known limit.
        """
        limits = self._limits.get(topic)
        return max(1, limits.bytes_max - _ROOM_BYTES) if limits else 0

    def claimed(self, topic: str) -> dict[bytes, ClaimHead] | None:
        """Return the topic's records by key that need a claim's removal when they are replaced."""
        return self._oversized.kept(topic) if isinstance(self._oversized, Claims) else None

    def refused(self, records: Iterable[Record], position: Position) -> str | None:
        """Return why records that belong to no table can't be written. None: they can."""
        for record in records:
            self._refusals.topics.add(record.topic)
            if reason := self._refused(record, position) or self._too_large(record):
                return reason
        return None

    def count_message(self, reason: str) -> None:
        """Count a logical message that was left out."""
        self._refusals.messages_left_out[reason] += 1

    def checked(
        self, records: Iterable[Record], schema: TableSchema, change: Change
    ) -> list[Record]:
        """Return a change's records, with dead letters or claims for those that can't be written.

        Raise RecordRefusedError if the table has neither.
        """
        checked: list[Record] = []
        claims = self._oversized if isinstance(self._oversized, Claims) else None
        aside = self.sets_aside(schema)
        for record in records:
            self._refusals.topics.add(record.topic)
            if record.topic != schema.topic:
                self._refusals.note_routed(record, schema.name, change.position)
            large = self._too_large(record) if aside or self._oversized != "set_aside" else None
            refused = self._refused(record, change.position)
            if not (large or refused):
                checked += [*claims.let_go(record), record] if claims else [record]
            elif large and claims and not aside:
                checked += claims.claimed(record)
            else:
                reason, where = refused or large or "", f"topic {record.topic}"
                error = RecordRefusedError(reason, where=where)
                if not (aside or large):
                    raise error
                checked += self.dead_letter(schema, change, error, record)
        return checked

    def _refused(self, record: Record, position: Position) -> str | None:
        reason = self._refusals.reasons.get((str(position), record.topic, record.key))
        if reason is not None:
            return reason
        limits = self._limits.get(record.topic)
        if limits is not None and record.key is None and not limits.keyless:
            return "a compacted topic refuses a record without a key"
        return None

    def _too_large(self, record: Record) -> str | None:
        limits = self._limits.get(record.topic)
        if limits is None:
            return None
        size = record_bytes(record) + _BATCH_BYTES
        size += sum(len(name) + len(value) + _HEADER_BYTES for name, value in record.headers)
        if size > limits.bytes_max:
            return f"the record has {size} bytes; the topic accepts {limits.bytes_max}"
        return None

    def dead_letter(
        self,
        schema: TableSchema,
        change: Change,
        error: MillraceError,
        record: Record | None = None,
    ) -> list[Record]:
        """Return the records of a dead letter for a change, or for one of its records."""
        masked = self._columns_where(schema, lambda name: self._columns.rule(*name) is not None)
        left_out = self._columns_where(schema, lambda name: not self._columns.keeps(*name))
        hidden = masked | left_out
        contents = {
            "key": record.key if record else None,
            "before": row_bytes(change.before, hidden),
            "after": row_bytes(change.after, hidden),
        }
        head = DeadLetter(
            id=uuid.uuid4().hex,
            table=str(schema.name),
            op=change.operation.value,
            position=change.position,
            lsn=str(change.lsn),
            xid=change.transaction.xid if change.transaction else None,
            schema_version=schema.version,
            error=ExitCode(error.exit_code).name,
            reason=error.what[:_REASON_CHARS_MAX],
            where=error.where[:_REASON_CHARS_MAX],
            topic=record.topic if record else None,
            columns=tuple(column.name for column in schema.columns),
            masked=tuple(schema.columns[index].name for index in sorted(masked - left_out)),
            before_is_key=change.before_is_key,
            sizes={},
            pieces=0,
            ts_ms=time.time_ns() // 1_000_000,
        )
        self._warn(head)
        position = header(change.position, schema.version)
        return dead_letter_records(self._prefix, head, contents, position, self._piece_bytes())

    def _columns_where(
        self, schema: TableSchema, test: Callable[[tuple[str, str]], bool]
    ) -> frozenset[int]:
        """Return the indexes of columns by (table, column).

        The log shows those of the key anyway.
        """
        table = str(schema.name)
        return frozenset(
            index
            for index, column in enumerate(schema.columns)
            if column.key is None and test((table, column.name))
        )

    def _piece_bytes(self) -> int:
        limits = self._limits.get(dead_letter_topic(self._prefix))
        return min(PIECE_BYTES_MAX, limits.bytes_max // 2) if limits else PIECE_BYTES_MAX

    def _warn(self, head: DeadLetter) -> None:
        self._refusals.dead_letter_counts[head.table] += 1
        self._refusals.newest_dead_letter = head.id
        now = time.monotonic()
        if self._next_warning.get(head.table, 0.0) > now:
            return
        self._next_warning[head.table] = now + _WARN_S
        log.warning(
            "a record goes to the dead letters",
            table=head.table,
            position=str(head.position),
            reason=head.reason,
            remedy="millrace dead-letters list",
        )


class GuardedEncoder(Encoder):
    """An encoder that replaces what it can't encode, and what its topic refuses."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        schema: TableSchema,
        rules: EventRules,
        log: LogContext,
        pipeline: RecordPipeline,
        *,
        blocks: TransactionBlocks | None = None,
        reselects: bool = False,
    ) -> None:
        super().__init__(schema, rules, log, pipeline, blocks=blocks, reselects=reselects)
        self._dead_letters = dead_letters

    def _for_compiled(self, make: Callable[..., fast.Table | None]) -> fast.Table | None:
        """The compiled way leaves large records to this encoder."""
        table = None if self._is_checked_by_hand else super()._for_compiled(make)
        if table is not None:
            table.bytes_max = self._dead_letters.bytes_max(self._schema.topic)
            table.claimed = self._dead_letters.claimed(self._schema.topic)
        return table

    @property
    def _is_checked_by_hand(self) -> bool:
        """Whether more than a record's size can be the reason for a refusal."""
        has_key = self._events.plan.key_schema is not None
        takes_all = has_key or self._dead_letters.takes_keyless(self._schema.topic)
        return self._dead_letters.awaits_refused or not takes_all

    def _records(self, change: Change, reread: tuple[int, ...] = ()) -> list[Record]:
        try:
            made = super()._records(change, reread)
        except ROW_ERRORS as error:
            if error.retry or not self._dead_letters.sets_aside(self._schema):
                raise
            return self._dead_letters.dead_letter(self._schema, change, error)
        return self._dead_letters.checked(made, self._schema, change)
