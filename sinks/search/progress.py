"""The progress index → the active run, its plan, and the progress of each index.

Documents of ours in ``<index.prefix>millrace-progress``, each written with ``if_seq_no``: of two
writers one wins and the other gets an error. ``run/<topic.prefix>`` has the plan of the last run,
started or done, and its owner. ``table/<topic.prefix>/<schema>.<table>`` has a table's index with
its contents and its load's progress, ``document/<topic.prefix>/<name>`` the same of joined
documents.

The owner's heartbeat only keeps two runs from doing the same work twice. Correctness doesn't depend
on it: a run that lost its claim repeats the winner's plan, which is the same plan, and can't record
anything (docs/decisions/0004-sinks-and-cuts.md).
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
"""After this time without a heartbeat a run counts as dead. Clocks may differ by half of it."""
BEAT_S: Final = 5.0
BRIEF: Final = Patience(total_s=1.0)
"""For requests that are repeated anyway, and those that mustn't delay a failure's report."""
_RECORDS_MAX: Final = 10_000

ProgressRecord = TypeVar("ProgressRecord", bound=BaseModel)
StoredVersion = Mapping[str, Any]
"""What the server compares before a write, as a request's parameters."""


def now_ms() -> int:
    """Return milliseconds since 1970, as in records."""
    return time.time_ns() // 1_000_000


class Owner(BaseModel):
    """The process that runs. ``token`` distinguishes two runs of one process."""

    model_config = ConfigDict(frozen=True)

    host: str
    pid: int
    token: str
    beat_ms: int

    def alive(self, now_ms: int) -> bool:
        """Whether the process may still run: its heartbeat is recent, and, if local, it exists."""
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
    """The last run: its plan, and its outcome once it has ended.

    ``checked`` is when a run last found nothing to do.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    plan: RunPlan | None = None
    outcome: RunOutcome | None = None
    checked: LastCheck = LastCheck()
    owner: Owner | None = None


class TableGeneration(Generation):
    """An index of a table. ``overrides`` are the user's for it (``Indexed.overrides``).

    If it ``has_dropped`` columns, documents may have their values.
    """

    overrides: str = ""
    has_dropped: bool = False


class TableLoad(BaseModel):
    """An index that is being loaded. It has everything before the offsets ``loaded``.

    ``ts_ms`` is the time of that progress.
    """

    model_config = ConfigDict(frozen=True)

    into: TableGeneration
    loaded: dict[int, int] = {}
    ts_ms: int = 0


class TableRecord(BaseModel):
    """A table's progress: everything before ``offsets``, up to ``cut`` (text).

    The index that ``serves``, if one does, has all of it. The one that is ``loading`` to replace it
    has as much as its load, and ends there, too. Neither has the rows before ``emptied``.
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
        """Return the newest index."""
        return self.loading.into if self.loading is not None else self.serves


class JoinedIndex(Generation):
    """An index of joined documents, and their definition.

    ``columns`` has the identity of each column of the joined tables, which another column of its
    name doesn't share, and the form of its values. ``mapping`` is the server's. If it
    ``has_dropped`` columns, documents may have their values, and both of these include them.
    """

    definition: Document
    columns: dict[str, tuple[str, str]]
    mapping: dict[str, Any]
    has_dropped: bool = False


DocumentRecord = CutRecord[JoinedIndex]
"""The progress of a joined document's indexes."""


