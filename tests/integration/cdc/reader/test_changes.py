"""``changes()`` against a real daemon, a real broker and a real source."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.reader.events import ChangeEvent
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
    source.execute("TRUNCATE orders")
    made.wait_until_logged(made.wal_end(), daemon)
    truncates = read(made, 3, group="audit")
    assert {(event.operation, event.key, event.partition) for event in truncates} == {
        ("t", None, partition) for partition in range(3)
    }
    assert [event.operation for event in read(made, 7, group="other")][-3:] == ["t"] * 3
