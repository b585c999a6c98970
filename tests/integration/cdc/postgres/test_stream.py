"""The replication stream: frames, status updates, and the meaning of each kind of end."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.errors import GapError, PublicationError, SourceUnreachableError
from cdc.postgres import connection, slot
from cdc.postgres.connection import query
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Lsn
from cdc.wal.frames import PrimaryKeepalive, XLogData
from cdc.wal.messages import Begin, Commit, Insert, LogicalMessage, Message
from deploy.local.certificates import Certificates
from deploy.local.postgres import Postgres
from tests.fixtures.proxy import Proxy
from tests.fixtures.source import Conninfo, capture, frames, messages, run, session, streaming

pytestmark = pytest.mark.postgres

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def is_commit(message: Message) -> bool:
    return isinstance(message, Commit)


def confirmed(database: Conninfo) -> Lsn:
    with session(database) as opened:
        state = slot.inspect(opened, f"slot_{database['dbname']}")
    assert state is not None
    return state.confirmed_flush_lsn


def test_a_transaction_arrives_whole_and_in_order(database: Conninfo) -> None:
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        run(database, "INSERT INTO t SELECT i, repeat('x', i) FROM generate_series(1, 5000) i")
        found = messages(stream, is_commit)
        while not any(isinstance(message, Insert) for message in found):
            found = messages(stream, is_commit)  # before 15, others' commits are sent, too
    assert isinstance(found[0], Begin)
    rows = [message.new for message in found if isinstance(message, Insert)]
    assert rows == [(b"%d" % i, b"x" * i) for i in range(1, 5001)]


def test_tls_streams_rows_of_every_size_without_a_stall(server_folder: Path) -> None:
    server = Postgres(
        server_folder, certificates=Certificates.create(server_folder / "tls")
    ).start()
    database = server.conninfo()
    try:
        run(database, TABLE)
        with streaming(database, capture(database)) as stream:
            started = time.monotonic()
            for size in (1, 8_000, 16_300, 16_400, 24_577, 100_000, 12_000_000):
                run(database, f"INSERT INTO t VALUES ({size}, repeat('y', {size}))")
                found = messages(stream, is_commit)
                (row,) = [message.new for message in found if isinstance(message, Insert)]
                assert row[1] == b"y" * size
            # One poll for each of TLS's records of the last row would take twice as long.
            assert time.monotonic() - started < 20
    finally:
        server.stop()


def test_logical_messages_arrive(database: Conninfo) -> None:
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        run(database, "SELECT pg_logical_emit_message(true, 'beat', 'x')")
        found = messages(stream, is_commit)
    assert [m.prefix for m in found if isinstance(m, LogicalMessage)] == ["beat"]


def test_an_idle_read_comes_back_in_time(database: Conninfo) -> None:
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        waited = 0.0
        for _ in range(20):  # reads that bring keepalives come back sooner
            started = time.monotonic()
            if not frames(stream, 0.3):
                waited = time.monotonic() - started
                break
    assert 0.25 <= waited < 10


def test_a_publication_that_is_missing_stops_the_stream(database: Conninfo) -> None:
    run(database, TABLE)
    pgconn = connection.connect_replication(database)
    slot.create(pgconn, f"slot_{database['dbname']}")
    stream = ReplicationStream.start(pgconn, f"slot_{database['dbname']}", "nosuch")
    run(database, "INSERT INTO t VALUES (1)")
    with pytest.raises(PublicationError, match="nosuch"):
        messages(stream, is_commit)
    stream.close()


def test_what_is_acknowledged_is_confirmed_once_the_stream_is_closed(database: Conninfo) -> None:
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        run(database, "INSERT INTO t VALUES (1)")
        commit = messages(stream, is_commit)[-1]
        assert isinstance(commit, Commit)
        run(database, "INSERT INTO t SELECT i FROM generate_series(2, 50000) i")
        time.sleep(0.5)  # unread rows must not keep the update from the server
        stream.send_status(commit.end_lsn, commit.end_lsn)
    assert confirmed(database) == commit.end_lsn


def test_a_busy_stream_is_closed_once_the_server_has_answered(database: Conninfo) -> None:
    """The answer is shorter than what a busy stream waits for."""
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        insert = "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series({}, {}) i"
        for first in range(0, 1_000_000, 20_000):
            run(database, insert.format(first, first + 19_999))
            messages(stream, is_commit)
            if stream.is_busy:
                break
        assert stream.is_busy
        closing = time.monotonic()
    assert time.monotonic() - closing < 30, "half of what the fixture gives it"


def test_without_an_acknowledgement_everything_comes_again(database: Conninfo) -> None:
    run(database, TABLE)
    settings = capture(database)
    with streaming(database, settings) as stream:
        run(database, "INSERT INTO t VALUES (1)")
        first = messages(stream, is_commit)
        stream.keep_alive()
    with streaming(database, settings) as stream:
        assert messages(stream, is_commit) == first


@pytest.mark.proof
def test_status_updates_alone_keep_the_stream_for_longer_than_the_timeout(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while Kafka is away: nothing is read, the socket is full, only keep_alive is called."""
    monkeypatch.setitem(connection._PINNED_REPLICATION, "wal_sender_timeout", "4s")
    run(database, TABLE)
    source = {**database, "options": ""}
    with streaming(source, capture(database)) as stream:
        pid = walsender(database)
        run(database, "INSERT INTO t SELECT i, repeat('z', 500) FROM generate_series(1, 60000) i")
        slowest = 0.0
        until = time.monotonic() + 6
        while time.monotonic() < until:
            started = time.monotonic()
            stream.keep_alive()
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.1)
        assert walsender(database) == pid
        assert len(messages(stream, is_commit)) > 60_000
    assert slowest < 0.1


def walsender(database: Conninfo) -> int:
    with session(database) as opened:
        ((pid,),) = query(
            opened,
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s",
            [f"slot_{database['dbname']}"],
        )
    return int(pid)


def test_a_terminated_walsender_is_a_lost_connection(database: Conninfo) -> None:
    run(database, TABLE)
    with streaming(database, capture(database)) as stream:
        run(database, f"SELECT pg_terminate_backend({walsender(database)})")
        with pytest.raises(SourceUnreachableError) as caught:
            messages(stream, is_commit)
    assert caught.value.retry


def test_a_cut_connection_is_a_lost_connection(
    postgres: Postgres, database: Conninfo, proxy: Callable[[int], Proxy]
) -> None:
    run(database, TABLE)
    way = proxy(postgres.port)
    with streaming({**database, "port": str(way.port)}, capture(database)) as stream:
        way.cut()
        with pytest.raises(SourceUnreachableError, match="lost"):
            messages(stream, is_commit)


def test_a_slot_that_is_gone_is_a_gap(database: Conninfo) -> None:
    pgconn = connection.connect_replication(database)
    with pytest.raises(GapError, match="no longer exists"):
        ReplicationStream.start(pgconn, "nosuch", "millrace")
    pgconn.finish()


def test_a_quiet_stream_delivers_a_change_within_milliseconds(database: Conninfo) -> None:
    run(database, TABLE)
    delays: list[float] = []
    with streaming(database, capture(database)) as stream, session(database) as writer:
        for number in range(40):
            while not all(isinstance(f, PrimaryKeepalive) for f in frames(stream, 0.02)):
                pass
            query(writer, "INSERT INTO public.t VALUES (%s)", [number])
            started = time.monotonic()
            while not any(isinstance(f, XLogData) for f in frames(stream, 1)):
                pass
            delays.append(time.monotonic() - started)
    # On a busy machine, the scheduler has its part in most of them.
    assert sorted(delays)[10] < 0.01
