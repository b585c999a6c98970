"""Partitions that are gone → the position up to which their rows are gone, and the events for it.

The catalog check has recorded them with their bounds. An event may end the rows within bounds up to
a place L in the WAL if the source has none there that were committed before L. Two steps find out:

1. Every transaction has ended that was open when the partition was gone, as it may have written
   into the partition. L is read.
2. Every transaction has ended that was open at L, so all earlier commits are visible. No row is
   found.

The second step also finds rows that arrived in between, in a default partition or in another one
with such bounds. Then the rows of the dropped partition stay in the log. They also stay without
partition.drop.policy = delete, and if the question fails repeatedly. Only the table's state
outlives this process: a start asks again.

No read of the table is active while L is read: its rows could be the partition's, and arrive later.
The event's position is after everything that the log may have recorded. Otherwise a sink could be
past it.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import psycopg
import structlog

from cdc.compiled import fast
from cdc.errors import ROW_ERRORS, MillraceError, SourceError
from cdc.lines import name_first
from cdc.postgres.catalog import new_xid
from cdc.postgres.connection import query
from cdc.postgres.partitions import has_rows
from cdc.records.fingerprint import EndedPartition
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.settings import CaptureSettings
from cdc.stream.signals import SignalOutput
from cdc.tables.ended import KEEP
from cdc.tables.tables import Tables
from snapshots.chunk import open_transactions
from snapshots.joining import PATIENCE_S
from snapshots.watermarks import is_past
from snapshots.windows import Job, WindowReader

log = structlog.get_logger()
_CHECK_S: Final = 0.5
_AGAIN_S: Final = 5.0
"""The pauses between steps, and after a partition was locked or a question failed."""
_TRIES_MAX: Final = 8
"""How often a partition's question is tried, with doubled pauses: for about ten minutes."""
_OLDEST: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8"
_END: Final = """
SELECT pg_current_wal_insert_lsn()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::int8
"""


class DroppedPartition(NamedTuple):
    """A partition whose rows must end. ``oid`` is the OID of its table."""

    table: TableName
    oid: int
    partition: EndedPartition


class _Question(NamedTuple):
    """The question's progress. It waits for transactions older than ``behind_xid`` (64 bits).

    ``end`` is L, with the source's time there (µs since 1970). The answer has three parts. ``kept``
    are partitions whose rows still exist, with the reason. ``locked`` are those that can't be asked
    for while the lock lasts. ``failed`` are those with a failed question, and why.
    """

    behind_xid: int = 0
    end: tuple[Lsn, int] | None = None
    is_answered: bool = False
    kept: Mapping[DroppedPartition, str] = {}
    locked: frozenset[DroppedPartition] = frozenset()
    failed: Mapping[DroppedPartition, str] = {}


class _Later(NamedTuple):
    """A partition to ask for again, no earlier than ``at``.

    ``tries`` counts the failures, ``locked`` the locks.
    """

    at: float
    tries: int = 0
    locked: int = 0


