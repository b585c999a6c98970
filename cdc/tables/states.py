"""Tables → their state records: which of their rows the log has, and which reads aren't done.

Each method that changes a state returns its record, to be written in the Kafka transaction of what
it speaks of.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from cdc.errors import GapError
from cdc.events.rules import EventRules, rekeyed
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName
from cdc.records.state import (
    Phase,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
    table_record,
)
from cdc.records.topics import data_topic
from cdc.settings import Settings
from cdc.wal.messages import Relation, ReplicaIdentity

log = structlog.get_logger()
_LEFT_OUT: Final = 1
"""As the OID of a table's entry in the publication: no entry has it."""


class Joining(NamedTuple):
    """A table that is to be read once the stream has come to where the WAL ended when it was seen.

    ``xid`` (64 bits) is younger than whatever was open then. Nothing of it is in the log: a start
    finds the table as new as it was.
    """

    table: TableDescription
    wal_end: Lsn
    xid: int
    order: int


class TableStates:
    """The states of the captured tables, and of those that once were."""

    def __init__(self, settings: Settings, states: Iterable[TableState], rules: EventRules) -> None:
        self.states = {state.name: state for state in states}
        self.requested = {name for name, state in self.states.items() if state.requests}
        """The tables that are to be read."""
        self.requested_changes = 0
        """Grows with what is asked of tables: who watches which has to be looked up again."""
        self.joining: dict[TableName, Joining] = {}
        self.prefix = settings.capture.topic_prefix
        self._partitions = settings.log.topic_partitions
        self._cleanup = settings.log.topic_cleanup_policy
        self._rules = rules

    def unread(
        self, described: Iterable[TableDescription], again: Collection[str] = ()
    ) -> list[TableDescription]:
        """The tables whose rows aren't all in the log yet, and those asked for again."""
        return [
            table
            for table in described
            if str(table.name) in again or not self.is_whole(table.name)
        ]

    def is_whole(self, table: TableName) -> bool:
        """Whether all of the table's rows are in the log."""
        return table in self.states and self.states[table].phase is Phase.STREAMING

    def has_read(self, relation: Relation, position: Position) -> bool:
        """Whether the table's snapshot shows what was committed at the position."""
        state = self.states.get(TableName(relation.namespace, relation.name))
        return state is not None and position < Position(state.epoch, state.snapshot_lsn, 0)

    @property
    def is_to_read(self) -> bool:
        """Whether anything is read without more being asked: what is paused holds up its table."""
        return bool(self.joining) or any(not _is_held(self.states[name]) for name in self.requested)

    @property
    def is_all_read(self) -> bool:
        """Whether no table's first read is under way."""
        return not self.joining and not any(state.initial for state in self.states.values())

    def is_all_shown(self, cut: Position) -> bool:
        """Whether no table's first read is under way, and derived tables show all at that cut."""
        whole = [one for one in self.states.values() if one.phase is Phase.STREAMING]
        is_right = self.is_all_read and not any(one.is_being_completed for one in whole)
        return is_right and all(Position(one.epoch, one.snapshot_lsn, 0) <= cut for one in whole)

    def is_followed(self, table: TableName) -> bool:
        """Whether changes of the table go into the log: its rows are there, or being read."""
        state = self.states.get(table)
        return state is not None and (state.phase is Phase.STREAMING or bool(state.initial))

    def is_made_anew(self, table: TableName, oid: int, entry: int) -> bool:
        """Whether what is being read is another table by now, or was unpublished in between.

        ``oid`` and ``entry`` are its own, and that of its entry in the publication.
        """
        state = self.states.get(table)
        if state is None or state.phase is Phase.STREAMING:
            return False
        return state.oid != oid or state.entry not in {0, entry}

    def begin_snapshot(
        self,
        table: TableDescription,
        position: Position,
        requests: tuple[SnapshotRequest, ...] = (SnapshotRequest(kind="initial"),),
    ) -> list[Record]:
        """Start (or start again) a table's snapshot; returns the state records to write."""
        known = self.states.get(table.name)
        renamed = self._renamed(table.oid, table.name, position.commit_lsn)
        keyed = self._is_keyed(table.columns, table.name, table.replica_identity)
        begun = self._set(
            TableState(
                namespace=table.name.namespace,
                table=table.name.name,
                topic=data_topic(self.prefix, table.name),
                partitions=known.partitions if known else self._partitions,
                cleanup=self._cleanup if keyed else "delete",
                epoch=position.epoch,
                phase=Phase.SNAPSHOT,
                snapshot_lsn=position.commit_lsn,
                oid=table.oid,
                entry=table.entry,
                rows_estimated=table.rows_estimated,
                pages_total=table.pages,
                block_bytes=table.block_bytes,
                requests=requests,
                begun_ms=time.time_ns() // 1_000_000,
            )
        )
        return [*renamed, begun]

    def _appeared(
        self, relation: Relation, columns: tuple[Column, ...], since: Position, entry: int
    ) -> Record:
        """Capture a table from here on, without the rows that it had before.

        The stream may be ahead of what our session sees: then the entry is 0, for now.
        """
        name = TableName(relation.namespace, relation.name)
        keyed = self._is_keyed(columns, name, relation.replica_identity)
        state = TableState(
            namespace=name.namespace,
            table=name.name,
            topic=data_topic(self.prefix, name),
            partitions=self._partitions,
            cleanup=self._cleanup if keyed else "delete",
            epoch=since.epoch,
            phase=Phase.STREAMING,
            snapshot_lsn=since.commit_lsn,
            oid=relation.oid,
            entry=entry,
        )
        return self._set(state)

    def _is_keyed(
        self, columns: tuple[Column, ...], table: TableName, identity: ReplicaIdentity
    ) -> bool:
        return any(column.key for column in rekeyed(columns, table, identity, self._rules))

    def read_altered(self, table: TableName, columns: Sequence[str]) -> list[Record]:
        """Note that a table's rows are to be read again, since DDL has changed their values.

        Not where all of them are about to be read anyway, by what nobody can take back; a read of
        the same kind that is under way begins anew. Returns the states' records.
        """
        asked = self.states[table].requests
        if any((one.kind == "initial" or one.is_own) and not one.read for one in asked):
            return []
        told = {"table": str(table), "columns": columns}
        log.info("columns were altered: the rows are read again while streaming", **told)
        others = [one for one in asked if not one.is_own]
        left = [self.set_requests(table, others)] if len(others) < len(asked) else []
        return [*left, *self.ask([str(table)], None, "")]

    def ask(self, names: Collection[str], condition: str | None, signal: str) -> list[Record]:
        """Note that rows, or those that meet a condition, are to be read; returns the records.

        ``signal`` is the one that asks; empty: the daemon itself, which doesn't give up.
        """
        made = []
        last = max((one.order for each in self.states.values() for one in each.requests), default=0)
        now_ms = time.time_ns() // 1_000_000
        for name, state in list(self.states.items()):
            if str(name) in names:
                last += 1
                request = SnapshotRequest(
                    kind="incremental",
                    signal=signal,
                    order=last,
                    condition=condition,
                    begun_ms=now_ms,
                    behind_xid=state.joined_xid,
                )
                made.append(self.set_requests(name, [*state.requests, request]))
        return made

    def not_done(self, asked: Mapping[TableName, Collection[str]]) -> dict[str, str]:
        """Why not all was read of tables that these signals, or nobody, had asked for."""
        found = {}
        for state in map(self.states.__getitem__, asked.keys() & self.states.keys()):
            outcome = state.outcome
            if outcome is not None and outcome.signal and outcome.signal in asked[state.name]:
                if outcome.failure:
                    found[str(state.name)] = outcome.failure
            elif state.is_left_unread:
                found[str(state.name)] = "it is gone, or was left out"
        return found

    def resume(self, names: Collection[str]) -> list[Record]:
        """Let what is paused of the named tables, or of all, go on; returns the states' records."""
        return [
            self.set_requests(
                name, [one.model_copy(update={"paused": False}) for one in state.requests]
            )
            for name, state in list(self.states.items())
            if not names or str(name) in names
            if any(one.paused for one in state.requests)
        ]

    def advance(
        self, table: TableName, request: SnapshotRequest, pages: int, pages_done: int
    ) -> Record:
        """Note how far a read of the table is; returns its state record."""
        state = self.states[table]
        requests = (
            request.model_copy(update={"paused": one.paused}) if one.is_same(request) else one
            for one in state.requests  # a signal may have come since the read was looked after
        )
        rows = request.rows if request.kind == "initial" else state.rows_sent
        return self.set_requests(
            table, requests, rows_sent=rows, pages_total=pages, pages_done=pages_done
        )

    def read_anew(self, table: TableName) -> Record:
        """Begin a table's first read once more; returns its state record.

        An event has left out values that no chunk may have brought, nor will.
        """
        state = self.states[table]
        others = [one for one in state.requests if one.kind != "initial"]
        before = state.initial or SnapshotRequest(kind="initial")
        if before.read:
            log.warning("a table is read anew: changed rows lack values", table=str(table))
        now_ms = max(time.time_ns() // 1_000_000, before.begun_ms + 1)
        anew = before.model_copy(update={"read": (), "rows": 0, "begun_ms": now_ms})
        self.watched_anew()
        return self.set_requests(table, [anew, *others], phase=Phase.SNAPSHOT, rows_sent=0)

    def finish(
        self,
        table: TableName,
        request: SnapshotRequest,
        at: Position,
        pages: int,
        outcome: SnapshotOutcome | None = None,
    ) -> Record:
        """Note that a read of the table is done, at a position; returns its state record."""
        requests = [one for one in self.states[table].requests if not one.is_same(request)]
        update: dict[str, object] = {"pages_total": pages, "pages_done": pages}
        if request.kind == "initial":
            update |= {
                "phase": Phase.STREAMING,
                "snapshot_lsn": at.commit_lsn,
                "rows_sent": request.rows,
            }
        return self.set_requests(table, requests, outcome, **update)

    def finish_initial(self, table: TableName, at: Position) -> Record:
        """Note that a table is whole, with whatever was read of it; returns its state record."""
        state = self.states[table]
        assert state.initial is not None  # noqa: S101 (it has one until it is whole)
        return self.finish(table, state.initial, at, state.pages_total)

    def set_requests(
        self,
        table: TableName,
        requests: Iterable[SnapshotRequest],
        outcome: SnapshotOutcome | None = None,
        **update: object,
    ) -> Record:
        """Note which reads of a table aren't done; returns its state record.

        ``outcome`` is how one has ended that isn't among them any more.
        """
        now: dict[str, object] = {
            "requests": tuple(requests),
            "ts_ms": time.time_ns() // 1_000_000,
            **update,
        }
        if outcome is not None:
            now["outcome"] = outcome
        return self._set(self.states[table].model_copy(update=now))

    def watched_anew(self) -> None:
        """Changes of tables are to be told in another way from here on."""
        self.requested_changes += 1

    def _left_out(self, table: TableName) -> list[Record]:
        """Note that changes of a table go by, since the lists leave it out; returns its state.

        Captured again, it lacks them: that is a gap.
        """
        state = self.states.get(table)
        if state is None or state.entry == _LEFT_OUT:
            return []
        log.info("changes of a table go by: the lists leave it out", table=str(table))
        return [self._set(state.model_copy(update={"entry": _LEFT_OUT}))]

    def _renamed(self, oid: int, name: TableName, lsn: Lsn) -> list[Record]:
        """Note in a table's state that it goes by another name since then."""
        return [
            self._set(state.model_copy(update={"renamed_lsn": lsn}))
            for state in list(self.states.values())
            if state.oid == oid and state.name != name
            if state.renamed_lsn is None and lsn > max(state.snapshot_lsn, state.joined_lsn)
        ]

    def _set(self, state: TableState) -> Record:
        before = self.states.get(state.name)
        self.states[state.name] = state
        if bool(state.requests) != (state.name in self.requested):
            self.requested ^= {state.name}
        if _asked(state) != (_asked(before) if before else []):
            self.requested_changes += 1
        return table_record(self.prefix, state)


def _asked(state: TableState) -> list[tuple[str, str, int, int, bool, bool]]:
    return [
        (one.kind, one.signal, one.order, one.begun_ms, one.reset, one.paused)
        for one in state.requests
    ]


def _is_held(state: TableState) -> bool:
    """Whether the table's next read is paused; those that block the stream go past it."""
    is_blocking = any(one.kind == "blocking" for one in state.requests)
    return not is_blocking and min(state.requests, key=lambda one: one.order).paused


def check_published(
    states: Iterable[TableState],
    now: Mapping[TableName, tuple[int, int]],
    lsn: Lsn | None = None,
) -> None:
    """Raise GapError for tables that aren't, or aren't published, as when they were read.

    ``now`` has the OIDs of each table and of its entry in the publication, at ``lsn`` or today.
    """
    names = [
        str(state.name)
        for state in states
        if state.oid and (found := now.get(state.name)) is not None
        if found != (state.oid, state.entry or found[1])
        or (state.renamed_lsn is not None and (lsn is None or lsn > state.renamed_lsn))
    ]
    if names:
        raise GapError(
            "tables left the publication or had another name, and came back, were made anew, or are"
            " published with other columns or rows: what they lack isn't in the log:"
            f" {', '.join(names[:20])}",
            remedy="read them again: millrace snapshot " + " ".join(names),
        )
