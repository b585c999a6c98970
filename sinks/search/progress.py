"""The progress index → who runs, the plan that is under way, and how far each table is applied.

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
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import uuid4

from opensearchpy import ConflictError, NotFoundError, OpenSearch
from pydantic import BaseModel, ValidationError

from cdc.errors import BusyError, LogFormatError, MillraceError
from cdc.records.schema import TableName
from sinks.run.plan import RunPlan
from sinks.run.summary import LastCheck, RunOutcome
from sinks.search.client import PATIENT, Patience, create_own, fetch, insist
from sinks.search.progress_records import (
    SILENCE_S_MAX,
    Owner,
    RunRecord,
    TableRecord,
    now_ms,
)

_RECORDS_MAX: Final = 10_000
BEAT_S: Final = 5.0
BRIEF: Final = Patience(total_s=1.0)
"""For what is tried again anyway, and for what mustn't delay the news of a failure."""


ProgressRecord = TypeVar("ProgressRecord", bound=BaseModel)


class StoredVersion(NamedTuple):
    """What if_seq_no and if_primary_term compare with; None: the document isn't there."""

    seq_no: int
    primary_term: int


class Ledger:
    """The progress documents of one topic prefix."""

    def __init__(self, client: OpenSearch, index_prefix: str, topic_prefix: str) -> None:
        self.index = f"{index_prefix}millrace-progress"
        self._client = client
        self._topic_prefix = topic_prefix

    def create(self) -> None:
        """Make the progress index where it doesn't exist yet."""
        create_own(self._client, self.index, {"dynamic": False}, self._where)

    def run(self) -> RunRecord:
        """The last run's record; an empty one where there was none."""
        return self.read_run()[0]

    def read_run(self) -> tuple[RunRecord, StoredVersion | None]:
        """The last run's record, and what to compare with when writing it."""
        record, version = self.read(self._run_id, RunRecord)
        return record or RunRecord(), version

    def read(
        self, document: str, kind: type[ProgressRecord]
    ) -> tuple[ProgressRecord | None, StoredVersion | None]:
        """A record of ours, if there is one, and what to compare with when writing it."""
        source, version = self._get(document)
        return (self._parse(kind, source) if source else None), version

    def tables(self, names: Iterable[TableName]) -> dict[TableName, TableRecord]:
        """The records of those tables that have one."""
        wanted = {self._table_id(name): name for name in names}
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

    def forget(self) -> None:
        """Delete all records of the log's runs, tables and documents.

        Raises BusyError while a run is under way.
        """
        with self.claim():
            others = [document for document in self._ids() if document != self._run_id]
            body = {"query": {"ids": {"values": others}}}
            insist(lambda: self._client.delete_by_query(index=self.index, body=body), self._where)
        insist(lambda: self._client.delete(index=self.index, id=self._run_id), self._where)

    def _ids(self) -> list[str]:
        """Of all records of this log."""
        body = {"query": {"match_all": {}}, "size": _RECORDS_MAX, "_source": False}

        def ask() -> list[str]:
            try:
                self._client.indices.refresh(index=self.index)
                answer = self._client.search(index=self.index, body=body)
            except NotFoundError:
                return []
            return [hit["_id"] for hit in answer["hits"]["hits"]]

        # <kind>/<topic prefix>, and of some kinds a name behind that
        documents = insist(ask, self._where)
        return [name for name in documents if name.split("/")[1] == self._topic_prefix]

    def claim(self) -> "RunClaim":
        """The right to run, until it is released; raises BusyError while another run has it."""
        record, version = self.read_run()
        if record.owner is not None and record.owner.alive(now_ms()):
            raise BusyError(
                f"another run applies the log to the search indexes (process {record.owner.pid}"
                f" on {record.owner.host})",
                where=self._where,
                remedy="wait for its end; a dead one is taken over after "
                f"{SILENCE_S_MAX:.0f} seconds",
            )
        return RunClaim(self, record, version)

    def write_run(
        self, record: RunRecord, expected: StoredVersion | None, patience: Patience = PATIENT
    ) -> StoredVersion:
        """Replace the record that was read; raises BusyError if another run did so before."""
        return self.write(self._run_id, record, expected, patience)

    def write_table(self, name: TableName, record: TableRecord) -> None:
        """Replace a table's record; raises BusyError if a later run has written it."""
        document = self._table_id(name)
        stored, version = self.read(document, TableRecord)
        if stored is not None and stored.run > record.run:
            raise _overtaken(self._where)
        self.write(document, record, version)

    @property
    def _where(self) -> str:
        return f"index {self.index}"

    @property
    def _run_id(self) -> str:
        return f"run/{self._topic_prefix}"

    def document_id(self, name: str) -> str:
        """The record of a joined document's index."""
        return f"document/{self._topic_prefix}/{name}"

    def _table_id(self, name: TableName) -> str:
        return f"table/{self._topic_prefix}/{name}"

    def _get(self, document: str) -> tuple[dict[str, Any], StoredVersion | None]:
        def send() -> tuple[dict[str, Any], StoredVersion | None]:
            try:
                answer = self._client.get(index=self.index, id=document)
            except NotFoundError:
                return {}, None
            return answer["_source"], StoredVersion(answer["_seq_no"], answer["_primary_term"])

        return insist(send, self._where)

    def write(
        self,
        document: str,
        record: BaseModel,
        expected: StoredVersion | None,
        patience: Patience = PATIENT,
    ) -> StoredVersion:
        """Write against the expected version; a conflict with our own lost answer is none.

        Raises BusyError if somebody else has written it since.
        """
        condition: dict[str, Any] = (
            {"op_type": "create"}
            if expected is None
            else {"if_seq_no": expected.seq_no, "if_primary_term": expected.primary_term}
        )
        text = record.model_dump_json()

        def send() -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = self._client.index(
                    index=self.index, id=document, body=text, params=condition
                )
            except ConflictError:
                return None
            return answer

        written = insist(send, self._where, patience)
        if written is not None:
            return StoredVersion(written["_seq_no"], written["_primary_term"])
        source, version = self._get(document)
        if version is None or type(record).model_validate(source).model_dump_json() != text:
            raise _overtaken(self._where)
        return version

    def _parse(self, kind: type[ProgressRecord], source: dict[str, Any]) -> ProgressRecord:
        try:
            return kind.model_validate(source)
        except ValidationError as error:
            raise LogFormatError(
                f"a progress document can't be read: {error.errors()[0]['msg']}",
                where=self._where,
                remedy="a newer Millrace has written it: run that one",
            ) from None


