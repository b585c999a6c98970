"""Tables with rows to read → the progress of their reads, and the outcome.

Each method that changes a table's state returns its records, like those of states.py. The readers
of rows (the snapshots package) and their writers (cdc.capture) exchange batches.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import structlog

from cdc.errors import MillraceError
from cdc.records.position import Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import (
    GAPS_MAX,
    Doubt,
    Gap,
    LeafRead,
    Phase,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
)
from cdc.tables.doubts import OTHER_KEY
from cdc.tables.states import TableStates

log = structlog.get_logger()


class Again(NamedTuple):
    """How to read tables that the log already has.

    ``statements``: SELECTs that return some tables' rows. ``xid``: the last transaction that was
    streamed, which Debezium names in the rows' events.
    """

    statements: Mapping[TableName, str] = MappingProxyType({})
    xid: int | None = None


FIRST: Final = Again()
"""The tables are read for the first time."""


class ReadProgress(NamedTuple):
    """The progress of a table's read. ``rows`` is the number of rows so far.

    After the last row of a chunk, ``read`` has the parts of the table read up to there, and
    ``pages_done`` their pages. Otherwise ``read`` is None. ``is_done``: all of the table was read.
    """

    table: TableName
    rows: int
    read: tuple[LeafRead, ...] | None = None
    pages_done: int = 0
    is_done: bool = False


class SnapshotBatch(NamedTuple):
    """Some rows of a table, and the progress with them.

    ``events`` is the number of records, ``size`` the bytes of their keys and values. After a
    ``failure``, one of ROW_ERRORS, the table has no further batches.
    """

    progress: ReadProgress
    records: Sequence[RecordOrBatch] = ()
    events: int = 0
    size: int = 0
    failure: MillraceError | None = None


class TableReads:
    """The reads of tables, by their states."""

    def __init__(self, states: TableStates) -> None:
        self._states = states

    @property
    def is_to_read(self) -> bool:
        """Whether anything is read without a further request. A paused read holds up its table."""
        states = self._states
        return (
            bool(states.waiting)
            or any(not _is_paused(states[name]) for name in states.requested)
            or any(state.is_to_settle for state in states.values())
        )

    @property
    def is_all_read(self) -> bool:
        """Whether no table's first read is under way."""
        states = self._states
        return not states.waiting and not any(state.initial for state in states.values())

    def is_all_shown(self, cut: Position, hindered: Collection[TableName] = ()) -> bool:
        """Whether no first read is active, and derived tables show all at that cut.

        Tables don't count that are set aside and ``hindered``, or that this process doesn't read
        again.
        """
        whole = [state for state in self._states.values() if state.phase is Phase.STREAMING]
        is_right = self.is_all_read and not any(
            state.is_being_completed or state.is_to_settle for state in whole
        )
        others = (state for state in self._states.values() if state.name not in hindered)
        is_right &= not any(map(_is_to_come_back, others))
        return is_right and all(
            Position(state.epoch, state.snapshot_lsn, 0) <= cut for state in whole
        )

    def is_shown(self, names: Collection[str], cut: Position) -> bool:
        """Whether derived tables show, at that cut, the rows that were read of these tables."""
        states = (state for state in self._states.values() if str(state.name) in names)
        whole = (state for state in states if state.phase is Phase.STREAMING)
        return all(Position(state.epoch, state.snapshot_lsn, 0) <= cut for state in whole)

    def rows_read(self, epoch: int) -> int:
        """Return how many rows first reads of an epoch have brought into the log."""
        states = [state for state in self._states.values() if state.epoch == epoch]
        return sum(state.initial.rows if state.initial else state.rows_sent for state in states)

    def ask(
        self,
        conditions: Mapping[TableName, str | None],
        signal: str,
        kind: Literal["incremental", "blocking"] = "incremental",
        *,
        paused: bool = False,
        reset: bool = False,
        read: tuple[LeafRead, ...] = (),
        behind_xid: int = 0,
    ) -> list[Record]:
        """Record a request for rows, or for those that meet a condition. Return the records.

        ``signal`` is the one that asks. Empty: the daemon itself, which doesn't give up. ``read``
        are leaves, and ranges of them, that count as read. The read waits until all transactions
        have ended that are older than ``behind_xid``.
        """
        made = list[Record]()
        requests = [request for state in self._states.values() for request in state.requests]
        last = max((request.order for request in requests), default=0)
        for order, (table, condition) in enumerate(conditions.items(), last + 1):
            state = self._states[table]
            request = SnapshotRequest(
                kind=kind,
                signal=signal,
                order=order,
                condition=condition,
                paused=paused,
                reset=reset,
                read=read,
                begun_ms=time.time_ns() // 1_000_000,
                behind_xid=max(state.joined_xid, behind_xid) if kind == "incremental" else 0,
            )
            is_again = kind == "blocking"  # it replaces an earlier request
            before = [each for each in state.requests if not (is_again and each.kind == kind)]
            made += self._states.set_requests(table, [*before, request])
        return made

    def read_altered(
        self, table: TableName, columns: Sequence[str], *, replaces: bool
    ) -> list[Record]:
        """Record that a table is doubtful, since DDL has changed its rows' values.

        ``replaces``: these are in the key, or it has other columns, so the log has rows under keys
        that don't exist.
        """
        log.info(
            "columns were altered: the rows are read again while streaming",
            table=str(table),
            columns=columns,
        )
        reason = f"columns were altered: {', '.join(columns)}" if columns else OTHER_KEY
        now_ms = time.time_ns() // 1_000_000
        return self.doubt(table, Doubt(reason=reason, since_ms=now_ms, replaces=replaces))

    def doubt(self, table: TableName, doubt: Doubt, **update: object) -> list[Record]:
        """Record that rows of a table may be wrong. The daemon's own reads of it don't count.

        An active first read begins again, and settles the doubt. If it is a read of some
        partitions, those that aren't doubtful count as read. Before a table's very first read
        nothing was right, so no change is missing.
        """
        state = self._states[table]
        others = [each for each in state.requests if not each.is_own and each.kind != "initial"]
        if state.doubt is not None:
            doubt = state.doubt.and_also(doubt)
        if (first := state.initial) is None:
            return self._states.set_requests(table, others, None, doubt=doubt, **update)
        if state.doubt is None:  # it may not be recorded below, and a later one isn't part of it
            doubt = doubt.model_copy(update={"leaves": ()})
        doubtful = {leaf.oid for leaf in doubt.leaves}
        is_part = bool(state.doubt and doubtful and not first.signal)
        anew = first.model_copy(
            update={
                "read": tuple(each for each in first.read if is_part and each.leaf not in doubtful),
                "rows": 0,
                "begun_ms": max(time.time_ns() // 1_000_000, first.begun_ms + 1),
                "reset": first.reset or doubt.replaces,
                "behind_xid": max(first.behind_xid, doubt.behind_xid),
            }
        )
        is_missing = doubt.right_until is not None and state.was_whole
        if is_missing or state.doubt is not None:  # its read is under way
            update["doubt"] = doubt
        return self._states.set_requests(table, [anew, *others], None, rows_sent=0, **update)

    def set_aside(self, table: TableName, reason: str, refused: str = "") -> list[Record]:
        """Record that a table's changes are skipped from here on, until it is read again.

        ``refused`` says why the read doesn't begin as soon as the table can be captured. Active and
        requested reads end, except for a reset that a signal asks for. If the table is already set
        aside, only the reason changes. Return nothing if that is known.
        """
        state = self._states[table]
        now_ms = time.time_ns() // 1_000_000
        had_all = self._states.had_all(table)
        doubt = Doubt(
            reason=reason,
            since_ms=now_ms,
            replaces=True,
            right_until=self._states.right_until(table) if had_all else None,
            refused=refused,
            set_aside=True,
        )
        if state.doubt is not None and state.doubt.set_aside:
            refused = state.doubt.refused if state.doubt.is_stopped else refused
            doubt = state.doubt.model_copy(update={"reason": reason, "refused": refused})
        elif state.doubt is not None:
            doubt = state.doubt.and_also(doubt)
        ended = [each for each in state.requests if not _is_asked_reset(each)]
        if doubt == state.doubt and not ended:
            return []
        noted = self._states.set_requests(table, state.requests, doubt=doubt)
        return [*noted, *self.end(table, ended, "SQL_EXCEPTION", reason)]

    def is_over(self, table: TableName) -> bool:
        """Whether a table is set aside, its read is refused, and none is active or requested."""
        state = self._states[table]
        is_given_up = state.doubt is not None and bool(state.doubt.refused)
        return state.is_set_aside and is_given_up and not state.requests

    def end(
        self,
        table: TableName,
        requests: Iterable[SnapshotRequest],
        status: Literal["ABORTED", "SQL_EXCEPTION"],
        reason: str,
    ) -> list[Record]:
        """Record that reads of a table fail. Return the state's records for each.

        The requester of a read looks for its outcome.
        """
        records, left = list[Record](), list(self._states[table].requests)
        for each in requests:
            left.remove(each)
            ended = SnapshotOutcome(
                signal=each.signal, status=status, rows=each.rows, reason=reason
            )
            outcome = ended if each.signal else None
            records += self._states.set_requests(table, left, outcome)
        return records

    def refuse(self, table: TableName, reason: str, *, is_stopped: bool = False) -> list[Record]:
        """Record why a doubtful table isn't read again. Do nothing if it isn't doubtful.

        ``is_stopped``: it isn't read later either, when the reason no longer exists.
        """
        state = self._states[table]
        if state.doubt is None or state.doubt.refused == reason:
            return []
        refused = state.doubt.model_copy(update={"refused": reason, "is_stopped": is_stopped})
        return self._states.put(state.model_copy(update={"doubt": refused}))

    def resume(self, names: Collection[str]) -> list[Record]:
        """Resume paused reads of the named tables, or of all. Return the states' records."""
        records = list[Record]()
        for state in list(self._states.values()):
            is_named = not names or str(state.name) in names
            if is_named and any(request.paused for request in state.requests):
                going_on = [each.model_copy(update={"paused": False}) for each in state.requests]
                records += self._states.set_requests(state.name, going_on)
        return records

    def not_done(self, signals: Mapping[TableName, Collection[str]]) -> dict[str, str]:
        """Return why tables weren't wholly read for these signals, or without a signal."""
        reasons = {}
        for name in signals.keys() & self._states.keys():
            state = self._states[name]
            outcome = state.outcome
            if outcome is not None and outcome.signal and outcome.signal in signals[name]:
                if outcome.failure:
                    reasons[str(name)] = outcome.failure
            elif state.doubt is not None and state.doubt.set_aside:
                reasons[str(name)] = state.doubt.reason
            elif state.is_left_unread:
                reasons[str(name)] = "it was dropped, or left out"
        return reasons

    def advance(
        self, table: TableName, request: SnapshotRequest, pages: int, pages_done: int
    ) -> list[Record]:
        """Record the progress of a table's read. Return its state's records."""
        state = self._states[table]
        requests = (
            request.model_copy(update={"paused": each.paused}) if each.is_same(request) else each
            for each in state.requests  # a signal may have come since the read was checked
        )
        rows = request.rows if request.kind == "initial" else state.rows_sent
        return self._states.set_requests(
            table, requests, rows_sent=rows, pages_total=pages, pages_done=pages_done
        )

    def read_anew(self, table: TableName, reason: str) -> list[Record]:
        """Begin a table's first read again, for all its rows. Return its state's records."""
        state = self._states[table]
        others = [request for request in state.requests if request.kind != "initial"]
        before = state.initial or SnapshotRequest(kind="initial")
        if before.read:
            log.warning("a table is read again", table=str(table), reason=reason)
        now_ms = max(time.time_ns() // 1_000_000, before.begun_ms + 1)
        anew = before.model_copy(update={"read": (), "rows": 0, "begun_ms": now_ms})
        self._states.reset_tracking()
        was_whole, phase = self._states.had_all(table), Phase.SNAPSHOT
        doubt = state.doubt and state.doubt.model_copy(update={"leaves": ()})
        return self._states.set_requests(
            table, [anew, *others], rows_sent=0, phase=phase, was_whole=was_whole, doubt=doubt
        )

    def finish(
        self,
        table: TableName,
        request: SnapshotRequest,
        at: Position,
        pages: int,
        outcome: SnapshotOutcome | None = None,
        refused: str = "",
    ) -> list[Record]:
        """Record that a read of the table is done, at a position. Return its state's records.

        ``refused`` says why a read for a doubt has failed.
        """
        state = self._states[table]
        requests = [each for each in state.requests if not each.is_same(request)]
        update: dict[str, object] = {"pages_total": pages, "pages_done": pages}
        if refused and state.doubt is not None:
            update["doubt"] = state.doubt.model_copy(update={"refused": refused})
        elif state.doubt is not None and _settles(request, state.doubt):
            update |= {"doubt": None, **_gap(state, state.doubt, at)}
        if request.kind == "initial":
            update |= {
                "phase": Phase.STREAMING,
                "snapshot_lsn": at.commit_lsn,
                "rows_sent": request.rows,
            }
        return self._states.set_requests(table, requests, outcome, **update)


def _settles(request: SnapshotRequest, doubt: Doubt) -> bool:
    """Whether everything doubtful was read. A first read replaces the rows from before."""
    return request.kind == "initial" or (request.is_own and not doubt.replaces)


def _gap(state: TableState, doubt: Doubt, at: Position) -> dict[str, object]:
    """Return a state's new gap if a read at a position settled a doubt with missing changes."""
    if doubt.right_until is None:
        return {}
    total = state.gaps_total + 1
    gap = Gap(
        start=doubt.right_until,
        end=at,
        reason=doubt.reason,
        ts_ms=time.time_ns() // 1_000_000,
        number=total,
    )
    return {"gaps": (*state.gaps, gap)[-GAPS_MAX:], "gaps_total": total}


def _is_to_come_back(state: TableState) -> bool:
    """Whether it is set aside, and read again as soon as it can be captured."""
    is_open = state.doubt is not None and state.doubt.set_aside and not state.doubt.refused
    return is_open and state.is_in_log and not state.gone_ms


def _is_asked_reset(request: SnapshotRequest) -> bool:
    """Whether a signal asks for a reset that hasn't begun, and that checks its own feasibility."""
    return bool(request.signal) and request.kind == "incremental" and request.reset


def _is_paused(state: TableState) -> bool:
    """Whether the table's next read is paused. Reads that block the stream don't wait for it."""
    is_blocking = any(request.kind == "blocking" for request in state.requests)
    return not is_blocking and min(state.requests, key=lambda request: request.order).paused
