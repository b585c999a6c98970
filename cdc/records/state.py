"""The daemon's state ⇄ its state records in the log, which its next start and sinks read.

docs/decisions/0003-state-topics.md lists the topics, keys and readers. Each record has a format
number. A reader that meets a newer one stops (LogFormatError).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc.errors import LogFormatError
from cdc.records.fields import LsnField, PositionField
from cdc.records.fingerprint import DoubtfulLeaf, EndedPartition, TableFingerprint, within_limit
from cdc.records.position import FIRST_EPOCH, Lsn
from cdc.records.record import Record, to_json
from cdc.records.schema import TableName, TableSchema
from cdc.records.topics import Cleanup, progress_topic, schema_topic, table_topic

FORMAT: Final = 1
GAPS_MAX: Final = 20
"""How many of a table's gaps are listed, the newest ones."""


class Phase(StrEnum):
    """A stage in the life of a slot or of a table's snapshot."""

    CREATING = "creating"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


class SignalOffset(BaseModel):
    """A topic of signals, and its first offset that isn't processed yet."""

    model_config = ConfigDict(frozen=True)

    topic_id: str = ""
    offset: int = 0


class Progress(BaseModel):
    """The log's progress. The last committed record is authoritative, and the only one.

    ``log`` names the log: a new one under the same topics has another name. ``position``: every
    record up to it is in the log. ``cut``: every record up to it is in the log, and no transaction
    only in part: the newest position that a sink may apply up to. ``cut_ts_us``: commit time of the
    last transaction before the cut (µs since 1970, UTC; 0: none yet). ``flush_lsn``: the LSN that
    may be acknowledged to PostgreSQL. ``events`` counts data records ever written, including
    tombstones. ``last_commit_lsn``: the last whole transaction that the slot sent (or one before
    the slot; 0: unknown). ``signal_offsets``: for each topic, by its name, that signals came from,
    as the setting of the topic may change, and change back. ``checked``: the catalog check found
    the log right up to there, except for what states say. ``watched_ms``: how long checks have
    watched the catalog in total. This clock stops while no check covers all tables.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    log: str
    slot: str
    system_identifier: str
    timeline: int
    database: str
    phase: Phase
    position: PositionField
    cut: PositionField
    cut_ts_us: int = 0
    flush_lsn: LsnField
    last_commit_lsn: LsnField = Lsn(0)
    events: int = 0
    signal_offsets: Mapping[str, SignalOffset] = {}
    checked: PositionField | None = None
    watched_ms: int = 0
    ts_ms: int = 0

    def signal_offset(self, topic: str) -> SignalOffset:
        """Return the offset up to which signals of a topic were processed."""
        return self.signal_offsets.get(topic, SignalOffset())

    @property
    def is_first_start(self) -> bool:
        """Whether the log's first slot doesn't exist yet."""
        return self.phase is Phase.CREATING and self.position.epoch == FIRST_EPOCH


class LeafRead(BaseModel):
    """The rows of a leaf (a plain table, or a partition) that were read: ranges of TIDs.

    A TID is ``page << 16 | offset``. A range includes its first one, and excludes its end. ``file``
    is the leaf's filenode: another file has rows at other places.
    """

    model_config = ConfigDict(frozen=True)

    leaf: int
    file: int
    ranges: tuple[tuple[int, int], ...] = ()


class SnapshotRequest(BaseModel):
    """A read of a table's rows that isn't done.

    ``initial`` is the first read of a table that isn't complete yet. A ``signal`` or, without one,
    the daemon has asked for ``incremental`` and ``blocking`` reads. Requests are served by
    ``order``. ``condition`` is SQL: of an incremental snapshot the rows' condition, of a blocking
    one a whole SELECT. With ``reset`` the log's rows are removed first. ``read`` is its progress,
    ``rows`` the number of rows. It waits until all transactions have ended that are older than
    ``behind_xid`` (64 bits). ``obstacle`` is why the last attempt failed.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["initial", "incremental", "blocking"]
    signal: str = ""
    order: int = 0
    condition: str | None = None
    paused: bool = False
    reset: bool = False
    read: tuple[LeafRead, ...] = ()
    rows: int = 0
    begun_ms: int = 0
    behind_xid: int = 0
    obstacle: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the daemon asks, as DDL has changed the values of rows, and not a signal."""
        return self.kind == "incremental" and not self.signal

    def is_same(self, other: "SnapshotRequest") -> bool:
        """Whether it is the same request, regardless of its progress and of a pause."""
        mine = self.kind, self.signal, self.order, self.reset, self.begun_ms
        return mine == (other.kind, other.signal, other.order, other.reset, other.begun_ms)


class SnapshotOutcome(BaseModel):
    """The end of a read that a signal asked for. ``reason`` says why it failed.

    ``status`` is Debezium's, in its notifications; or ABORTED, if a signal has stopped it.
    """

    model_config = ConfigDict(frozen=True)

    signal: str
    status: Literal["SUCCEEDED", "EMPTY", "SQL_EXCEPTION", "ABORTED"]
    rows: int = 0
    reason: str = ""

    @property
    def failure(self) -> str:
        """Return why not all was read; empty if it was."""
        return "" if self.status in {"SUCCEEDED", "EMPTY"} else self.reason or self.status


class Gap(BaseModel):
    """A range in which changes of a table may be lost: after ``start``, up to ``end``.

    At its end a read brought the rows as of then, at ``ts_ms`` (ms since 1970). ``number`` counts
    the gaps of a table, from 1; 0: only a derived table has it.
    """

    model_config = ConfigDict(frozen=True)

    start: PositionField
    end: PositionField
    reason: str
    ts_ms: int
    number: int = 0


class Doubt(BaseModel):
    """Why rows of a table in the log may be wrong, since ``since_ms`` (ms since 1970).

    If a read has to ``replace`` them, rows may exist that the source doesn't have; otherwise the
    read only adds. ``leaves`` are the partitions to read; empty: all. ``bytes`` is the size on disk
    of doubtful rows. Transactions older than ``behind_xid`` (64 bits) may write in the old form:
    the read waits for their end. ``refused`` says why the daemon doesn't start the read.
    ``is_stopped``: a signal has stopped it, so the daemon doesn't try again. After ``right_until``
    changes may be missing, which no read restores (None: none are). ``set_aside``: its changes are
    skipped until a read begins that replaces all rows.
    """

    model_config = ConfigDict(frozen=True)

    reason: str
    since_ms: int
    replaces: bool = False
    leaves: tuple[DoubtfulLeaf, ...] = ()
    bytes: int = 0
    behind_xid: int = 0
    refused: str = ""
    is_stopped: bool = False
    right_until: PositionField | None = None
    set_aside: bool = False

    def and_also(self, later: "Doubt") -> "Doubt":
        """Merge both, to be settled by one read."""
        reasons = self.reason if later.reason in self.reason else f"{self.reason}; {later.reason}"
        named = (*self.leaves, *later.leaves) if self.leaves and later.leaves else ()
        leaves = {leaf.oid: leaf for leaf in named}
        right_until = [each for each in (self.right_until, later.right_until) if each is not None]
        return later.model_copy(
            update={
                "reason": reasons,
                "since_ms": self.since_ms,
                "replaces": self.replaces or later.replaces,
                "leaves": within_limit(leaves.values()),
                "bytes": max(self.bytes, later.bytes),
                "behind_xid": max(self.behind_xid, later.behind_xid),
                "right_until": min(right_until, default=None),
                "set_aside": self.set_aside or later.set_aside,
                "refused": later.refused or (self.refused if self.set_aside else ""),
            }
        )


class TableState(BaseModel):
    """A table's topic and its snapshot, written together with the rows that it counts.

    ``partitions`` and ``cleanup`` are the topic's original settings, permanently. ``oid`` and
    ``entry`` are the OIDs of the table and of its entry in the publication when its snapshot began.
    ``renamed_lsn`` is where the stream first saw it under another name. ``requests`` are reads that
    aren't done, written with the signal, and with every chunk's rows. ``outcome`` is the end of the
    last one that a signal asked for. ``pages_total`` and ``pages_done`` count the heap's pages (of
    ``block_bytes``; 0: unknown) of the active read, or of the last one. ``begun_ms`` is when the
    table's snapshot began (ms since 1970). ``joined_lsn`` is the WAL's end when a table appeared
    that is followed without its rows; ``joined_xid`` (64 bits) is younger than every transaction
    open then. ``fingerprint`` is the catalog's state before any current row was read,
    ``doubt`` the findings since. ``gone_ms`` is when the table was missing at the source (ms since
    1970; 0: it exists), in the cluster with the system identifier ``gone_system``;
    ``gone_watched_ms`` is the progress's ``watched_ms`` then. ``renamed_to`` is its new name, and
    ``is_name_taken`` says whether another table, or a view, that isn't published or can't be
    captured has the old one. ``ended`` are dropped partitions whose rows an event must end.
    ``gaps`` are the newest of ``gaps_total``. ``pieces`` names the records that have the beginning
    of lists that are cut short here (state_pieces.py). ``right_until`` is set if the catalog check
    no longer covers the table, as it is gone or the lists exclude it: the log was right up to
    there. ``was_whole``: the log had all its rows before its last first read, or reset, began. A
    sink shows the table once ``phase`` is streaming and its cut reaches
    ``(epoch, snapshot_lsn, 0)``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    namespace: str
    table: str
    topic: str
    partitions: int
    cleanup: Cleanup
    epoch: int
    phase: Phase
    snapshot_lsn: LsnField
    oid: int = 0
    entry: int = 0
    renamed_lsn: LsnField | None = None
    joined_lsn: LsnField = Lsn(0)
    joined_xid: int = 0
    rows_estimated: int = 0
    rows_sent: int = 0
    pages_total: int = 0
    pages_done: int = 0
    block_bytes: int = 0
    requests: tuple[SnapshotRequest, ...] = ()
    outcome: SnapshotOutcome | None = None
    fingerprint: TableFingerprint | None = None
    doubt: Doubt | None = None
    gone_ms: int = 0
    gone_system: str = ""
    gone_watched_ms: int = 0
    renamed_to: str = ""
    is_name_taken: bool = False
    gaps: tuple[Gap, ...] = ()
    gaps_total: int = 0
    right_until: PositionField | None = None
    was_whole: bool = False
    ended: tuple[EndedPartition, ...] = ()
    pieces: Mapping[str, tuple[str, ...]] = {}
    begun_ms: int = 0
    ts_ms: int = 0

    @property
    def name(self) -> TableName:
        """Return the table that this record describes."""
        return TableName(self.namespace, self.table)

    @property
    def initial(self) -> SnapshotRequest | None:
        """Return the read that completes the table, if it isn't done."""
        return next((request for request in self.requests if request.kind == "initial"), None)

    @property
    def is_being_completed(self) -> bool:
        """Whether an active read brings the log rows that it lacks, or has wrong."""
        return any(request.kind == "initial" or request.is_own for request in self.requests)

    @property
    def is_in_log(self) -> bool:
        """Whether it has a topic. A table that could never be captured has only this record."""
        return self.phase is not Phase.CREATING

    @property
    def is_set_aside(self) -> bool:
        """Whether the stream skips its changes, as they can't be captured."""
        return self.doubt is not None and self.doubt.set_aside

    @property
    def is_to_settle(self) -> bool:
        """Whether it is doubtful, and the daemon reads it again for that reason."""
        is_paused = any(request.paused for request in self.requests)
        is_open = self.doubt is not None and not (self.doubt.refused or self.doubt.set_aside)
        return is_open and not is_paused and not self.gone_ms

    @property
    def is_left_unread(self) -> bool:
        """Whether rows of it are missing that no read brings: it is gone, or was left out."""
        is_unread = not self.requests and self.phase is not Phase.STREAMING
        return is_unread and not self.is_set_aside

    @property
    def gone_partitions(self) -> int:
        """Return the number of dropped partitions whose rows the log keeps."""
        gone = set(self.fingerprint.gone_bounds if self.fingerprint else ())
        return len(gone.difference(*(partition.leaves for partition in self.ended)))

    @property
    def share_read(self) -> float:
        """Return the active read's share, from 0 to 1.

        Without one: whether the table is complete.
        """
        if not self.requests and self.phase is Phase.STREAMING:
            return 1.0
        return self.pages_done / max(1, self.pages_total)

    def share_of(self, request: SnapshotRequest) -> float:
        """Return the share of one read. A read that waits for another one has none yet."""
        return self.pages_done / max(1, self.pages_total) if request.read else 0.0


