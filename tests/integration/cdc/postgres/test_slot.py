"""The slot: made with an exact snapshot, inspected, locked, dropped, and refused if not ours."""

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.errors import ConfigError, GapError, SlotInUseError, SourceSettingError
from cdc.postgres import connection, slot
from cdc.postgres.checks import risks
from cdc.postgres.connection import query
from cdc.postgres.stream import ReplicationStream
from deploy.local.postgres import Postgres
from tests.fixtures.source import Conninfo, capture, run, session, streaming

pytestmark = pytest.mark.postgres


def name(database: Conninfo) -> str:
    return f"slot_{database['dbname']}"


def create(database: Conninfo) -> slot.ExportedSnapshot:
    pgconn = connection.connect_replication(database)
    try:
        return slot.create(pgconn, name(database))
    finally:
        pgconn.finish()


def test_life_of_a_slot(database: Conninfo) -> None:
    with session(database) as opened:
        assert slot.inspect(opened, name(database)) is None
        point = create(database).consistent_point
        state = slot.inspect(opened, name(database))
        assert state is not None
        slot.verify_ours(opened, state)
        assert slot.why_lost(state) is None
        assert (state.plugin, state.database) == ("pgoutput", database["dbname"])
        assert state.confirmed_flush_lsn == point
        assert (state.active, state.wal_status) == (False, "reserved")
        opened.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")
        later = slot.inspect(opened, name(database))
        assert later is not None
        assert later.retained_bytes >= later.lag_bytes > state.lag_bytes + 100_000
        assert slot.drop(opened, name(database))
        assert not slot.drop(opened, name(database))


