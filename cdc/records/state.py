"""State records: what the daemon keeps in the log about itself, read by its next start and sinks.

docs/decisions/0003-state-topics.md lists the topics, keys and who reads them. Each record has a
format number; a reader that meets a newer one stops (LogFormatError).
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
"""So many of a table's gaps are listed, the newest ones."""


class Phase(StrEnum):
    """How far the life of a slot or of a table's snapshot has come."""

    CREATING = "creating"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


class SignalOffset(BaseModel):
    """An offset in a topic of signals: which topic it is, and the first that isn't followed yet."""

    model_config = ConfigDict(frozen=True)

    topic_id: str = ""
    offset: int = 0


class Progress(BaseModel):
    """How far the log goes. The last committed one is the truth; there is no other place.

    ``log`` names the log: a new one under the same topics has another name.
    ``position``: every record up to it is in the log. ``cut``: every record up to it is in the
    log, and no transaction is there in part: the newest position that a sink may apply up to.
    ``cut_ts_us``: commit time of the last transaction before the cut (µs since 1970, UTC; 0: none
    yet). ``flush_lsn``: what may be acknowledged to PostgreSQL. ``events`` counts data records
    ever written, tombstones too. ``last_commit_lsn``: the last whole transaction that the slot sent
    (or what was before the slot; 0: not known). ``signal_offsets`` are of each topic, by its name,
    that signals came from: which one is followed is a setting, that may change, and change back.
    ``checked``: up to there the log is right, by the catalog check, but for what states say.
    ``watched_ms`` is for how long checks have watched the catalog, all in all: a clock that stands
    still while none is made, or none can tell of all tables.
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
        """Up to where a topic of signals was followed."""
        return self.signal_offsets.get(topic, SignalOffset())

    @property
    def is_first_start(self) -> bool:
        """Whether the log's first slot is still to be made."""
        return self.phase is Phase.CREATING and self.position.epoch == FIRST_EPOCH


class LeafRead(BaseModel):
    """Which rows of a leaf (a plain table, or a partition) were read: ranges of TIDs.

    A TID is ``page << 16 | offset``; a range has its first one, and not its end. ``file`` is the
    leaf's filenode: in another file rows stand in other places.
    """

    model_config = ConfigDict(frozen=True)

    leaf: int
    file: int
    ranges: tuple[tuple[int, int], ...] = ()


