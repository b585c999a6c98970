"""A topic's settings and the time of an event → the time of its record, and log.keep holds."""

import time

import pytest
from structlog.testing import capture_logs

from cdc.kafka.record_times import LATE_MS, ROOM_MS, RecordTimes, TimeLimits, time_limits
from cdc.kafka.topics import TopicLimits

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEEP_MS = 7 * DAY_MS
CONFIG = {"retention.ms": str(KEEP_MS + LATE_MS)}


@pytest.mark.parametrize(
    ("config", "older_ms"),
    [
        (CONFIG, DAY_MS),
        ({"retention.ms": str(KEEP_MS)}, 0),
        ({"retention.ms": "-1"}, 1 << 60),
        (CONFIG | {"message.timestamp.before.max.ms": str(3 * HOUR_MS)}, 3 * HOUR_MS - ROOM_MS),
        (CONFIG | {"message.timestamp.difference.max.ms": str(3 * HOUR_MS)}, 3 * HOUR_MS - ROOM_MS),
        ({}, 0),
    ],
    ids=[
        "longer",
        "log.keep",
        "for ever",
        "refused by the topic",
        "refused by an older broker",
        "unknown",
    ],
)
def test_a_topic_that_deletes_takes_times_that_leave_a_record_log_keep(
    config: dict[str, str], older_ms: int
) -> None:
    found = time_limits("delete", config, KEEP_MS).older_ms_max
    assert found >= older_ms if older_ms == 1 << 60 else found == older_ms
    # min.compaction.lag.ms goes by a record's time as well.
    assert time_limits("compact", config, KEEP_MS).older_ms_max == 0


@pytest.mark.parametrize("side", ["after", "difference"])
def test_no_record_is_so_new_that_its_topic_refuses_it(side: str) -> None:
    config = CONFIG | {f"message.timestamp.{side}.max.ms": "5000"}
    limits = time_limits("delete", config, KEEP_MS)
    assert limits.newer_ms_max == 5_000
    times = RecordTimes({"events": TopicLimits(1, True, limits)}, KEEP_MS, "kafka:9092")
    with capture_logs() as logs:
        assert times("events", int(time.time() * 1_000) + 30_000) == 0
    assert "in the future" in logs[0]["event"]


def test_where_brokers_set_the_time_no_event_is_too_old_or_too_new() -> None:
    config = {"retention.ms": str(KEEP_MS), "message.timestamp.type": "LogAppendTime"}
    limits = time_limits("delete", config, KEEP_MS)
    times = RecordTimes({"events": TopicLimits(1, True, limits)}, KEEP_MS, "kafka:9092")
    with capture_logs() as logs:
        assert {times("events", wanted_ms) for wanted_ms in (-1, 1, 1 << 50)} == {0}
    assert logs == []


@pytest.mark.parametrize(
    ("age_ms", "is_kept"),
    [
        (HOUR_MS, True),
        (-1_000, True),
        (DAY_MS + HOUR_MS, False),
        (-HOUR_MS, False),
        (1 << 48, False),
    ],
    ids=["an hour", "a clock that is ahead", "too old", "from the future", "before 1970"],
)
def test_a_record_has_its_events_time_or_that_of_its_writing(age_ms: int, is_kept: bool) -> None:
    times = RecordTimes({"events": TopicLimits(1, True, TimeLimits(DAY_MS))}, KEEP_MS, "kafka:9092")
    wanted_ms = int(time.time() * 1_000) - age_ms
    with capture_logs() as logs:
        made = [times("events", wanted_ms) for _ in range(2)]
    assert made == [wanted_ms if is_kept else 0] * 2
    assert len(logs) == (0 if is_kept else 1)


def test_the_remedy_is_a_retention_that_takes_such_an_event() -> None:
    times = RecordTimes({"events": TopicLimits(1, True, TimeLimits(DAY_MS))}, KEEP_MS, "kafka:9092")
    with capture_logs() as (logs):
        times("events", int(time.time() * 1_000) - 30 * DAY_MS)
    retention_ms = str(logs[0]["remedy"]).rpartition("=")[2]
    found = time_limits("delete", {"retention.ms": retention_ms}, KEEP_MS)
    assert found.older_ms_max >= 30 * DAY_MS