class Ledger:
    """The progress documents of one topic prefix."""

    def __init__(self, client: OpenSearch, index_prefix: str, topic_prefix: str) -> None:
        self.index = f"{index_prefix}{PROGRESS_INDEX}"
        self._client = client
        self._topic_prefix = topic_prefix
        self._where = f"index {self.index}"
        self.run_id = f"run/{topic_prefix}"

    def create(self) -> None:
        """Create the progress index if it doesn't exist yet."""
        create_own(self._client, self.index, {"dynamic": False}, self._where)

    def run(self) -> RunRecord:
        """Return the last run's record, or an empty one."""
        return self.read(self.run_id, RunRecord)[0] or RunRecord()

    def read(
        self, document: str, kind: type[ProgressRecord]
    ) -> tuple[ProgressRecord | None, StoredVersion]:
        """Return a record of ours, if it exists, and the version for a conditional write."""
        source, version = self._get(document)
        return (self._parse(kind, source) if source else None), version

    def tables(self, names: Iterable[str]) -> dict[str, TableRecord]:
        """Return the records of those tables that have one."""
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
        """Return the number of the log's records."""
        return len(self._ids())

    def forget(self) -> None:
        """Delete all records of the log's runs, tables and documents.

        Raise BusyError while a run is active.
        """
        with self.claim():
            others = [document for document in self._ids() if document != self.run_id]
            body = {"query": {"ids": {"values": others}}}
            insist(lambda: self._client.delete_by_query(index=self.index, body=body), self._where)
        insist(lambda: self._client.delete(index=self.index, id=self.run_id), self._where)

    def _ids(self) -> list[str]:
        """Return the ids of all records of this log."""
        body = {"query": {"match_all": {}}, "size": _RECORDS_MAX, "_source": False}
        indices, ask = self._client.indices, self._client.search
        insist(lambda: indices.refresh(index=self.index, params=IF_THERE), self._where)
        answer = insist(lambda: ask(index=self.index, body=body, params=IF_THERE), self._where)
        documents = [hit["_id"] for hit in answer["hits"]["hits"]]
        # <kind>/<topic prefix>, and for some kinds a name after it
        return [name for name in documents if name.split("/")[1] == self._topic_prefix]

    def claim(self) -> "RunClaim":
        """Claim the right to run, until it is released.

        Raise BusyError while another run has it.
        """
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
        """Replace a table's record. Raise BusyError if a later run has written it."""
        document = self.record_id("table", name)
        stored, version = self.read(document, TableRecord)
        if stored is not None and stored.run > record.run:
            raise _overtaken(self._where)
        self.write(document, record, version)

    def record_id(self, kind: Literal["table", "document"], name: str) -> str:
        """Return the id of the record of a table's index, or of joined documents."""
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
        *,
        changed: str | None = None,
    ) -> StoredVersion:
        """Write if the version is the expected one. A conflict with our own lost answer is none.

        If only one field has ``changed``, the server gets that one. Raise BusyError if another run
        has written the record since.
        """
        client, text = self._client, record.model_dump_json()
        part = record.model_dump_json(include={changed}) if changed is not None else ""

        def send() -> StoredVersion | None:
            to = {"index": self.index, "id": document, "params": expected}
            try:
                if part:
                    return _version(client.update(body=f'{{"doc":{part}}}', **to))
                return _version(client.index(body=text, **to))
            except (ConflictError, NotFoundError):
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
    """The right to run: a heartbeat while it is entered, and the plan's two steps.

    The run's own next write reports a failed heartbeat. Without finish() the plan stays started,
    and the next run repeats it.
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
        """Return the newest plan, finished or not."""
        return self.record.plan

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """Return how the newest plan ended, if it did."""
        del plan
        return self.record.outcome

    def start(self, plan: RunPlan) -> None:
        """Record the plan of a new run. Raise BusyError if the claim was taken over."""
        if self.record.plan is not None and self.record.outcome is None:
            raise AssertionError("a started plan is finished or repeated, never replaced")
        self.renew(plan=plan, outcome=None)

    def finish(self, outcome: RunOutcome) -> None:
        """Record the end of the plan, and its outcome."""
        self.renew(outcome=outcome)

    def checked(self) -> LastCheck:
        """Return when a run last found nothing to do."""
        return self.record.checked

    def check(self, check: LastCheck) -> None:
        """Record a check that found no changes."""
        self.renew(checked=check)

    def renew(self, patience: Patience = PATIENT, **changes: object) -> None:
        """Write the heartbeat and changes. Raise BusyError if another run took over."""
        owner = Owner(
            host=socket.gethostname(), pid=os.getpid(), token=self._token, beat_ms=now_ms()
        )
        self._write(patience, owner=owner, **changes)

    def _write(self, patience: Patience, **changes: object) -> None:
        with self._lock:
            record = self.record.model_copy(update=changes)
            # The plan of many tables is long, and a heartbeat comes every few seconds.
            is_beat = changes.keys() == {"owner"} and "if_seq_no" in self._version
            self._version = self._ledger.write(
                self._ledger.run_id,
                record,
                self._version,
                patience,
                changed="owner" if is_beat else None,
            )
            self.record = record

    def _beat(self) -> None:
        """Beat. The run itself meets any failure at its next write."""
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
