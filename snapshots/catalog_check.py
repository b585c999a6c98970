"""The captured tables' catalog, compared every few seconds → the tables whose rows may be wrong.

PostgreSQL changes rows, or their output, without a row event: a type's labels are renamed, a table
is unlogged for a while, a publication leaves changes out. So the catalog is compared with the
fingerprint in each table's state record. A difference makes the table doubtful. It is read again
while the stream continues, one table at a time. State, doubt and fingerprint are one record: a
start continues with open doubts, and finds the differences of the time in between.

A result counts once the stream has reached the WAL's end after it: everything it shows has passed
then. A doubt that the stream raises waits for the next check, which begins at once. So one read
settles everything known.
"""

import shlex
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from cdc.compiled import fast
from cdc.errors import MillraceError
from cdc.postgres.fingerprints import CatalogTable
from cdc.postgres.slot import size
from cdc.records.fingerprint import DoubtfulLeaf, TableFingerprint, within_limit
from cdc.records.position import INDEX_MAX, Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import Doubt, LeafRead, Phase, TableState
from cdc.settings import CaptureSettings
from cdc.tables.doubts import RENAMED, Differences, made_again
from cdc.tables.tables import Joined, Tables
from snapshots.gone import THERE, take_gone
from snapshots.inspection import Finding, Inspection, WatchedTable, inspect
from snapshots.reader import ALL
from snapshots.watermarks import is_past
from snapshots.windows import Job, WindowReader

log = structlog.get_logger()
CHECK_S: Final = 5.0
"""How often the catalog is checked if that costs little."""
CHECK_S_MAX: Final = 10.0
"""The longest interval for up to ``TABLES_MAX`` tables, whatever a check costs."""
CHECK_S_MOST: Final = 60.0
"""The longest interval for more tables."""
TABLES_MAX: Final = 1_000
_SHARE_MAX: Final = 0.02
"""The largest share of time for checks, as far as these limits allow."""
_PAUSE: Final = 10
"""The pause before a check out of turn, in check durations: any session can report DDL."""
_TIMED: Final = 3
"""How many durations count: a single check may have waited for locks, or the network."""
_VISIBLE_S: Final = 0.5
"""How long a transaction may be in the stream before its effects are visible to others."""
_STUCK_S: Final = 10.0
"""A read without progress for this long lets another one begin."""
_READ_S: Final = 0.1
"""How often doubtful tables are checked."""


def interval_s(took_s: Iterable[float], tables: int) -> float:
    """Return the time from a check to the next one. ``took_s``: durations of the last checks."""
    limit = CHECK_S_MAX if tables <= TABLES_MAX else CHECK_S_MOST
    return max(CHECK_S, min(min(took_s, default=0.0) / _SHARE_MAX, limit))


