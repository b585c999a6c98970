"""The progress index → who runs, the plan that is under way, and how far each index is.

Documents of ours in ``<index.prefix>millrace-progress``, each written with ``if_seq_no``, so that
of two writers one wins and the other learns it: ``run/<topic.prefix>`` holds the plan of the last
run, started or done, and its owner; ``table/<topic.prefix>/<schema>.<table>`` holds what a table's
index has been given and how far a load is, ``document/<topic.prefix>/<name>`` the same of joined
documents.

The owner's heartbeat only keeps two runs from doing the same work twice. Correctness doesn't hang
on it: a run that lost its claim repeats what the winner's plan, which is the same plan, says, and
can't record anything (docs/decisions/0004-sinks-and-cuts.md).
"""

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Final, Literal, Self, TypeVar
from uuid import uuid4

from opensearchpy import ConflictError, NotFoundError, OpenSearch
from pydantic import BaseModel, ConfigDict, ValidationError

from cdc.errors import BusyError, LogFormatError, MillraceError
from cdc.settings.search import PROGRESS_INDEX, Document
from sinks.changes.ends import RowsEnd
from sinks.run.cut_run import CutRecord
from sinks.run.plan import RunPlan
from sinks.run.summary import LastCheck, RunOutcome
from sinks.search.client import IF_THERE, PATIENT, Patience, create_own, fetch, insist
from sinks.search.indexes import Generation

SILENCE_S_MAX: Final = 30.0
"""After this long without a heartbeat a run counts as dead; a clock may be off by half of it."""
BEAT_S: Final = 5.0
BRIEF: Final = Patience(total_s=1.0)
"""For what is tried again anyway, and for what mustn't delay the news of a failure."""
_RECORDS_MAX: Final = 10_000

ProgressRecord = TypeVar("ProgressRecord", bound=BaseModel)
StoredVersion = Mapping[str, Any]
"""What the server compares with before it writes, as a request's parameters."""


def now_ms() -> int:
    """Milliseconds since 1970, as records have them."""
    return time.time_ns() // 1_000_000


class Owner(BaseModel):
    """The process that runs; ``token`` tells two runs of one process apart."""

    model_config = ConfigDict(frozen=True)

    host: str
    pid: int
    token: str
    beat_ms: int

    def alive(self, now_ms: int) -> bool:
        """Whether the process may still run: its heart beats, and if it is ours, it exists."""
        if now_ms - self.beat_ms > SILENCE_S_MAX * 1000:
            return False
        if self.host != socket.gethostname() or self.pid == os.getpid():
            return True
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True


class RunRecord(BaseModel):
    """The last run: its plan, and its outcome once nothing of it is under way any more.

    ``checked`` is when a run last found nothing to do.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    plan: RunPlan | None = None
    outcome: RunOutcome | None = None
    checked: LastCheck = LastCheck()
    owner: Owner | None = None


class TableGeneration(Generation):
    """An index of a table; ``overrides`` are the user's for it (``Indexed.overrides``).

    Documents may have values of columns that were dropped, where it ``has_dropped`` ones.
    """

    overrides: str = ""
    has_dropped: bool = False


class TableLoad(BaseModel):
    """An index that is being loaded: it has what is before the offsets ``loaded``.

    ``ts_ms`` is when it got that far.
    """

    model_config = ConfigDict(frozen=True)

    into: TableGeneration
    loaded: dict[int, int] = {}
    ts_ms: int = 0


class TableRecord(BaseModel):
    """What a table has been given: everything before ``offsets``, up to ``cut`` (text).

    The index that ``serves`` has all of it, once there is one. The one that is ``loading`` to take
    its place has what its load has come to, and ends there, too. Neither has what the table was
    ``emptied`` of.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    run: int
    serves: TableGeneration | None = None
    loading: TableLoad | None = None
    cut: str
    offsets: dict[int, int]
    schema_version: int
    emptied: RowsEnd | None = None

    @property
    def newest(self) -> TableGeneration | None:
        """The index that was made last."""
        return self.loading.into if self.loading is not None else self.serves


class JoinedIndex(Generation):
    """An index of joined documents, and what these are like.

    ``columns`` has the identity of each column of the joined tables, which another one of its name
    hasn't, and what its values are like. ``mapping`` is the server's. Documents may have values of
    columns that were dropped, where it ``has_dropped`` ones; both then have these, too.
    """

    definition: Document
    columns: dict[str, tuple[str, str]]
    mapping: dict[str, Any]
    has_dropped: bool = False


