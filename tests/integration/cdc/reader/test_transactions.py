"""``changes(transactions=True)``: whole transactions, whatever partitions they are in."""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message
from psycopg.conninfo import make_conninfo

from cdc.errors import ConfigError, LogFormatError
from cdc.reader.access import ReaderStoppedError
from cdc.reader.envelope import Envelopes
from cdc.reader.events import ChangeEvent
from cdc.settings import Settings
from millrace import changes
from tests.fixtures.pipeline import RunningPipeline
from tests.integration.cdc.reader.members import Members

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Made = Callable[..., RunningPipeline]
Read = list[tuple[int | None, list[ChangeEvent]]]
ROUND = 60
LAST = 1_000_000


@pytest.fixture
def source(database: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(make_conninfo(**database)) as connection:
        yield connection


def read(made: RunningPipeline, count: int, *, unprocessed: int = 0, **options: Any) -> Read:
    """So many transactions; of the last ones the body doesn't come to its end."""
    stop, found = threading.Event(), Read()
    timer = threading.Timer(40, stop.set)
    timer.start()
    with changes(made.settings, transactions=True, stop=stop, **options) as stream:
        for transaction in stream:
            found.append((transaction.xid, list(transaction)))
            if len(found) == count:
                if unprocessed:
                    break
                stop.set()
    timer.cancel()
    assert len(found) == count
    return found


def test_transactions_come_whole_and_in_order_and_go_on_after_a_break(
    pipeline: Made, source: psycopg.Connection[Any]
) -> None:
    source.execute("CREATE TABLE account (id int PRIMARY KEY, balance int, note text)")
    source.execute("CREATE TABLE entry (id int PRIMARY KEY, account int, note text)")
    source.execute("INSERT INTO account SELECT i, 0, '' FROM generate_series(1, 200) i")
    source.commit()
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}}, **{"spill.memory.bytes": 0})
    daemon = made.catch_up()
    ((xid, rows),) = read(made, 1, group="books")
    assert (xid, len(rows), {event.operation for event in rows}) == (None, 200, {"r"})
    xids = []
    for number in range(1, 31):
        source.execute("INSERT INTO entry VALUES (%s, %s)", [number, number])
        source.execute(
            "UPDATE account SET balance = balance + 1 WHERE id BETWEEN 1 AND %s", [number]
        )
        source.execute("UPDATE account SET id = -id WHERE id = %s", [100 + number])
        (xid,) = source.execute("SELECT pg_current_xact_id()::text::int").fetchone() or (0,)
        xids.append(xid)
        source.commit()
    source.execute("TRUNCATE entry, account")
    (xid,) = source.execute("SELECT pg_current_xact_id()::text::int").fetchone() or (0,)
    source.commit()
    made.wait_until_logged(made.wal_end(), daemon)
    first = read(made, 11, group="books", unprocessed=1)
    rest = read(made, 21, group="books")
    assert [number for number, _ in first[:10] + rest] == [*xids, xid]
    for number, (_, events) in enumerate(first[:10] + rest[:-1], start=1):
        positions = [event.position.index for event in events if event.position]
        assert positions == sorted(positions)
        operations = "".join(event.operation for event in events)
        assert operations == f"c{'u' * number}dc"
        deleted, created = events[-2:]
        assert (deleted.key, created.key) == ({"id": 100 + number}, {"id": -100 - number})
    assert sorted((event.operation, event.table) for event in rest[-1][1]) == [
        ("t", "public.account"),
        ("t", "public.entry"),
    ]
    with pytest.raises(ConfigError, match="the group books reads whole transactions"):
        next(changes(made.settings, group="books"))
    source.execute("INSERT INTO entry VALUES (1, 1)")
    (xid,) = source.execute("SELECT pg_current_xact_id()::text::int").fetchone() or (0,)
    source.commit()
    made.wait_until_logged(made.wal_end(), daemon)
    at = rest[-1][1][0].commit_time
    assert [number for number, _ in read(made, 2, start=at)] == [rest[-1][0], xid]


def test_transactions_of_a_real_debezium_are_refused(pipeline: Made) -> None:
    lakehouse = {"topics_written_by": "debezium"}
    made = pipeline(preset="debezium", sections={"lakehouse": lakehouse})
    with pytest.raises(ConfigError, match="needs topics that Millrace writes"):
        changes(made.settings, transactions=True)


