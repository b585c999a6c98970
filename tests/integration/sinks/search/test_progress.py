"""The progress index: who may run, the active plan, and the applied cuts."""

import os
import socket
import subprocess
import sys
import time

import pytest

from cdc.errors import BusyError, LogFormatError
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from deploy.local.opensearch import OpenSearch
from sinks.run.plan import RunPlan
from sinks.run.summary import RunOutcome
from sinks.search import progress
from sinks.search.client import connect
from sinks.search.progress import Ledger, Owner, RunRecord, TableGeneration, TableRecord
from tests.fixtures.search_tables import settings
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = pytest.mark.opensearch
TABLE = "public.things"
NEW = {"op_type": "create"}


@pytest.fixture
def ledger(opensearch: OpenSearch, index_prefix: str) -> Ledger:
    ledger = Ledger(connect(settings(opensearch.url)), index_prefix, "shop")
    ledger.create()
    ledger.create()
    return ledger


def record(run: int, lsn: int = 5) -> TableRecord:
    return TableRecord(
        run=run,
        serves=TableGeneration(index="public.things-1", uuid="u"),
        cut=str(Position(1, Lsn(lsn), 7)),
        offsets={0: 3, 1: 0},
        schema_version=2,
    )


def run_plan(run: int) -> RunPlan:
    cut = Position(FIRST_EPOCH, Lsn(run), 0)
    return RunPlan(run=run, prefix="p", log="l", cut=cut, cut_ts_us=0, ts_ms=0, tables={})


def run_outcome(run: int) -> RunOutcome:
    return RunOutcome(run=run, ts_ms=0, failed={})


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def owner(**changes: object) -> Owner:
    now = time.time_ns() // 1_000_000
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "token": "t", "beat_ms": now}
    return Owner.model_validate(mine | changes)


def test_plan_is_started_and_finished(ledger: Ledger) -> None:
    assert ledger.run() == RunRecord()
    with ledger.claim() as claim:
        assert claim.last() is None
        claim.start(run_plan(1))
        assert ledger.run().outcome is None
        claim.finish(run_outcome(1))
    with ledger.claim() as claim:
        assert claim.outcome(run_plan(1)) == run_outcome(1)
        claim.start(run_plan(2))
        claim.finish(run_outcome(2))
    last = ledger.run()
    assert (last.plan, last.outcome, last.owner) == (run_plan(2), run_outcome(2), None)


def test_failed_run_leaves_its_plan_to_the_next(ledger: Ledger) -> None:
    def fail() -> None:
        with ledger.claim() as claim:
            claim.start(run_plan(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with ledger.claim() as claim:
        assert claim.last() == run_plan(1)
        assert claim.outcome(run_plan(1)) is None
        with pytest.raises(AssertionError, match="never replaced"):
            claim.start(run_plan(2))
        claim.finish(run_outcome(1))
    assert ledger.run().outcome == run_outcome(1)


def test_overlapping_runs_exclude_each_other(ledger: Ledger) -> None:
    first, second = ledger.claim(), ledger.claim()
    with first:
        with pytest.raises(BusyError), second:
            pass
        with pytest.raises(BusyError, match="another run") as raised:
            ledger.claim()
        assert str(os.getpid()) in str(raised.value)
    with ledger.claim():
        pass


@pytest.mark.parametrize(
    "gone", [{"pid": 0}, {"host": "elsewhere", "beat_ms": 0}], ids=["process", "heart"]
)
def test_dead_owner_is_taken_over_at_once(ledger: Ledger, gone: dict[str, int]) -> None:
    dead = owner(**(gone | ({"pid": dead_pid()} if "pid" in gone else {})))
    ledger.write(ledger.run_id, RunRecord(plan=run_plan(4), owner=dead), NEW)
    with ledger.claim() as claim:
        assert claim.last() == run_plan(4)


def test_living_owner_elsewhere_keeps_the_claim(ledger: Ledger) -> None:
    ledger.write(ledger.run_id, RunRecord(owner=owner(host="elsewhere", pid=1)), NEW)
    with pytest.raises(BusyError, match="elsewhere"):
        ledger.claim()


def test_heart_beats_while_a_run_works(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BEAT_S", 0.05)
    with ledger.claim() as claim:
        claim.start(run_plan(1))
        before = ledger.run().owner
        assert before is not None
        begun_ms = before.beat_ms
        with monkeypatch.context() as only_part:
            only_part.setattr(ledger._client, "index", pytest.fail)  # with the whole plan
            wait_for(lambda: (after := ledger.run().owner) and after.beat_ms > begun_ms)
        assert ledger.run().plan == run_plan(1)
        claim.finish(run_outcome(1))
        assert ledger.run().outcome == run_outcome(1)


def test_run_that_was_taken_over_records_nothing(ledger: Ledger) -> None:
    other = owner(token="other")

    def lose() -> None:
        with ledger.claim() as claim:
            claim.start(run_plan(1))
            current, version = ledger.read(ledger.run_id, RunRecord)
            assert current is not None
            ledger.write(ledger.run_id, current.model_copy(update={"owner": other}), version)
            claim.finish(run_outcome(1))

    with pytest.raises(BusyError, match="taken over"):
        lose()
    assert (ledger.run().outcome, ledger.run().owner) == (None, other)


def test_tables_are_recorded_and_never_moved_back(ledger: Ledger) -> None:
    other = "public.other"
    assert ledger.tables([TABLE, other]) == {}
    ledger.write_table(TABLE, record(3))
    ledger.write_table(TABLE, record(3))
    ledger.write_table(TABLE, record(4, 9))
    assert ledger.tables([TABLE, other]) == {TABLE: record(4, 9)}
    with pytest.raises(BusyError):
        ledger.write_table(TABLE, record(3))


def test_logs_do_not_share_progress(
    ledger: Ledger, opensearch: OpenSearch, index_prefix: str
) -> None:
    ledger.write_table(TABLE, record(3))
    assert Ledger(connect(settings(opensearch.url)), index_prefix, "x").tables([TABLE]) == {}


def test_nothing_was_ever_applied_without_a_progress_index(
    opensearch: OpenSearch, index_prefix: str
) -> None:
    ledger = Ledger(connect(settings(opensearch.url)), f"{index_prefix}-none-", "shop")
    assert ledger.run() == RunRecord()
    assert ledger.tables([TABLE]) == {}


def test_newer_format_stops_us(ledger: Ledger, opensearch: OpenSearch) -> None:
    client = connect(settings(opensearch.url))
    client.index(index=ledger.index, id="run/shop", body={"format": 2, "run": 1})
    with pytest.raises(LogFormatError, match="can't read"):
        ledger.run()