DocumentRecord = CutRecord[JoinedIndex]
"""How far a joined document's indexes are."""


class Ledger:
    """The progress documents of one topic prefix."""

    def __init__(self, client: OpenSearch, index_prefix: str, topic_prefix: str) -> None:
        self.index = f"{index_prefix}{PROGRESS_INDEX}"
        self._client = client
        self._topic_prefix = topic_prefix
        self._where = f"index {self.index}"
        self.run_id = f"run/{topic_prefix}"

    def create(self) -> None:
        """Make the progress index where it doesn't exist yet."""
        create_own(self._client, self.index, {"dynamic": False}, self._where)

    def run(self) -> RunRecord:
        """The last run's record; an empty one where there was none."""
        return self.read(self.run_id, RunRecord)[0] or RunRecord()

    def read(
        self, document: str, kind: type[ProgressRecord]
    ) -> tuple[ProgressRecord | None, StoredVersion]:
        """A record of ours, if there is one, and what to compare with when writing it."""
        source, version = self._get(document)
        return (self._parse(kind, source) if source else None), version

    def tables(self, names: Iterable[str]) -> dict[str, TableRecord]:
        """The records of those tables that have one."""
        wanted = {self.record_id("table", name): name for name in names}
        if not wanted:
            return {}
        return {
            wanted[hit["_id"]]: self._parse(TableRecord, hit["_source"])
            for hit in fetch(self._client, self.index, {"ids": list(wanted)})
            if hit.get("found")
        }

    def is_begun(self) -> bool:
        """Whether anything was ever written to an index."""
        return self.run().plan is not None or len(self._ids()) > 1

    def record_count(self) -> int:
        """How many records the log has here."""
        return len(self._ids())

    def forget(self) -> None:
        """Delete all records of the log's runs, tables and documents.

        Raises BusyError while a run is under way.
        """
        with self.claim():
            others = [document for document in self._ids() if document != self.run_id]
            body = {"query": {"ids": {"values": others}}}
            insist(lambda: self._client.delete_by_query(index=self.index, body=body), self._where)
        insist(lambda: self._client.delete(index=self.index, id=self.run_id), self._where)

    def _ids(self) -> list[str]:
        """Of all records of this log."""
        body = {"query": {"match_all": {}}, "size": _RECORDS_MAX, "_source": False}
        indices, ask = self._client.indices, self._client.search
        insist(lambda: indices.refresh(index=self.index, params=IF_THERE), self._where)
        answer = insist(lambda: ask(index=self.index, body=body, params=IF_THERE), self._where)
        documents = [hit["_id"] for hit in answer["hits"]["hits"]]
        # <kind>/<topic prefix>, and of some kinds a name behind that
        return [name for name in documents if name.split("/")[1] == self._topic_prefix]

    def claim(self) -> "RunClaim":
        """The right to run, until it is released; raises BusyError while another run has it."""
        record, version = self.read(self.run_id, RunRecord)
        owner = record.owner if record is not None else None
        if owner is not None and owner.alive(now_ms()):
            raise BusyError(
                f"another run is writing to the search indexes (process {owner.pid} on"
                f" {owner.host})",
                where=self._where,
                remedy="wait for its end; if it died, a run can take over after"
                f" {SILENCE_S_MAX:.0f} seconds",
            )
        return RunClaim(self, record or RunRecord(), version)

    def write_table(self, name: str, record: TableRecord) -> None:
        """Replace a table's record; raises BusyError if a later run has written it."""
        document = self.record_id("table", name)
        stored, version = self.read(document, TableRecord)
        if stored is not None and stored.run > record.run:
            raise _overtaken(self._where)
        self.write(document, record, version)

    def record_id(self, kind: Literal["table", "document"], name: str) -> str:
        """The record of the index of a table, or of joined documents."""
        return f"{kind}/{self._topic_prefix}/{name}"

    def _get(self, document: str) -> tuple[dict[str, Any], StoredVersion]:
        def send() -> tuple[dict[str, Any], StoredVersion]:
            try:
                answer = self._client.get(index=self.index, id=document)
            except NotFoundError:
                return {}, {"op_type": "create"}
            return answer["_source"], _version(answer)

        return insist(send, self._where)

    def write(
        self,
        document: str,
        record: BaseModel,
        expected: StoredVersion,
        patience: Patience = PATIENT,
    ) -> StoredVersion:
        """Write against the expected version; a conflict with our own lost answer is none.

        Raises BusyError if somebody else has written it since.
        """
        text = record.model_dump_json()

        def send() -> StoredVersion | None:
            try:
                return _version(
                    self._client.index(index=self.index, id=document, body=text, params=expected)
                )
            except ConflictError:
                return None

        written = insist(send, self._where, patience)
        if written is None:
            source, written = self._get(document)
            if not source or type(record).model_validate(source).model_dump_json() != text:
                raise _overtaken(self._where)
        return written

    def _parse(self, kind: type[ProgressRecord], source: dict[str, Any]) -> ProgressRecord:
        try:
            return kind.model_validate(source)
        except ValidationError as error:
            raise LogFormatError(
                f"can't read a progress document: {error.errors()[0]['msg']}",
                where=self._where,
                remedy="upgrade this Millrace: a newer one has written it",
            ) from None