def test_the_next_member_begins_behind_what_was_processed(
    pipeline: Made, source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.reader.transactions.KEEP_S", 3_600)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.commit()
    made = pipeline(sections={"kafka": {"heartbeat.interval.ms": "100"}})
    daemon = made.catch_up()
    written = itertools.count()

    def write() -> None:
        source.execute("INSERT INTO t VALUES (%s)", [next(written)])
        source.commit()

    for _ in range(ROUND):
        write()
    made.wait_until_logged(made.wal_end(), daemon)
    is_over, processed, others = threading.Event(), list[int](), list[int]()

    def named(name: str) -> Settings:
        """The turn is that member's whose id comes first, which begins with its client's."""
        kafka = {**made.settings.kafka, "client.id": name}
        return made.settings.model_copy(update={"kafka": kafka})

    def go_on() -> None:
        ended = threading.Event()
        with changes(named("a"), group="g", transactions=True, stop=ended) as stream:
            for transaction in stream:
                is_over.set()
                others.extend(change.row["id"] for change in transaction)
                if others[-1] == LAST:
                    return

    other = threading.Thread(target=go_on)
    with changes(named("b"), group="g", transactions=True, stop=is_over) as stream:
        for transaction in stream:
            processed.extend(change.row["id"] for change in transaction)
            if len(processed) == 3:
                other.start()
            if len(processed) >= 3:
                time.sleep(0.2)
                write()  # there is more for the other, however late its turn comes
    source.execute("INSERT INTO t VALUES (%s)", [LAST])
    source.commit()
    other.join(60)
    assert processed + others == [*range(next(written)), LAST]
    assert len(processed) >= 3


def test_what_a_body_catches_passes_no_transaction(
    pipeline: Made, source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.commit()
    made = pipeline()
    daemon = made.catch_up()
    for number in (1, 3, 5):
        source.execute("INSERT INTO t VALUES (%s), (%s)", [number, number + 1])
        source.commit()
    made.wait_until_logged(made.wal_end(), daemon)
    event, failed = Envelopes.event, list[ChangeEvent]()

    def fail(self: Envelopes, message: Message, table: str) -> ChangeEvent | None:
        made_event = event(self, message, table)
        if made_event is not None and made_event.row == {"id": 4} and len(failed) < 2:
            failed.append(made_event)
            raise [LogFormatError("it can't be read"), ReaderStoppedError()][len(failed) - 1]
        return made_event

    monkeypatch.setattr(Envelopes, "event", fail)

    def pass_all() -> list[int]:
        passed, stop = list[int](), threading.Event()
        timer = threading.Timer(30, stop.set)  # it would wait for more
        timer.start()
        with changes(made.settings, group="g", transactions=True, stop=stop) as stream:
            for transaction in stream:
                with suppress(Exception):
                    passed.extend(change.row["id"] for change in transaction)
        timer.cancel()
        return passed

    with pytest.raises(LogFormatError):
        pass_all()
    assert pass_all() == [1, 2]  # it is told to end while it looks behind them
    rest = read(made, 3, group="g")
    assert [[change.row["id"] for change in each] for _, each in rest] == [[1, 2], [3, 4], [5, 6]]


def test_a_member_that_is_killed_tears_no_transaction(
    pipeline: Made, source: psycopg.Connection[Any], tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 7) i")
    source.commit()
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}})
    daemon = made.catch_up()
    members = Members(made, tmp_path, "transactions")
    try:
        for number in range(1, 41):
            source.execute("UPDATE t SET n = %s", [number])
            source.commit()
            if number == 10:
                killed = members.start()
                members.wait(lambda: len(members.processed(0)) > 7)
                members.start()
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        made.wait_until_logged(made.wal_end(), daemon)
        expected = {(row, n) for row in range(1, 8) for n in range(41)}
        members.wait(lambda: members.all() == expected)
    finally:
        members.end()
    for number in range(2):
        versions = [n for _, n in members.processed(number)]
        whole = len(versions) // 7 * 7  # the notes of the last one may be cut off
        assert all(len(set(versions[at : at + 7])) == 1 for at in range(0, whole, 7))
