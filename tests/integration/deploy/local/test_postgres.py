"""The local PostgreSQL: its settings, its restarts and crashes, TLS, leftover slots."""

import os
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deploy.local.certificates import Certificates
from deploy.local.postgres import Postgres
from deploy.local.processes import Account

pytestmark = pytest.mark.postgres

Conninfo = dict[str, str]

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


def connect(conninfo: Conninfo, **more: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(**{**conninfo, **more}), autocommit=True)


def single_value(conninfo: Conninfo, query: str) -> object:
    with connect(conninfo) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def waits_for_data(connection: psycopg.Connection) -> bool:
    result = connection.pgconn.get_result()
    return result is not None and result.status == psycopg.pq.ExecStatus.COPY_BOTH


def test_logical_decoding_is_on_and_time_is_utc(database: Conninfo) -> None:
    assert single_value(database, "SHOW wal_level") == "logical"
    assert single_value(database, "SHOW timezone") == "UTC"
    assert single_value(database, "SHOW server_version_num") >= "180000"  # type: ignore[operator]


def test_wrong_password_is_refused(database: Conninfo) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(database, password="wrong")


@pytest.mark.proof
def test_restart_takes_new_settings_and_crash_keeps_rows(server_folder: Path) -> None:
    server = Postgres(server_folder, {"max_replication_slots": "7"}).start()
    conninfo = server.create_database("it's")
    assert single_value(conninfo, "SHOW max_replication_slots") == "7"
    single_value(conninfo, "CREATE TABLE t AS SELECT 1 AS a")
    server.settings["max_replication_slots"] = "8"
    server.kill()
    server.start()
    assert single_value(conninfo, "SELECT a FROM t") == 1
    assert single_value(conninfo, "SHOW max_replication_slots") == "8"
    server.restart()
    assert single_value(conninfo, "SELECT a FROM t") == 1
    server.stop()


def test_database_is_dropped_with_the_slot_that_a_walsender_holds(postgres: Postgres) -> None:
    conninfo = postgres.create_database("left")
    held = connect(conninfo, replication="database")
    held.execute("CREATE_REPLICATION_SLOT leftover LOGICAL pgoutput")
    options = b"(proto_version '4', publication_names 'p')"
    held.pgconn.send_query(b"START_REPLICATION SLOT leftover LOGICAL 0/0 " + options)
    assert waits_for_data(held)
    postgres.drop_database("left")
    held.close()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'leftover'"
    assert single_value(postgres.conninfo(), slots) == 0


@pytest.mark.proof
def test_tls_is_verified_and_required(server_folder: Path) -> None:
    certificates = Certificates.create(server_folder / "certificates")
    other = Certificates.create(server_folder / "other")
    server = Postgres(server_folder, certificates=certificates).start()
    conninfo = server.conninfo()
    assert conninfo["sslmode"] == "verify-full"
    with connect(conninfo) as connection:
        assert connection.pgconn.ssl_in_use
        rows = connection.execute("SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        assert len(rows.fetchall()) == 20_000
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        connect(conninfo, sslrootcert=str(other.authority))
    with pytest.raises(psycopg.OperationalError):
        connect(conninfo, sslmode="disable")
    server.restart()
    assert single_value(conninfo, "SELECT 1") == 1
    server.stop()


@pytest.mark.proof
@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_server_that_the_account_cannot_reach_runs_from_a_copy(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "reaches", lambda _self, path: "site-packages" not in str(path))
    server = Postgres(server_folder).start()
    assert server_folder in server.bin("postgres").parents
    assert single_value(server.conninfo(), "SELECT 1") == 1
    server.stop()


@pytest.mark.proof
@pytest.mark.skipif(not DEBIAN_15.exists(), reason="Debian's PostgreSQL 15 isn't installed")
def test_another_version_runs_from_its_own_folder_with_its_own_tls(server_folder: Path) -> None:
    certificates = Certificates.create(server_folder / "certificates")
    server = Postgres(server_folder, certificates=certificates, binaries=DEBIAN_15).start()
    conninfo = server.conninfo()
    assert str(single_value(conninfo, "SHOW server_version")).startswith("15.")
    assert (
        single_value(conninfo, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is True
    )
    server.stop()


def test_programs_are_the_servers_own(postgres: Postgres) -> None:
    for name in ("psql", "pgbench", "pg_recvlogical", "pg_dump"):
        assert postgres.bin(name).exists()