class SnapshotRequest(BaseModel):
    """A read of a table's rows that isn't done.

    ``initial`` is what a table that isn't whole yet begins with; ``incremental`` and ``blocking``
    were asked for by a ``signal`` or, without one, by the daemon. Requests are served by ``order``.
    ``condition`` is SQL: of an incremental snapshot the rows' condition, of a blocking one a whole
    SELECT. With ``reset`` the rows that the log has are to go first. ``read`` says how far it is,
    ``rows`` how many it had. It waits until all transactions have ended that are older than
    ``behind_xid`` (64 bits). ``obstacle`` is why the last try has failed.
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
        """Whether it is one request, however far it is, and paused or not."""
        mine = self.kind, self.signal, self.order, self.reset, self.begun_ms
        return mine == (other.kind, other.signal, other.order, other.reset, other.begun_ms)


class SnapshotOutcome(BaseModel):
    """How a read that a signal asked for has ended; ``reason`` says why nothing came of it.

    ``status`` is Debezium's, in its notifications; or ABORTED, where a signal has stopped it.
    """

    model_config = ConfigDict(frozen=True)

    signal: str
    status: Literal["SUCCEEDED", "EMPTY", "SQL_EXCEPTION", "ABORTED"]
    rows: int = 0
    reason: str = ""

    @property
    def failure(self) -> str:
        """Why not all was read; empty where it was."""
        return "" if self.status in {"SUCCEEDED", "EMPTY"} else self.reason or self.status


class Gap(BaseModel):
    """Where changes of a table may lack for ever: behind ``start``, up to ``end``.

    There a read has brought the rows as they were then, at ``ts_ms`` (ms since 1970). ``number``
    counts the gaps of a table, from 1; 0: a derived table alone has it.
    """

    model_config = ConfigDict(frozen=True)

    start: PositionField
    end: PositionField
    reason: str
    ts_ms: int
    number: int = 0


class Doubt(BaseModel):
    """Why the log may have rows of a table wrong, since ``since_ms`` (ms since 1970).

    Rows may be there that the source doesn't have where a read has to ``replace`` them; otherwise
    it only adds. ``leaves`` are the partitions to read; empty: all. ``bytes`` is the size on disk
    of what is doubtful. What transactions older than ``behind_xid`` (64 bits) write may look as it
    did before: the read waits for their end. ``refused`` says why the daemon doesn't read it by
    itself; ``is_stopped``: a signal has stopped that, so it doesn't try again. Behind
    ``right_until`` changes may be missing, which no read brings back (None: none are).
    ``set_aside``: its changes aren't taken until a read begins that replaces all rows.
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
        """Both, to be settled by one read."""
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
    """A table's topic and its snapshot: written with the rows that it speaks of.

    ``partitions`` and ``cleanup`` are what the topic was made with, for ever. ``oid`` and
    ``entry`` are the OIDs of the table and of its entry in the publication when its snapshot began;
    ``renamed_lsn`` is where the stream first saw it under another name. ``requests`` are reads that
    aren't done, written with the signal, and with every chunk's rows; ``outcome`` is how the last
    one has ended that a signal asked for. ``pages_total`` and ``pages_done`` count the heap's pages
    (of ``block_bytes``; 0: not known) of the read under way, or of the last one; ``begun_ms`` is
    when the table's snapshot began (ms since 1970). ``joined_lsn`` is where the WAL ended when a
    table was seen that is followed without its rows, ``joined_xid`` (64 bits) a transaction that is
    younger than whatever was open then. ``fingerprint`` is what the catalog said of it before any
    row was read that counts, ``doubt`` what was found out since; ``gone_ms`` is when the table was
    missing at the source (ms since 1970; 0: it is there), in the cluster with the system identifier
    ``gone_system``; ``gone_watched_ms`` is the progress's ``watched_ms`` then. ``renamed_to`` is
    the name that it has instead, and ``is_name_taken`` says whether another table, or a view,
    that isn't published or can't be captured has its own. ``ended`` are dropped partitions whose
    rows an event is to end. ``gaps`` are the newest of ``gaps_total``. ``right_until`` is set where
    the catalog check doesn't look any more, as the table is gone or the lists leave it out: the log
    was right up to there. ``was_whole``: the log had all rows of it before its last first read, or
    reset, began. A sink shows the table once ``phase`` is streaming and its cut reaches
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
    begun_ms: int = 0
    ts_ms: int = 0

    @property
    def name(self) -> TableName:
        """The table that this record speaks of."""
        return TableName(self.namespace, self.table)

    @property
    def initial(self) -> SnapshotRequest | None:
        """The read by which the table becomes whole, if that isn't done."""
        return next((request for request in self.requests if request.kind == "initial"), None)

    @property
    def is_being_completed(self) -> bool:
        """Whether a read is under way by which the log gets rows that it lacks, or has wrong."""
        return any(request.kind == "initial" or request.is_own for request in self.requests)

    @property
    def is_in_log(self) -> bool:
        """Whether it has a topic; of one that could never be captured there is this record only."""
        return self.phase is not Phase.CREATING

    @property
    def is_set_aside(self) -> bool:
        """Whether the stream goes past its changes, as they can't be taken."""
        return self.doubt is not None and self.doubt.set_aside

    @property
    def is_to_settle(self) -> bool:
        """Whether it is doubtful, and the daemon reads it again for that."""
        is_paused = any(request.paused for request in self.requests)
        is_open = self.doubt is not None and not (self.doubt.refused or self.doubt.set_aside)
        return is_open and not is_paused and not self.gone_ms

    @property
    def is_left_unread(self) -> bool:
        """Whether rows of it are missing that nobody reads: it is gone, or was left out."""
        is_unread = not self.requests and self.phase is not Phase.STREAMING
        return is_unread and not self.is_set_aside

    @property
    def gone_partitions(self) -> int:
        """Of how many dropped partitions the log keeps the rows."""
        gone = set(self.fingerprint.gone_bounds if self.fingerprint else ())
        return len(gone.difference(*(partition.leaves for partition in self.ended)))

    @property
    def share_read(self) -> float:
        """How much of it the read under way has, from 0 to 1; with none, whether it is whole."""
        if not self.requests and self.phase is Phase.STREAMING:
            return 1.0
        return self.pages_done / max(1, self.pages_total)

    def share_of(self, request: SnapshotRequest) -> float:
        """The same of one read: of those that wait for another one there is nothing yet."""
        return self.pages_done / max(1, self.pages_total) if request.read else 0.0


StateRecord = TypeVar("StateRecord", bound=BaseModel)


def parse_state(kind: type[StateRecord], value: bytes, topic: str) -> StateRecord:
    """Read a state record; raises LogFormatError when it is newer than us, or damaged."""
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
        problem = f"{field}: {first['msg']}"[:300]  # what is there may be anybody's, and long
        raise LogFormatError(
            f"a record of {kind.__name__} can't be read: {problem}",
            where=f"topic {topic}",
            remedy="let no other program write to this topic; if none does, report this",
        ) from error


def progress_key(slot: str) -> bytes:
    """Key of a slot's progress: the newest record under it is the truth."""
    return to_json({"slot": slot})


def table_key(table: TableName) -> bytes:
    """Key of a table's state."""
    return to_json({"table": str(table)})


def schema_key(table: TableName, version: int) -> bytes:
    """Key of one version of a table's schema: compaction never loses a version."""
    return to_json({"table": str(table), "version": version})


def progress_record(prefix: str, progress: Progress) -> Record:
    """The progress topic's record, to be written in the transaction of the rows up to there."""
    return _record(progress_topic(prefix), progress_key(progress.slot), progress)


def table_record(prefix: str, state: TableState) -> Record:
    """The table topic's record, to be written in the transaction of the rows it counts."""
    return _record(table_topic(prefix), table_key(state.name), state)


def schema_record(prefix: str, schema: TableSchema) -> Record:
    """The schema topic's record, to be written in the transaction of the version's first row."""
    return _record(schema_topic(prefix), schema_key(schema.name, schema.version), schema)


def _record(topic: str, key: bytes, model: BaseModel) -> Record:
    return Record(topic, key, model.model_dump_json().encode(), [], 0)
