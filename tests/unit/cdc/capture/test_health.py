"""Live and ready, by a clock that the test moves."""

from unittest.mock import Mock

import pytest

from cdc.capture.health import LIVE_S, SLOT_STATE_S, Health, Heartbeat, Stage
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Progress
from cdc.tables.reads import ReadProgress
from tests.fixtures.made_states import streaming


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(flush: int) -> Progress:
    return streaming(Position(1, Lsn(flush), 0))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    made = Health(Mock(), heartbeat_s=10, timeout_s=30, clock=clock)
    made.entered(Stage.STREAMING, Lsn(100))
    return made


def test_ready_is_what_has_seen_a_heartbeat_come_round_in_time(
    health: Health, clock: Clock
) -> None:
    assert "yet" in (health.unready or "")
    health.written(Heartbeat(Lsn(150), clock.now))
    health.streaming(progress(149))
    assert health.unready is not None
    clock.now += 2
    health.streaming(progress(150))
    assert health.unready is None
    assert health.report()["round_trip"] == {"sent_s_ago": 2.0, "took_s": 2.0}
    health.written(Heartbeat(Lsn(200), clock.now))
    clock.now += 20
    health.written(Heartbeat(Lsn(300), clock.now))
    assert health.unready is None
    clock.now += 11  # of the first one that is awaited
    assert "31 s" in (health.unready or "")
    health.streaming(progress(200))
    assert health.unready is None


def test_a_source_that_no_heartbeat_can_be_written_to_makes_it_unready(
    health: Health, clock: Clock
) -> None:
    health.written(Heartbeat(Lsn(100), clock.now))  # the log has it already
    assert health.unready is None
    clock.now += 10 + 30 + 1
    assert health.unready is not None


def test_a_new_stay_on_the_stream_has_to_prove_itself_anew(health: Health, clock: Clock) -> None:
    health.written(Heartbeat(Lsn(100), clock.now))
    health.failed("the connection was lost")
    assert health.unready == "not streaming: starting"
    health.entered(Stage.STREAMING, Lsn(100))
    assert "yet" in (health.unready or "")
    assert health.report()["fault"]["reason"] == "the connection was lost"


def test_a_snapshot_isnt_ready_but_live_and_tells_how_far_it_is(
    health: Health, clock: Clock
) -> None:
    tables = [Mock(), Mock()]
    tables[0].name, tables[1].name = TableName("public", "a"), TableName("public", "b")
    tables[0].pages = tables[1].pages = 2
    health.snapshot_started(tables)
    health.opened(progress(100), {})
    health.snapshot_progress(ReadProgress(TableName("public", "a"), 5, (), 1))
    assert health.events == 5
    health.streaming(progress(150))
    assert health.events == 5, "what was counted is in the log's own number by now, or will be"
    health.snapshot_started(tables)
    health.snapshot_progress(ReadProgress(TableName("public", "a"), 5, (), 1))
    clock.now += 10 * LIVE_S
    report = health.report()
    assert (report["ready"], report["live"], report["snapshot_percent"]) == (False, True, 25.0)


def test_a_loop_that_no_longer_turns_is_dead_and_a_standby_is_not(
    health: Health, clock: Clock
) -> None:
    clock.now += LIVE_S
    assert health.is_live
    clock.now += 1
    assert not health.is_live
    health.turned()
    assert health.is_live
    health.entered(Stage.STANDBY)
    clock.now += 10 * LIVE_S
    assert health.is_live


def test_what_isnt_seen_any_more_isnt_told(health: Health, clock: Clock) -> None:
    health.slot_inspected(Mock(lag_bytes=7))
    clock.now += SLOT_STATE_S
    assert health.slot is not None
    clock.now += 1
    assert health.slot is None
    health.slot_inspected(Mock(lag_bytes=7))
    health.opened(progress(100), {TableName("public", "a"): Mock()})
    health.entered(Stage.STANDBY)
    assert (health.slot, health.progress, health.states) == (None, None, {})