StateRecord = TypeVar("StateRecord", bound=BaseModel)


def parse_state(kind: type[StateRecord], value: bytes, topic: str) -> StateRecord:
    """Parse a state record. Raise LogFormatError if it is from a newer Millrace, or damaged."""
    try:
        return kind.model_validate_json(value)
    except ValidationError as error:
        first = error.errors()[0]
        field, found = ".".join(map(str, first["loc"])), first["input"]
        if field == "format" and isinstance(found, int) and FORMAT < found < 1 << 31:
            raise LogFormatError(
                f"a record of {kind.__name__} has format {found}, newer than {FORMAT}",
                where=f"topic {topic}",
                remedy="upgrade this Millrace: a newer one has written to the log",
            ) from error
        problem = f"{field}: {first['msg']}"[:300]  # the content may be foreign, and long
        raise LogFormatError(
            f"a record of {kind.__name__} can't be read: {problem}",
            where=f"topic {topic}",
            remedy="let no other program write to this topic; if none does, report this",
        ) from error


def progress_key(slot: str) -> bytes:
    """Return the key of a slot's progress. The newest record with it is authoritative."""
    return to_json({"slot": slot})


def table_key(table: TableName) -> bytes:
    """Return the key of a table's state."""
    return to_json({"table": str(table)})


def schema_key(table: TableName, version: int) -> bytes:
    """Return the key of one version of a table's schema: compaction never loses a version."""
    return to_json({"table": str(table), "version": version})


def progress_record(prefix: str, progress: Progress) -> Record:
    """Return the progress record, to be written in the transaction of the rows up to there."""
    return _record(progress_topic(prefix), progress_key(progress.slot), progress)


def table_record(prefix: str, state: TableState) -> Record:
    """Return the table record, to be written in the transaction of the rows it counts."""
    return _record(table_topic(prefix), table_key(state.name), state)


def schema_record(prefix: str, schema: TableSchema) -> Record:
    """Return the schema record, to be written in the transaction of the version's first row."""
    return _record(schema_topic(prefix), schema_key(schema.name, schema.version), schema)


def _record(topic: str, key: bytes, model: BaseModel) -> Record:
    return Record(topic, key, model.model_dump_json().encode(), [], 0)
