"""Tables that joined wait for transactions that were open, all with one query."""

from collections.abc import Collection
from concurrent.futures import Future
from typing import cast

from structlog.testing import capture_logs

from cdc.errors import SourceUnreachableError
from cdc.postgres.described import CapturedTable
from cdc.postgres.running import Running
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest
from snapshots.joining import OpenTransactions
from snapshots.windows import Job, WindowReader

NAMES = [TableName("public", f"t{number}") for number in range(50)]
REQUEST = SnapshotRequest(kind="initial", behind_xid=10)


class Source:
    """Answers at once which transaction is the oldest one."""

    def __init__(self) -> None:
        self.now, self.oldest, self.question_count, self.is_there = 0.0, 5, 0, True
        self.writers: dict[int, frozenset[int]] | None = None
        self.open_transactions = OpenTransactions(cast("WindowReader", self), lambda: self.now)

    def running(self, tables: Collection[int]) -> Job[Running]:
        self.question_count += 1
        job = Job[Running]()
        job.future = Future()
        if self.is_there:
            writers = self.writers and {oid: self.writers.get(oid, frozenset()) for oid in tables}
            job.result = Running(self.oldest, writers)
            job.future.set_result(None)
        else:
            job.future.set_exception(SourceUnreachableError("gone", where="here"))
        return job

    def turns(self, seconds: float) -> bool:
        """Let time go by; returns whether tables were to be asked for again."""
        end, again = self.now + seconds, False
        while self.now < end:
            self.now += 0.01
            if self.open_transactions.turn():
                again = True
                assert not self.waits or not any(self.free())
        return again

    waits = False

    def free(self) -> list[bool]:
        have_ended = self.open_transactions.have_ended
        return [have_ended(CapturedTable(oid, name), REQUEST) for oid, name in enumerate(NAMES)]


def test_tables_wait_together() -> None:
    source = Source()
    assert not any(source.free())
    source.waits = True
    with capture_logs() as logs:
        source.turns(10)
    assert source.question_count <= 21
    (warning,) = [entry for entry in logs if "can't be read yet" in entry["event"]]
    assert warning["tables"].endswith(f"{NAMES[12]} … and 45 more")
    source.oldest, source.waits = 10, False
    assert source.turns(1)
    assert all(source.free())
    question_count = source.question_count
    assert not source.turns(10)  # nobody waits any more
    assert source.question_count == question_count


def test_a_question_that_fails_is_asked_again() -> None:
    source = Source()
    source.is_there = False
    assert not any(source.free())
    with capture_logs() as logs:
        assert not source.turns(15)
    assert {entry["event"] for entry in logs} >= {"can't look for open transactions"}
    assert source.question_count == 2
    source.is_there, source.oldest = True, 11
    assert source.turns(20)
    assert all(source.free())


def test_only_who_had_written_to_a_table_is_waited_for() -> None:
    source = Source()
    source.writers = {0: frozenset({7, 8}), 1: frozenset({9})}
    assert not any(source.free())
    with capture_logs() as logs:
        assert source.turns(1)
        assert source.free() == [False, False, *[True] * 48]
        source.turns(5)
    (warning,) = [entry for entry in logs if "can't be read yet" in entry["event"]]
    assert warning["tables"] == "public.t0, public.t1"
    assert "IN ('7', '8', '9')" in warning["remedy"]
    source.writers = {0: frozenset({8, 11}), 1: frozenset({11})}
    assert source.turns(1)
    assert source.free()[:2] == [False, True]
    source.writers = {0: frozenset({11, 12})}  # they came when the new catalog was there
    assert source.turns(1)
    assert all(source.free())
    assert source.oldest < REQUEST.behind_xid


def test_a_writer_is_waited_for_whatever_its_number() -> None:
    """Others may not see it yet, if it is younger than all that has ended."""
    source = Source()
    source.oldest = REQUEST.behind_xid
    source.writers = {0: frozenset({REQUEST.behind_xid})}
    assert not any(source.free())
    assert source.turns(1)
    assert source.free() == [False, *[True] * 49]
    source.writers = {}
    assert source.turns(1)
    assert all(source.free())


def test_each_table_that_waits_is_told_of_with_its_own_writers() -> None:
    source = Source()
    source.writers = {0: frozenset({7}), 1: frozenset({9}), 2: frozenset({6})}
    (first, second, third), open_transactions = NAMES[:3], source.open_transactions
    with capture_logs() as logs:
        for oid, name in enumerate((first, third)):
            open_transactions.have_ended(CapturedTable(2 * oid, name), REQUEST)
        open_transactions.keep({first, second})
        source.turns(5)
        open_transactions.have_ended(CapturedTable(1, second), REQUEST)
        source.turns(5)
    told = [entry for entry in logs if "can't be read yet" in entry["event"]]
    assert [entry["tables"] for entry in told] == [str(first), str(second)]
    assert ["IN ('7')" in told[0]["remedy"], "IN ('9')" in told[1]["remedy"]] == [True, True]
