"""Tables → their state records: the rows that the log has, and the reads that aren't done.

Each method that changes a state returns its records, which are written in the Kafka transaction of
the rows or events that they describe.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from cdc.errors import GapError
from cdc.events.rules import EventRules, rekeyed
from cdc.lines import name_first
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, is_readable_name
from cdc.records.state import (
    Doubt,
    Phase,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
)
from cdc.records.state_pieces import StateRecords
from cdc.records.topics import data_topic
from cdc.settings import Settings
from cdc.tables.doubts import LEFT, compare
from cdc.wal.messages import Relation, ReplicaIdentity

log = structlog.get_logger()
_LEFT_OUT: Final = 1
"""The OID of a table's entry in the publication if the lists leave it out: no entry has it."""
_WATCHED_S_MAX: Final = 60.0
"""The most time between two checks that counts as watched: no two are due further apart."""


class WaitingTable(NamedTuple):
    """A table that is read once the stream has reached the WAL's end at its discovery.

    ``xid`` (64 bits) is younger than every transaction open then. The log has nothing of it: a
    start finds the table as new again.
    """

    table: TableDescription
    wal_end: Lsn
    xid: int
    order: int


class TableStates(dict[TableName, TableState]):
    """The states of the captured tables, and of earlier ones. Only ``put`` changes them.

    Another thread can make a list of its values while a table is added.
    """

    def __init__(self, settings: Settings, states: Iterable[TableState], rules: EventRules) -> None:
        super().__init__({state.name: state for state in states})
        self._records = StateRecords(settings.capture.topic_prefix, self.values())
        self.requested = {name for name, state in self.items() if state.requests}
        """The tables with requested reads."""
        self.requested_changes = 0
        """Grows with every change of the requests, and of the tables set aside.

        After a change, all key tracking is set up again.
        """
        self.waiting: dict[TableName, WaitingTable] = {}
        """Tables that have joined, and whose reads can't begin yet."""
        self.checked: Position | None = None
        """The log is right up to there by the catalog check, except for what the states say."""
        self.watched_ms = 0
        """How long the catalog was watched."""
        self._watched_s: float | None = None
        self.prefix = settings.capture.topic_prefix
        self._lossless = settings.capture.lossless
        self._captures = settings.capture.captures
        self._partitions = settings.log.topic_partitions
        self._cleanup = settings.log.topic_cleanup_policy
        self._rules = rules

    def put(self, state: TableState) -> list[Record]:
        """Set a table's new state. Return its records."""
        before = self.get(state.name)
        self[state.name] = state
        if bool(state.requests) != (state.name in self.requested):
            self.requested ^= {state.name}
        is_as_before = _requests(state) == (_requests(before) if before else [])
        if not is_as_before or state.is_set_aside != (before is not None and before.is_set_aside):
            self.requested_changes += 1
        return self._records.of(state)

    def watch(self, asked_s: float) -> None:
        """Record that a check could judge all tables. ``asked_s``: when it began (monotonic).

        It doesn't count while a table that waits for its read has the name of one that is gone.
        """
        if any(name in self and self[name].gone_ms for name in self.waiting):
            return
        if self._watched_s is not None:
            self.watched_ms += round(1_000 * min(asked_s - self._watched_s, _WATCHED_S_MAX))
        self._watched_s = asked_s

    def right_until(self, table: TableName) -> Position:
        """Return the position up to which the log surely has a table right, unless doubtful."""
        return right_until(self[table], self.checked)

    def is_whole(self, table: TableName) -> bool:
        """Whether all of the table's rows are in the log."""
        return table in self and self[table].phase is Phase.STREAMING

    def had_all(self, table: TableName) -> bool:
        """Whether the log has all of the table's rows, or had them before they are read again."""
        return self.is_whole(table) or (table in self and self[table].was_whole)

    def has_read(self, relation: Relation, position: Position) -> bool:
        """Whether the table's snapshot shows commits at the position."""
        state = self.get(TableName(relation.namespace, relation.name))
        return state is not None and position < Position(state.epoch, state.snapshot_lsn, 0)

    def is_followed(self, table: TableName) -> bool:
        """Whether changes of the table enter the log: its rows are in it, or being read.

        This includes a table that is set aside.
        """
        state = self.get(table)
        if state is None or not state.is_in_log:
            return False
        return state.phase is Phase.STREAMING or bool(state.initial) or state.is_set_aside

    def is_set_aside(self, table: TableName) -> bool:
        """Whether the table's changes can't be captured."""
        state = self.get(table)
        return state is not None and state.is_set_aside

    def is_taken(self, table: TableName) -> bool:
        """Whether the stream captures the table's changes now, and doesn't skip them."""
        return table not in self.waiting and not self.is_set_aside(table)

    def is_made_anew(self, table: TableName, oid: int, entry: int) -> bool:
        """Whether it is another table now, or was unpublished while it was being read.

        ``oid`` and ``entry`` are the OIDs of the table and of its entry in the publication.
        """
        state = self.get(table)
        if state is None:
            return False
        if state.phase is Phase.STREAMING:  # the catalog check covers its entry
            return self._lossless and state.oid not in {0, oid}
        return state.oid != oid or state.entry not in {0, entry}

    def is_keyed(
        self, columns: tuple[Column, ...], table: TableName, identity: ReplicaIdentity
    ) -> bool:
        """Whether records of a table with these columns have a key."""
        return bool(self.key(columns, table, identity))

    def key(
        self, columns: tuple[Column, ...], table: TableName, identity: ReplicaIdentity
    ) -> set[str]:
        """Return the columns in the key of a table's records."""
        keyed = rekeyed(columns, table, identity, self._rules)
        return {column.name for column in keyed if column.key is not None}

    def begin_snapshot(
        self,
        table: TableDescription,
        position: Position,
        requests: tuple[SnapshotRequest, ...] = (SnapshotRequest(kind="initial"),),
        *,
        is_part: bool = False,
    ) -> list[Record]:
        """Begin a table's snapshot, or begin it again. Return the state records to write.

        ``is_part``: only partitions of it are read, and rows of dropped ones stay the same.
        """
        before = self.get(table.name)
        if before is not None and not before.is_in_log:
            before = None
        renamed = self.renamed(table.oid, table.name, position.commit_lsn)
        keyed = self.is_keyed(table.columns, table.name, table.replica_identity)
        cleanup = before.cleanup if before else self._cleanup if keyed else "delete"
        doubt = self.to_settle(table)
        begun = self.put(
            TableState(
                namespace=table.name.namespace,
                table=table.name.name,
                topic=data_topic(self.prefix, table.name),
                partitions=before.partitions if before else self._partitions,
                cleanup=cleanup,
                epoch=position.epoch,
                phase=Phase.SNAPSHOT,
                snapshot_lsn=position.commit_lsn,
                oid=table.oid,
                entry=table.entry,
                rows_estimated=table.rows_estimated,
                pages_total=table.pages,
                block_bytes=table.block_bytes,
                requests=requests,
                fingerprint=table.fingerprint,
                doubt=doubt and _of_part(doubt, table if is_part else None),
                ended=before.ended if before and is_part else (),
                gaps=before.gaps if before else (),
                gaps_total=before.gaps_total if before else 0,
                was_whole=self.had_all(table.name),
                begun_ms=time.time_ns() // 1_000_000,
            )
        )
        return [*renamed, *begun]

    def to_settle(self, table: TableDescription) -> Doubt | None:
        """Return the doubt that the table's new read must settle, also for missing changes."""
        before = self.get(table.name)
        if before is None or not before.is_in_log:
            return None
        read = {"set_aside": False, "refused": "", "is_stopped": False}
        doubt = before.doubt and before.doubt.model_copy(update=read)
        reason = _missed(before, table) if self.had_all(table.name) and self._lossless else ""
        if not reason:
            return doubt
        lacking = Doubt(
            reason=reason,
            since_ms=time.time_ns() // 1_000_000,
            replaces=True,
            right_until=self.right_until(table.name),
        )
        return lacking if doubt is None else doubt.and_also(lacking)

    def refused(self, table: TableDescription, position: Position, doubt: Doubt) -> list[Record]:
        """Record that a table can't be captured that the log has nothing of."""
        state = TableState(
            namespace=table.name.namespace,
            table=table.name.name,
            topic=data_topic(self.prefix, table.name),
            partitions=self._partitions,
            cleanup="delete",
            epoch=position.epoch,
            phase=Phase.CREATING,
            snapshot_lsn=Lsn(0),
            oid=table.oid,
            entry=table.entry,
            doubt=doubt,
        )
        return self.put(state)

    def forget(self, table: TableName) -> list[Record]:
        """Remove a state that has nothing in the log. Return the records that remove its own."""
        state = self.pop(table)
        assert not state.is_in_log  # noqa: S101 (a topic would belong to nobody)
        self.requested.discard(table)
        self.requested_changes += 1
        return self._records.gone(state)

    def appeared(
        self, relation: Relation, columns: tuple[Column, ...], since: Position, entry: int
    ) -> list[Record]:
        """Capture a table from here on, without the rows that it had before.

        The stream may be ahead of our session's view. Then the entry is 0 at first.
        """
        name = TableName(relation.namespace, relation.name)
        keyed = self.is_keyed(columns, name, relation.replica_identity)
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
        return self.put(state)

    def set_requests(
        self,
        table: TableName,
        requests: Iterable[SnapshotRequest],
        outcome: SnapshotOutcome | None = None,
        **update: object,
    ) -> list[Record]:
        """Record which reads of a table aren't done. Return its state's records.

        ``outcome`` is the end of a read that is no longer among them.
        """
        now: dict[str, object] = {
            "requests": tuple(requests),
            "ts_ms": time.time_ns() // 1_000_000,
            **update,
        }
        if outcome is not None:
            now["outcome"] = outcome
        return self.put(self[table].model_copy(update=now))

    def reset_tracking(self) -> None:
        """Record changed keys of tables in another way from here on."""
        self.requested_changes += 1

    def left_out(self, table: TableName) -> list[Record]:
        """Record that changes of a table are skipped, as the lists leave it out. Return its state.

        Captured again, it lacks them: that is a gap. Two names that aren't UTF-8 may be alike.
        """
        if not is_readable_name(table) and self._captures(str(table)):
            reason = "its name isn't UTF-8: rename it (docs/guides/postgresql.md, Encodings)"
            log.warning("changes of a table are ignored", table=str(table), reason=reason)
        state = self.get(table)
        if state is None or state.entry == _LEFT_OUT:
            return []
        log.info("changes of a table are ignored: the lists leave it out", table=str(table))
        return self.put(state.model_copy(update={"entry": _LEFT_OUT}))

    def renamed(self, oid: int, name: TableName, lsn: Lsn) -> list[Record]:
        """Record in a table's state since when it has another name."""
        return [
            record
            for state in list(self.values())
            if state.oid == oid and state.name != name
            if state.renamed_lsn is None and lsn > max(state.snapshot_lsn, state.joined_lsn)
            for record in self.put(state.model_copy(update={"renamed_lsn": lsn}))
        ]