def test_the_exported_snapshot_sees_what_came_before_and_not_after(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    with slot.exact_snapshot(database, name(database)) as exported, session(database) as reader:
        run(database, "INSERT INTO t VALUES (2)")
        with reader.transaction():
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{exported.name}'".encode())
            assert query(reader, "SELECT id FROM public.t") == [(1,)]
    with session(database) as opened:
        left = query(
            opened, "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
        )
        assert left == [], "the temporary slot went with its connection"


def test_creation_tells_how_long_it_waits_for_open_transactions(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int)")

    class EnoughError(Exception):
        pass

    def give_up(seconds: float) -> None:
        assert seconds >= 1
        raise EnoughError

    with session(database) as writer, writer.transaction():
        writer.execute("INSERT INTO public.t VALUES (1)")
        pgconn = connection.connect_replication(database)
        with pytest.raises(EnoughError):
            slot.create(pgconn, name(database), on_wait=give_up)
        pgconn.finish()


def test_one_session_at_a_time_has_the_lock(database: Conninfo) -> None:
    with session(database) as first, session(database) as second:
        assert slot.lock(first, "millrace")
        assert not slot.lock(second, "millrace")
        assert slot.lock(second, "another")
        first.close()
        taken = threading.Event()
        for _ in range(600):
            if slot.lock(second, "millrace"):
                taken.set()
                break
            taken.wait(0.1)
        assert taken.is_set()


def test_a_slot_that_exists_is_not_made_again(database: Conninfo) -> None:
    create(database)
    with pytest.raises(SlotInUseError, match="already exists"):
        create(database)


def test_a_slot_in_use_names_its_reader(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    settings = capture(database)
    with streaming(database, settings), session(database) as opened:
        state = slot.inspect(opened, settings.slot_name)
        assert state is not None
        assert state.active_pid
        with pytest.raises(SlotInUseError, match=str(state.active_pid)):
            slot.drop(opened, settings.slot_name)
        pgconn = connection.connect_replication(database)
        with pytest.raises(SlotInUseError, match=str(state.active_pid)) as caught:
            ReplicationStream.start(pgconn, settings.slot_name, "millrace")
        pgconn.finish()
    assert caught.value.retry


@pytest.mark.since(17, "slots that fail over")
def test_a_slot_is_made_for_a_failover_or_altered_to_be(database: Conninfo) -> None:
    pgconn = connection.connect_replication(database)
    try:
        with session(database) as opened:
            create(database)
            made = slot.inspect(opened, name(database))
            assert made is not None
            assert not made.failover
            slot.let_fail_over(pgconn, made)
            altered = slot.inspect(opened, name(database))
            assert altered is not None
            # The server may write WAL of its own in between.
            lag, retained = altered.lag_bytes, altered.retained_bytes
            expected = made._replace(failover=True, lag_bytes=lag, retained_bytes=retained)
            assert altered == expected
            assert slot.drop(opened, name(database))
            slot.create(pgconn, name(database), failover=True)
            again = slot.inspect(opened, name(database))
            assert again is not None
            assert again.failover
    finally:
        pgconn.finish()


@pytest.mark.parametrize(
    "make",
    [
        "SELECT pg_create_logical_replication_slot('foreign_{0}', 'test_decoding')",
        "SELECT pg_create_physical_replication_slot('foreign_{0}')",
    ],
)
def test_somebody_elses_slot_is_left_alone(database: Conninfo, make: str) -> None:
    foreign = f"foreign_{database['dbname']}"
    with session(database) as opened:
        opened.execute(make.format(database["dbname"]).encode())
        try:
            state = slot.inspect(opened, foreign)
            assert state is not None
            with pytest.raises(ConfigError, match="belongs to another program"):
                slot.verify_ours(opened, state)
        finally:
            opened.execute("SELECT pg_drop_replication_slot(%s)", [foreign])


def test_another_databases_slot_is_left_alone(postgres: Postgres, database: Conninfo) -> None:
    create(database)
    with session(postgres.conninfo()) as elsewhere:
        state = slot.inspect(elsewhere, name(database))
        assert state is not None
        with pytest.raises(ConfigError, match=f"database {database['dbname']}"):
            slot.verify_ours(elsewhere, state)


@pytest.mark.proof
def test_no_free_slot_is_a_setting_to_raise(server_folder: Path) -> None:
    server = Postgres(server_folder, {"max_replication_slots": "1"}).start()
    try:
        run(server.conninfo(), "SELECT pg_create_physical_replication_slot('taken')")
        with pytest.raises(SourceSettingError, match="max_replication_slots"):
            create(server.conninfo())
    finally:
        server.stop()


def test_a_slot_that_lost_its_wal_is_a_gap(server_folder: Path) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    server = Postgres(server_folder, settings).start()
    database = server.conninfo()
    try:
        run(database, "CREATE TABLE t (id int PRIMARY KEY)")
        configured = capture(database)
        with streaming(database, configured):
            pass
        with session(database) as opened:
            for _ in range(5):
                opened.execute("SELECT pg_switch_wal()")
                opened.execute("INSERT INTO public.t SELECT coalesce(max(id), 0) + 1 FROM public.t")
            opened.execute("CHECKPOINT")
            state = slot.inspect(opened, configured.slot_name)
            assert state is not None
            assert state.wal_status == "lost"
            assert "max_slot_wal_keep_size is 1MB" in str(slot.why_lost(state))
        with pytest.raises(GapError, match="millrace new-epoch"), streaming(database, configured):
            pass
    finally:
        server.stop()


def test_a_failover_is_spoken_of_where_there_is_a_standby_and_as_the_version_has_it(
    database: Conninfo,
) -> None:
    with session(database) as opened, capture_logs() as lines:
        risks.warn_of_failover(opened, wanted=True)
        assert lines == []
        physical = f"physical_{database['dbname']}"
        query(opened, f"SELECT pg_create_physical_replication_slot('{physical}')::text")
        try:
            risks.warn_of_failover(opened, wanted=False)
            assert lines == []
            risks.warn_of_failover(opened, wanted=True)
        finally:
            query(opened, f"SELECT pg_drop_replication_slot('{physical}')")
        is_copied = slot.has_failover(opened.pgconn)
    (line,) = lines
    assert line["standbys"] == [physical]
    assert ("synchronized_standby_slots" in line["remedy"]) == is_copied
    assert ("new-epoch" in line["remedy"]) != is_copied
