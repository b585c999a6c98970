"""Partitions that are gone → up to where their rows are gone at the source, and the events for it.

The catalog check has noted them, with their bounds. An event may end the rows within bounds up to a
place L in the WAL if the source has none there that was committed before. That is asked:

1. Whatever was open when the partition was gone has ended: it may have written into it. L is read.
2. Whatever was open at L has ended, so all that was committed before is seen: no row is found.

Rows that came in between, into a default partition, or another one with such bounds, are found so;
then those of the dropped one stay in the log, as do all without partition.drop.policy = delete, and
those that can't be asked for, again and again.
Only what a table's state says of it outlives this: a start asks again.

No read of the table is under way as L is read, whose rows could be the partition's and come later.
The event has a position behind all that the log may have recorded, or a sink could be past it.
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
"""How often it goes on; and after a partition was locked, or asking has failed."""
_TRIES_MAX: Final = 8
"""How often a partition is asked for, each time after twice the pause: for about ten minutes."""
_OLDEST: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8"
_END: Final = """
SELECT pg_current_wal_insert_lsn()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::int8
"""


class DroppedPartition(NamedTuple):
    """One whose rows are to end, of a table; ``oid`` is the table's."""

    table: TableName
    oid: int
    partition: EndedPartition


class _Question(NamedTuple):
    """How far the question is: it waits for transactions older than ``behind_xid`` (64 bits).

    ``end`` is L, with the source's time there (µs since 1970). At the end of it ``kept`` are those
    of which rows are still there, with the reason; ``locked`` those that can't be asked for now,
    ``failed`` those where that has failed, and why.
    """

    behind_xid: int = 0
    end: tuple[Lsn, int] | None = None
    is_answered: bool = False
    kept: Mapping[DroppedPartition, str] = {}
    locked: frozenset[DroppedPartition] = frozenset()
    failed: Mapping[DroppedPartition, str] = {}


class _Later(NamedTuple):
    """A partition that is asked for again, not before a time.

    ``tries`` have failed; ``locked`` times it was locked.
    """

    at: float
    tries: int = 0
    locked: int = 0


class DroppedPartitions:
    """Ends the rows of dropped partitions, once it is known up to where they are gone."""

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
        """Moves the stream on, also where nobody else writes."""
        self._reached: Position | None = None
        """What the stream had reached a turn before."""

    @property
    def awaits_stream(self) -> bool:
        """Whether an answer counts once the stream has come there, and has moved on."""
        return self._question.is_answered

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Do what is due, without waiting; returns what the log gets."""
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
                self._next = math.inf  # of such there is nothing new under that policy
                return SignalOutput([], self._keep())
        return SignalOutput([], [])

    def _keep(self) -> list[Record]:
        """Let rows stay that were to end under another policy."""
        return [
            record
            for name, state in list(self._tables.states.items())
            for partition in state.ended
            for record in self._tables.ended.keep(name, partition, KEEP)
        ]

    def _ask(self) -> None:
        """Begin the next step, for those of which it is still to be asked."""
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
        """Say, once a question, whom it waits for."""
        if self._question.behind_xid and not self._question.is_answered and now > self._warn_at:
            self._warn_at = math.inf
            log.warning(
                "rows of dropped partitions aren't deleted yet: open transactions may have"
                " written such rows",
                tables=name_first(sorted({each.table for each in self._asked})),
                remedy=f"they are deleted once these have ended: {open_transactions()}",
            )

    def _is_at_rest(self, state: TableState) -> bool:
        """Whether nothing is read of it, or has to be: a read that replaces settles this, too."""
        is_read = bool(state.requests) or state.name in self._tables.states.waiting
        return not is_read and state.doubt is None and not state.gone_ms

    def _end(self, lsn: Lsn, ts_us: int, reached: Position) -> SignalOutput:
        """End the rows of those of which the source has none; the others stay, or have to wait."""
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
        """Whether it is asked for again: not for ever where that fails."""
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
    """Go a step on, if what it waits for has ended."""
    if not question.behind_xid:
        return _Question(new_xid(connection))
    ((oldest,),) = query(connection, _OLDEST)
    if oldest < question.behind_xid:
        return question
    if question.end is None:
        ((lsn, ts_us),) = query(connection, _END)
        # Younger than whatever has written by now.
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