class RunClaim:
    """The right to run: a heartbeat from entering to leaving, and the plan's two steps.

    A heartbeat that fails is left to the run's own next write to complain about. A claim that is
    left without finish() leaves the plan started: the next run repeats it.
    """

    def __init__(self, ledger: Ledger, record: RunRecord, version: StoredVersion | None) -> None:
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
        try:
            self._write(
                self.record.model_copy(update={"owner": None}), BRIEF if failed else PATIENT
            )
        except MillraceError:
            if not failed:
                raise

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
        self._update(plan=plan, outcome=None, owner=self._owner())

    def finish(self, outcome: RunOutcome) -> None:
        """Record that nothing of the plan is under way any more, and how it ended."""
        self._update(outcome=outcome, owner=self._owner())

    def renew(self) -> None:
        """Write the heartbeat; raises BusyError if another run has taken over."""
        self._update(owner=self._owner())

    def checked(self) -> LastCheck:
        """When a run last found nothing to do."""
        return self.record.checked

    def check(self, tables: list[str]) -> None:
        """Record that there is nothing to do now for these tables."""
        self._update(checked=LastCheck(ts_ms=now_ms(), tables=tables))

    def _owner(self) -> Owner:
        host, pid = socket.gethostname(), os.getpid()
        return Owner(host=host, pid=pid, token=self._token, beat_ms=now_ms())

    def _update(self, **changes: object) -> None:
        self._write(self.record.model_copy(update=changes))

    def _write(self, record: RunRecord, patience: Patience = PATIENT) -> None:
        with self._lock:
            self._version = self._ledger.write_run(record, self._version, patience)
            self.record = record

    def _beat(self) -> None:
        """Whatever goes wrong here meets the run itself at its next write."""
        while not self._stopped.wait(BEAT_S):
            try:
                with self._lock:
                    record = self.record.model_copy(update={"owner": self._owner()})
                    self._version = self._ledger.write_run(record, self._version, BRIEF)
                    self.record = record
            except BusyError:
                return
            except MillraceError:
                continue


def _overtaken(where: str) -> BusyError:
    return BusyError(
        "another run has taken over while this one was silent",
        where=where,
        remedy="nothing is lost: the other run applies the same plan",
    )