class DroppedPartitions:
    """Ends the rows of dropped partitions, once the position of their end is known."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        settings: CaptureSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._tables = tables
        self._is_wanted = settings.partition_drop_policy == "delete"
        self._next = 0.0
        self._asked: tuple[DroppedPartition, ...] = ()
        self._later: dict[DroppedPartition, _Later] = {}
        self._question = _Question()
        self._warn_at = math.inf
        self._job: Job[_Question] | None = None
        self._nudge: Job[int] | None = None
        """Moves the stream forward if no other session writes."""
        self._reached: Position | None = None
        """The stream's position a turn before."""

    @property
    def awaits_stream(self) -> bool:
        """Whether an answer waits for the stream to reach its position, and to move on."""
        return self._question.is_answered

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Take the steps that are due, without waiting. Return the log's part."""
        has_moved = self._reached is not None and cursor.reached > self._reached
        self._reached = cursor.reached
        now = self._clock()
        if self._question.end is not None and self._question.is_answered:
            if has_moved and cursor.transaction is None:
                lsn, ts_us = self._question.end
                if is_past(cursor.flush_lsn, lsn):
                    return self._end(lsn, ts_us, cursor.reached)
            if now >= self._next and (self._nudge is None or self._nudge.future.done()):
                self._next = now + _AGAIN_S
                self._nudge = self._reader.ask(new_xid)
        elif self._job is not None and self._job.future.done():
            job, self._job = self._job, None
            self._question = job.result or _Question()
            self._next = now if self._question.is_answered else now + _CHECK_S
            if isinstance(error := job.failure(), MillraceError):
                log.warning("can't find out which partitions were dropped", reason=error.what)
                self._next = now + _AGAIN_S
            self._warn(now)
        elif self._job is None and now >= self._next:
            self._next = now + _CHECK_S
            if self._is_wanted:
                self._ask()
            else:
                self._next = math.inf  # that policy brings no new ones
                return SignalOutput([], self._keep())
        return SignalOutput([], [])

    def _keep(self) -> list[Record]:
        """Keep rows that another policy would have ended."""
        return [
            record
            for name, state in list(self._tables.states.items())
            for partition in state.ended
            for record in self._tables.ended.keep(name, partition, KEEP)
        ]

    def _ask(self) -> None:
        """Begin the next step, for the partitions that still need an answer."""
        waiting = dict.fromkeys(
            DroppedPartition(name, state.oid, partition)
            for name, state in self._tables.states.items()
            if state.ended and self._is_at_rest(state)
            for partition in state.ended
        )
        self._later = {each: later for each, later in self._later.items() if each in waiting}
        now = self._clock()
        due = [each for each in waiting if each not in self._later or now >= self._later[each].at]
        asked = self._asked if self._question.behind_xid else due
        self._asked = tuple(each for each in asked if each in waiting)
        if not self._asked:
            self._question = _Question()
            return
        if not self._question.behind_xid:
            self._warn_at = now + PATIENCE_S
        self._job = self._reader.ask(partial(_go_on, question=self._question, asked=self._asked))

    def _warn(self, now: float) -> None:
        """Log, once per question, which transactions it waits for."""
        if self._question.behind_xid and not self._question.is_answered and now > self._warn_at:
            self._warn_at = math.inf
            log.warning(
                "rows of dropped partitions aren't deleted yet: open transactions may have"
                " written such rows",
                tables=name_first(sorted({each.table for each in self._asked})),
                remedy=f"they are deleted once these have ended: {open_transactions()}",
            )

    def _is_at_rest(self, state: TableState) -> bool:
        """Whether no read of the table is active or due. A read that replaces settles this, too."""
        is_read = bool(state.requests) or state.name in self._tables.states.waiting
        return not is_read and state.doubt is None and not state.gone_ms

    def _end(self, lsn: Lsn, ts_us: int, reached: Position) -> SignalOutput:
        """End the rows that the source no longer has. All others stay, or wait."""
        question, asked = self._question, self._asked
        self._question, self._asked = _Question(), ()
        self._next = self._clock() + _CHECK_S
        upto = min(Position(reached.epoch, lsn, 0).just_before(), reached)
        output = SignalOutput(list[RecordOrBatch](), [])
        for each in asked:
            state = self._tables.states.get(each.table)
            is_noted = state and state.oid == each.oid and each.partition in state.ended
            if not is_noted or self._tables.states.is_set_aside(each.table):
                continue  # the read that brings it back replaces all rows
            if self._is_for_later(each, question):
                continue
            if reason := question.kept.get(each) or question.failed.get(each):
                output.states.extend(self._tables.ended.keep(each.table, each.partition, reason))
                continue
            try:
                events, states = self._tables.ended.end(
                    each.table, each.partition, upto, reached, ts_us
                )
            except ROW_ERRORS as error:
                events, states = [], self._tables.obstacles.set_aside(each.table, error)
            output.events.extend(events)
            output.states.extend(states)
        return output

    def _is_for_later(self, partition: DroppedPartition, question: _Question) -> bool:
        """Whether the partition is asked for again, but not after ``_TRIES_MAX`` failures."""
        _, tries, locked = self._later.pop(partition, _Later(0.0))
        pause_s = _AGAIN_S
        if partition in question.locked:
            locked += 1
            if locked == 2:
                log.warning(
                    "rows of a dropped partition aren't deleted yet: the table or a partition of"
                    " it is locked",
                    table=str(partition.table),
                    remedy="they are deleted once the lock is gone: see pg_locks",
                )
        if reason := question.failed.get(partition):
            tries, pause_s = tries + 1, _AGAIN_S * 2**tries
            log.warning(
                "can't find out whether a dropped partition has rows",
                table=str(partition.table),
                reason=reason,
                tries=tries,
            )
        is_later = tries < _TRIES_MAX if reason else partition in question.locked
        if is_later:
            self._later[partition] = _Later(self._clock() + pause_s, tries, locked)
        return is_later


def _go_on(
    connection: psycopg.Connection, question: _Question, asked: tuple[DroppedPartition, ...]
) -> _Question:
    """Take one step, if the transactions that it waits for have ended."""
    if not question.behind_xid:
        return _Question(new_xid(connection))
    ((oldest,),) = query(connection, _OLDEST)
    if oldest < question.behind_xid:
        return question
    if question.end is None:
        ((lsn, ts_us),) = query(connection, _END)
        # Younger than everything that has written up to here.
        return _Question(new_xid(connection), (Lsn.parse(lsn), ts_us))
    kept, failed = dict[DroppedPartition, str](), dict[DroppedPartition, str]()
    locked = set[DroppedPartition]()
    for each in asked:
        try:
            exist = has_rows(connection, each.oid, each.partition.levels)
        except SourceError as error:
            if connection.broken:
                raise
            failed[each] = (
                f"it is unknown whether other partitions have rows within its bounds: {error.what}"
            )
            continue
        if exist is None:
            locked.add(each)
        elif exist:
            kept[each] = "other partitions have rows within its bounds"
    return question._replace(is_answered=True, kept=kept, locked=frozenset(locked), failed=failed)