def right_until(state: TableState, checked: Position | None) -> Position:
    """Return the position up to which a table is surely right, by state and catalog check."""
    if state.right_until is not None:
        return state.right_until
    if checked is not None and checked.epoch == state.epoch:
        return checked
    return Position(state.epoch, Lsn(0), 0)  # no check has been complete since the epoch began


def _of_part(doubt: Doubt, table: TableDescription | None) -> Doubt:
    """Return the doubt for a read of its existing partitions. ``table`` None: for all of it."""
    fingerprint = table.fingerprint if table else None
    there = {leaf.oid for leaf in fingerprint.leaves} if fingerprint else set[int]()
    left = tuple(leaf for leaf in doubt.leaves if leaf.oid in there)
    return doubt.model_copy(update={"leaves": left})


def _missed(before: TableState, table: TableDescription) -> str:
    """Return why the log may lack earlier changes of a described table. Empty: it can't.

    No check has covered the table since its state was written.
    """
    if before.oid not in {0, table.oid}:
        return "another table has its name"
    if before.right_until is not None:
        return "its changes weren't followed for a while"
    if table.entry and before.entry not in {0, table.entry}:
        return LEFT.reason
    if before.fingerprint is None or table.fingerprint is None:
        return ""
    differences = compare(before.fingerprint, table.fingerprint)
    causes = (*differences.causes, *differences.unproven.values())
    return "; ".join(cause.reason for cause in causes if cause.misses)


def _requests(state: TableState) -> list[tuple[str, str, int, int, bool, bool]]:
    """Return the requests for a table, without their progress."""
    return [
        (
            request.kind,
            request.signal,
            request.order,
            request.begun_ms,
            request.reset,
            request.paused,
        )
        for request in state.requests
    ]


def check_published(
    states: Iterable[TableState],
    now: Mapping[TableName, tuple[int, int]],
    lsn: Lsn | None = None,
) -> None:
    """Raise GapError for tables that differ from their read, or are published in another way.

    ``now`` has the OIDs of each table and of its entry in the publication, at ``lsn`` or today.
    """
    names = [
        str(state.name)
        for state in states
        if state.oid and (published := now.get(state.name)) is not None
        if published != (state.oid, state.entry or published[1])
        or (state.renamed_lsn is not None and (lsn is None or lsn > state.renamed_lsn))
    ]
    if names:
        raise GapError(
            "the log lacks changes of these tables: they left the publication or were renamed"
            " and came back, were created again, or are published with other columns or rows:"
            f" {name_first(names)}",
            remedy="read them again: millrace snapshot " + " ".join(names),
        )