class CatalogCheck:
    """Compares the catalog with the tables' fingerprints, and has doubtful tables read again."""

    def __init__(self, reader: WindowReader, tables: Tables, settings: CaptureSettings) -> None:
        self._reader = reader
        self._tables = tables
        self._settings = settings
        self._is_due = self._is_told = self._is_repeated = False
        self._asked_at: Position | None = None
        """The stream's position when the last check began."""
        self._asked_s = 0.0
        """The time of that (monotonic)."""
        self._next = self._next_read = 0.0
        self._took_s = deque[float](maxlen=_TIMED)
        self._job: Job[Inspection] | None = None
        self._inspection: Inspection | None = None
        self._watched: dict[TableName, WatchedTable] = {}
        """The tables of the current comparison, or of the last one."""
        self._checked: dict[TableName, Doubt | None] = {}
        """The doubts that the last check knew or raised, for tables that it could compare."""
        self._last: Inspection | None = None
        self._compared: dict[TableName, TableFingerprint | None] = {}
        """The states' fingerprints that the last check compared."""
        self._progress: dict[TableName, tuple[list[int], float]] = {}
        """Doubtful tables under read: row counts, and since when (monotonic) these are the same."""
        self._tried: set[tuple[TableName, int]] = set()
        self._unhindered: set[TableName] = set()
        """Tables that are set aside, can be captured by the last check, and wait for their read."""

    @property
    def awaits_stream(self) -> bool:
        """Whether a result waits for the stream to reach its position."""
        return self._inspection is not None

    def note_ddl(self) -> None:
        """Check at once, as the stream has reached DDL; and again soon, when others can see it."""
        self._is_due = self._is_told = True

    def turn(self, cursor: fast.Cursor) -> Joined:
        """Take the steps that are due, without waiting. Return the log's part.

        Raise UnreadTableError if another table has the name, and can't be read while streaming.
        """
        now = time.monotonic()
        if self._inspection is not None:
            has_passed = is_past(cursor.flush_lsn, self._inspection.wal_end)
            if self._inspection.findings and (cursor.transaction or not has_passed):
                return Joined([])
            inspection, self._inspection = self._inspection, None
            return self._take(inspection, cursor)
        if self._job is not None and self._job.future.done():
            job, self._job = self._job, None
            if isinstance(error := job.failure(), MillraceError):
                log.warning("the catalog can't be checked", reason=error.what, remedy=error.remedy)
            self._inspection = job.result
            if job.result is not None:
                self._took_s.append(job.result.took_s)
            wait_s = interval_s(self._took_s, len(self._watched))
            self._next = now + (_VISIBLE_S if self._is_repeated else wait_s)
        elif self._job is None and self._settings.lossless and self._may_begin(now):
            self._is_repeated, self._is_due, self._is_told = self._is_told, False, False
            self._watched = {table.state.name: table for table in self._followed()}
            self._asked_at = cursor.reached
            self._asked_s = now
            self._job = self._reader.ask(
                partial(inspect, settings=self._settings, watched=[*self._watched.values()])
            )
        if now < self._next_read:
            return Joined([])
        self._next_read = now + _READ_S
        return Joined(self._read_again())

    def _may_begin(self, now: float) -> bool:
        pause_s = _PAUSE * min(self._took_s, default=0.0)
        return now >= self._next or (self._is_due and now >= self._asked_s + pause_s)

    def _followed(self) -> list[WatchedTable]:
        states = self._tables.states
        seen = self._last.seen if self._last else {}

        def latest(state: TableState) -> TableFingerprint | None:
            """Return the last check's fingerprint if it was compared with this state's."""
            is_compared = self._compared.get(state.name) is state.fingerprint
            return seen.get(state.name, state.fingerprint) if is_compared else state.fingerprint

        return [
            WatchedTable(state, latest(state))
            for name, state in states.items()
            if state.oid and name not in states.waiting
            if states.is_followed(name) or state.is_left_unread
            if self._settings.captures(str(name))
        ]

    def _take(self, inspection: Inspection, cursor: fast.Cursor) -> Joined:
        """Process the results of a check."""
        reached = cursor.reached
        self._last = inspection
        if not inspection.undecided:
            self._tables.states.watch(self._asked_s)
        self._compared = {name: table.state.fingerprint for name, table in self._watched.items()}
        self._checked = {
            name: table.state.doubt
            for name, table in self._watched.items()
            if name not in inspection.undecided
        }
        taken, is_sure = Joined(self._left_out(inspection)), not inspection.undecided
        taken.records.extend(self._look_for_obstacles(inspection))
        for finding in inspection.findings:
            name, state = finding.watched.state.name, finding.watched.state
            before = self._tables.states.get(name)
            was = state.oid, state.fingerprint
            is_as_it_was = before and (before.oid, before.fingerprint) == was
            # Its read has begun since, or the stream has brought later DDL.
            begin = Position(reached.epoch, inspection.wal_begin, INDEX_MAX)
            is_outdated = self._tables.schemas.is_outdated(finding.described, begin)
            is_over = not is_as_it_was or is_outdated or name in self._tables.states.waiting
            if before is None or is_over:
                self._checked.pop(name, None)
                is_sure = False
                continue
            if finding.now is None:
                system = inspection.system
                joined = take_gone(self._tables, self._settings, before, finding, system, reached)
            else:
                joined = Joined(self._differs(before, finding, finding.now, inspection, reached))
                if before.doubt == state.doubt:
                    self._checked[name] = self._tables.states[name].doubt
            taken = Joined(
                [*taken.records, *joined.records], taken.effects.and_then(joined.effects)
            )
        # A commit may be in the stream long before it is visible, while it waits for a standby.
        at = self._asked_at
        if is_sure and at and inspection.shows_all_before(at.commit_lsn, cursor.committed_at):
            self._tables.states.checked = at
        return taken

    def _left_out(self, inspection: Inspection) -> list[Record]:
        """Record, for tables that the lists leave out, up to where checks covered them.

        If such a table was gone, it may come back unseen. So the next check dates its absence
        again.
        """
        records, states = list[Record](), self._tables.states
        for name, state in list(states.items()):
            is_left_out = name not in self._watched and not self._settings.captures(str(name))
            if state.right_until is None and state.phase is Phase.STREAMING and is_left_out:
                update: dict[str, object] = {"right_until": states.right_until(name)}
            elif is_left_out and state.gone_system:
                update = {"gone_system": ""}
            elif state.right_until is not None and name in inspection.seen:
                update = {"right_until": None}
            else:
                continue
            records += states.put(state.model_copy(update=update))
        return records

    def _look_for_obstacles(self, inspection: Inspection) -> list[Record]:
        """Find tables set aside that can be captured now. Record why the others can't."""
        records, obstacles = list[Record](), self._tables.obstacles
        self._unhindered.clear()
        for name, described in inspection.aside.items():
            state = self._tables.states.get(name)
            if state is None or state.doubt is None or state.oid != described.oid:
                continue
            if (error := obstacles.of(described)) is None:
                self._unhindered.add(name)
            elif state.is_set_aside:
                records += obstacles.set_aside(name, error)
        return records

    def _differs(
        self,
        state: TableState,
        finding: Finding,
        now: CatalogTable,
        inspection: Inspection,
        reached: Position,
    ) -> list[Record]:
        """Record a table's current form, and its doubt if it is doubtful."""
        name, differences = state.name, finding.differences
        right_until = self._tables.states.right_until(name)
        causes, attached, gone = differences.causes, differences.attached, differences.gone
        records = list[Record]()
        update: dict[str, object] = {"fingerprint": now.fingerprint, **THERE}
        if (described := finding.described) is not None and not state.is_set_aside:
            if (error := self._tables.obstacles.of(described)) is not None:
                records += self._tables.obstacles.set_aside(name, error)
                aside = self._tables.states[name].model_copy(update=update)
                return [*records, *self._tables.states.put(aside)]
            if columns := self._tables.schemas.made_again(described):
                causes += (made_again(columns),)
            records += self._tables.schemas.described(described, reached)[1]
        if now.entry:
            update["entry"] = now.entry
        if state.gone_ms or (state.renamed_lsn or inspection.wal_end) < inspection.wal_end:
            causes += (RENAMED,)
            update["renamed_lsn"] = None
        if gone and (before := finding.watched.fingerprint) is not None:
            update |= self._tables.ended.note_gone(state, before, now.fingerprint)
        if not (causes or attached):
            states = self._tables.states
            return [*records, *states.put(states[name].model_copy(update=update))]
        reasons = [cause.reason for cause in causes]
        reasons += [f"{len(attached)} partitions were attached"] if attached else []
        leaves = _doubtful_leaves(replace(differences, causes=causes), finding)
        doubt = Doubt(
            reason="; ".join(reasons),
            since_ms=time.time_ns() // 1_000_000,
            replaces=any(cause.replaces for cause in causes),
            leaves=leaves,
            bytes=now.bytes_of([leaf.oid for leaf in leaves]),
            behind_xid=0 if all(cause.locks for cause in causes) else inspection.xid,
            right_until=right_until if any(cause.misses for cause in causes) else None,
        )
        log.warning(
            "a table is doubtful: rows of it may be wrong until it is read again",
            table=str(name),
            reason=doubt.reason,
            size=size(doubt.bytes),
        )
        return [*records, *self._tables.reads.doubt(name, doubt, **update)]

    def _read_again(self) -> list[Record]:
        """Have the table read that has been doubtful longest, one at a time.

        A read waits for a check that began after the doubt. A new doubt triggers one at once.
        """
        doubts = [
            (state.doubt, state)
            for state in self._tables.states.values()
            if state.doubt is not None and not state.gone_ms and state.is_in_log
        ]
        if not doubts or self._last is None:
            return []
        if any(self._is_under_way(state) for _, state in doubts):
            return []
        records = list[Record]()
        for doubt, state in sorted(doubts, key=lambda pair: pair[0].since_ms):
            name = state.name
            if state.is_being_completed:
                continue
            watched = self._watched.get(name)
            if watched is not None and self._checked.get(name) != doubt:
                self._is_due |= watched.state.doubt != doubt
                continue
            if state.is_set_aside and watched is not None and name not in self._unhindered:
                continue
            obstacle = self._obstacle(state, doubt, is_watched=watched is not None)
            if not obstacle:
                self._tried.add((name, doubt.since_ms))
                self._unhindered.discard(name)  # if it is set aside again, a check decides
                leaves = self._leaves(state, doubt)
                log.info(
                    "a doubtful table is read again",
                    table=str(name),
                    partitions=len(leaves) or "all",
                )
                ask, read = self._tables.reads.ask, _left_out(state, leaves)
                reset, behind_xid = doubt.replaces, doubt.behind_xid
                asked = ask({name: None}, "", reset=reset, read=read, behind_xid=behind_xid)
                return [*records, *asked]
            refused = self._tables.reads.refuse(name, obstacle)
            if refused:
                log.warning(
                    "a doubtful table isn't read again",
                    table=str(name),
                    reason=obstacle,
                    remedy=f"millrace snapshot --reset {shlex.quote(str(name))}",
                )
            records += refused
        return records

    def _leaves(self, state: TableState, doubt: Doubt) -> Collection[int]:
        """Return the partitions to read. Empty: the whole table."""
        if doubt.replaces and self._tables.ended.replaced(state.name, doubt) is None:
            return ()
        return {leaf.oid for leaf in doubt.leaves}

    def _is_under_way(self, state: TableState) -> bool:
        """Whether a doubtful table is being read, and isn't stuck, for example behind a lock."""
        if not state.is_being_completed:
            self._progress.pop(state.name, None)
            return False
        now, rows = time.monotonic(), [request.rows for request in state.requests]
        if self._progress.get(state.name, ([], 0.0))[0] != rows:
            self._progress[state.name] = rows, now
        return now - self._progress[state.name][1] < _STUCK_S

    def _obstacle(self, state: TableState, doubt: Doubt, *, is_watched: bool) -> str:
        """Return why the daemon doesn't read a table again itself. Empty: it does."""
        settings, limit = self._settings, self._settings.doubt_reread_bytes_max
        name, table = state.name, self._last and self._last.catalog.get(state.name)
        aside = self._last.aside.get(name) if self._last and doubt.set_aside else None
        is_over = doubt.is_stopped or self._tables.obstacles.is_given_up(name)
        if is_over or (aside is None and (name, doubt.since_ms) in self._tried):
            return doubt.refused
        on_disk = table.bytes_of(self._leaves(state, doubt)) if table else doubt.bytes
        has = f"it has {size(on_disk)}, more than doubt.reread.bytes.max ({size(limit)})"
        by_select = "a SELECT of the configuration gives its rows, which blocks the stream"
        obstacles = {
            "it is no longer captured": not is_watched,
            "it isn't published": table is not None and not table.entry,
            "it is unlogged": state.fingerprint is not None and state.fingerprint.unlogged,
            "doubt.policy is set_aside": settings.doubt_policy == "set_aside",
            has: on_disk > limit,
            "its rows are left out of snapshots": not settings.snapshots(str(name)),
            by_select: str(name) in settings.snapshot_select_statements,
            "it can't be read while the daemon runs: stop it first": aside is not None
            and not aside.is_chunked,
        }
        return next((reason for reason, is_so in obstacles.items() if is_so), "")


def _doubtful_leaves(differences: Differences, finding: Finding) -> tuple[DoubtfulLeaf, ...]:
    """Return the doubtful partitions with their bounds. Empty: the whole table is doubtful."""
    there = finding.now.fingerprint.leaves if finding.now else ()
    attached = {leaf.oid: leaf.attached for leaf in there}
    return within_limit(
        DoubtfulLeaf(oid, attached[oid], finding.levels.get(oid, ())) for oid in differences.leaves
    )


def _left_out(state: TableState, leaves: Collection[int]) -> tuple[LeafRead, ...]:
    """Return the partitions that count as read if only some must be read."""
    if not leaves or state.fingerprint is None:
        return ()
    return tuple(
        LeafRead(leaf=leaf.oid, file=leaf.file, ranges=(ALL,))
        for leaf in state.fingerprint.leaves
        if leaf.oid not in leaves
    )