class RunClaim:
    """The right to run: a heartbeat from entering to leaving, and the plan's two steps.

    A heartbeat that fails is left to the run's own next write to complain about. A claim that is
    left without finish() leaves the plan started: the next run repeats it.
    """

    def __init__(self, ledger: Ledger, record: RunRecord, version: StoredVersion) -> None:
        self.record = record
        self._ledger = ledger
        self._version = version
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._token = uuid4().hex
        self._heart = threading.Thread(target=self._beat, name="search claim", daemon=True)

    def __enter__(self) -> Self:
        self.renew()
        self._heart.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopped.set()
        self._heart.join()
        failed = failure[0] is not None
        with suppress(MillraceError) if failed else nullcontext():
            self._write(BRIEF if failed else PATIENT, owner=None)

    def last(self) -> RunPlan | None:
        """The newest plan, finished or not."""
        return self.record.plan

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """How the newest plan ended, if it did."""
        del plan
        return self.record.outcome

    def start(self, plan: RunPlan) -> None:
        """Record the plan of a new run; raises BusyError if the claim was taken over."""
        if self.record.plan is not None and self.record.outcome is None:
            raise AssertionError("a started plan is finished or repeated, never replaced")
        self.renew(plan=plan, outcome=None)

    def finish(self, outcome: RunOutcome) -> None:
        """Record that nothing of the plan is under way any more, and how it ended."""
        self.renew(outcome=outcome)

    def checked(self) -> LastCheck:
        """When a run last found nothing to do."""
        return self.record.checked

    def check(self, check: LastCheck) -> None:
        """Record that there was nothing to do."""
        self.renew(checked=check)

    def renew(self, patience: Patience = PATIENT, **changes: object) -> None:
        """Write the heartbeat, and what changes; raises BusyError if another run took over."""
        owner = Owner(
            host=socket.gethostname(), pid=os.getpid(), token=self._token, beat_ms=now_ms()
        )
        self._write(patience, owner=owner, **changes)

    def _write(self, patience: Patience, **changes: object) -> None:
        with self._lock:
            record = self.record.model_copy(update=changes)
            self._version = self._ledger.write(self._ledger.run_id, record, self._version, patience)
            self.record = record

    def _beat(self) -> None:
        """Whatever goes wrong here meets the run itself at its next write."""
        while not self._stopped.wait(BEAT_S):
            try:
                self.renew(BRIEF)
            except BusyError:
                return
            except MillraceError:
                continue


def _version(answer: Mapping[str, Any]) -> StoredVersion:
    return {"if_seq_no": answer["_seq_no"], "if_primary_term": answer["_primary_term"]}


def _overtaken(where: str) -> BusyError:
    return BusyError(
        "another run has taken over while this one didn't respond",
        where=where,
        remedy="none: the other run applies the same plan",
    )


def loaded_text(start: Mapping[int, int], at: Mapping[int, int], end: Mapping[int, int]) -> str:
    """How far a load is, for people."""
    total = sum(end[partition] - offset for partition, offset in start.items())
    done = sum(at.get(partition, offset) - offset for partition, offset in start.items())
    return f"{done:,} of {total:,} records are loaded ({100 * done // max(total, 1)} %)"
