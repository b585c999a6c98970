"""``changes()`` against a real daemon, a real broker and a real source."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ConfigError, LogForgottenError, LogMissingError
from cdc.log.state import read_all
from cdc.reader.access import LogAccess
from cdc.reader.events import ChangeEvent
from cdc.reader.stream import ChangeStream
from cdc.records.made_topics import MadeTopic
from cdc.records.topics import made_topic, reader_topic
from millrace import changes
from tests.fixtures.pipeline import RunningPipeline

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Made = Callable[..., RunningPipeline]
QUICK = {"kafka": {"session.timeout.ms": "6000"}}


@pytest.fixture
def source(database: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        yield connection


def read(made: RunningPipeline, events: int, **options: Any) -> list[ChangeEvent]:
    """So many events; all of them are processed."""
    stop, read_events = threading.Event(), list[ChangeEvent]()
    timer = threading.Timer(30, stop.set)
    timer.start()
    with changes(made.settings, stop=stop, **options) as stream:
        for event in stream:
            read_events.append(event)
            if len(read_events) == events:
                stop.set()
    timer.cancel()
    assert len(read_events) == events
    return read_events


def test_a_group_reads_every_change_once_and_goes_on_where_it_was(
    pipeline: Made, source: psycopg.Connection[Any]
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, note text)")
    source.execute("INSERT INTO orders VALUES (1, 'new', NULL)")
    made = pipeline(sections=QUICK)
    daemon = made.catch_up()
    (first,) = read(made, 1, group="audit")
    assert (first.operation, first.table, first.key) == ("r", "public.orders", {"id": 1})
    assert first.after == {"id": 1, "status": "new", "note": None}
    source.execute("UPDATE orders SET status = 'paid'")
    source.execute("DELETE FROM orders")
    source.execute("INSERT INTO orders VALUES (1, 'again', 'x')")
    made.wait_until_logged(made.wal_end(), daemon)
    events = read(made, 3, group="audit")
    assert [event.operation for event in events] == ["u", "d", "c"]
    assert [event.row.get("status") for event in events] == ["paid", None, "again"]
    positions = [event.position for event in [first, *events]]
    assert positions == sorted(positions, key=str)
    assert len(set(positions)) == 4
    times = [event.commit_time for event in events]
    assert times == sorted(times)
    assert {event.source.database for event in events} == {source.info.dbname}
    prefix = made.settings.capture.topic_prefix
    of_drop = read_all(made.settings.kafka, made_topic(prefix), MadeTopic)
    assert reader_topic(prefix) in {topic.topic for topic in of_drop}
    source.execute("TRUNCATE orders")
    made.wait_until_logged(made.wal_end(), daemon)
    truncates = read(made, 3, group="audit")
    assert {(event.operation, event.key, event.partition) for event in truncates} == {
        ("t", None, partition) for partition in range(3)
    }
    assert [event.operation for event in read(made, 7, group="other")].count("t") == 3


def test_a_group_older_than_the_log_keeps_is_refused(
    pipeline: Made, source: psycopg.Connection[Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    made = pipeline(sections={**QUICK, "log": {"keep": "3s"}})
    daemon = made.catch_up()
    read(made, 1, group="late", start="beginning")
    between = datetime.now(UTC)
    source.execute("INSERT INTO t VALUES (2)")
    made.wait_until_logged(made.wal_end(), daemon)
    written_at = datetime.now(UTC)
    read(made, 1, group="prompt", start=between)
    time.sleep(3.5)
    with pytest.raises(LogForgottenError, match="the group late is too late"):
        next(changes(made.settings, group="late"))
    with pytest.raises(LogForgottenError, match=r"may be older than log\.keep"):
        next(changes(made.settings, group="new", start=written_at))
    # What it has read to the end is no older; and from the beginning there is what the log has.
    source.execute("INSERT INTO t VALUES (3)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert [event.key for event in read(made, 1, group="prompt")] == [{"id": 3}]
    assert {event.row["id"] for event in read(made, 3, group="new")} == {1, 2, 3}


def test_a_reader_and_tail_start_where_they_are_told(
    pipeline: Made, source: psycopg.Connection[Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("CREATE TABLE other (id int PRIMARY KEY, status text, card text)")
    source.execute("INSERT INTO t VALUES (1)")
    made = pipeline(**{"column.mask.with.5.chars": "public.other.card"})
    with pytest.raises(LogMissingError, match="no daemon has written one"):
        next(changes(made.settings))
    daemon = made.catch_up()
    source.execute("INSERT INTO t VALUES (2)")
    (lsn,) = source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
    at = datetime.now(UTC)
    source.execute("INSERT INTO t VALUES (3)")
    source.execute("INSERT INTO other VALUES (4, 'paid', 'secret')")
    made.wait_until_logged(made.wal_end(), daemon)

    def ids(start: Any, events: int, **options: Any) -> set[int]:
        return {event.row["id"] for event in read(made, events, start=start, **options)}

    assert ids("beginning", 4) == {1, 2, 3, 4}
    assert ids(lsn, 2) == ids(at, 2) == ids(at.isoformat(), 2) == {3, 4}
    assert ids(lsn, 1, tables=["public.t"]) == {3}
    stream = ChangeStream(
        LogAccess(made.settings, None, threading.Event(), None), None, "now", once=True
    )
    assert list(stream) == []
    for wrong in ("yesterday", "2026-01-01T00:00:00", "1/x"):
        with pytest.raises(ConfigError):
            changes(made.settings, start=wrong)

    source.execute("UPDATE other SET status = 'shipped'")
    source.execute("TRUNCATE other")
    made.wait_until_logged(made.wal_end(), daemon)
    shown = made.millrace("tail", "public.other", "--once", "--op", "c,u,t")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert sorted(line.split("  ", 1)[1] for line in shown.stdout.splitlines()) == [
        "create     public.other  id=4  status: paid, card: (masked)",
        "truncate   public.other",
        "update     public.other  id=4  status: paid → shipped",
    ]
    as_json = made.millrace("tail", "--once", "--json", "--key", "id=4", "--start", lsn)
    events = [ChangeEvent.model_validate_json(line) for line in as_json.stdout.splitlines()]
    assert [event.operation for event in events] == ["c", "u"]
    refused = made.millrace("tail", "--op", "x", "public.t")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "unknown operation: x" in refused.stderr
    limited = pipeline(**{"table.include.list": "public.t"}).settings
    with pytest.raises(ConfigError, match=r"public\.none isn't captured"):
        changes(limited, tables=["public.none"])
