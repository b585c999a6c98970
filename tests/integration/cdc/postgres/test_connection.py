"""Connections → pinned settings, and the message of each refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import (
    ConfigError,
    MillraceError,
    SourceAuthenticationError,
    SourcePrivilegeError,
    SourceUnreachableError,
)
from cdc.postgres import connection
from deploy.local.certificates import Certificates
from deploy.local.postgres import Postgres
from tests.fixtures.proxy import Proxy
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres


def connect_as_daemon(source: Conninfo) -> object:
    return connection.connect(source, purpose="test")


REFUSED: list[tuple[dict[str, str], type[MillraceError], str]] = [
    ({"password": "guessed-wrong"}, SourceAuthenticationError, "check user and password"),
    ({"port": "1"}, SourceUnreachableError, "check host and port"),
    ({"host": "nosuch.invalid"}, SourceUnreachableError, "check host and port"),
    ({"dbname": "nosuch"}, ConfigError, "dbname"),
    ({"sslmode": "require"}, SourceAuthenticationError, "sslmode"),
    ({"sslmode": "maybe"}, ConfigError, "[source]"),
    ({"passwrd": "x"}, ConfigError, "libpq's connection keywords"),
    ({"port": "many"}, ConfigError, "[source]"),
    ({"connect_timeout": "soon"}, ConfigError, "[source]"),
    ({"options": "-c nosuch=1"}, ConfigError, "[source]"),
]


@pytest.mark.parametrize(("keywords", "error", "remedy"), REFUSED)
@pytest.mark.parametrize("replication", [False, True])
def test_each_refusal_has_its_class_and_remedy_and_no_secret(
    database: Conninfo,
    keywords: dict[str, str],
    error: type[MillraceError],
    remedy: str,
    *,
    replication: bool,
) -> None:
    source = {**database, **keywords}
    connect = connection.connect_replication if replication else connect_as_daemon
    with pytest.raises(error) as caught:
        connect(source)
    text = str(caught.value)
    assert remedy in text
    assert source["password"] not in text
    assert database["password"] not in text


def test_values_print_alike_whatever_the_role_prefers(database: Conninfo) -> None:
    run(
        database,
        "CREATE ROLE odd LOGIN PASSWORD 'odd'",
        "ALTER ROLE odd SET TimeZone = 'Asia/Tokyo'",
        "ALTER ROLE odd SET DateStyle = 'German'",
        "ALTER ROLE odd SET bytea_output = 'escape'",
        "ALTER ROLE odd SET statement_timeout = '1ms'",
        "ALTER ROLE odd SET extra_float_digits = '-5'",
    )
    try:
        with session(database, user="odd", password="odd") as opened:
            text = connection.query(
                opened,
                "SELECT timestamptz '2024-01-02 03:04:05+00' || '', '\\x00ff'::bytea::text,"
                " (0.1::float8 + 0.2::float8)::text, (interval '1 day 2 s')::text,"
                " current_setting('statement_timeout')",
            )
        assert text == [("2024-01-02 03:04:05+00", "\\x00ff", "0.30000000000000004", "P1DT2S", "0")]
    finally:
        run(database, "DROP ROLE odd")


def test_the_users_own_options_and_names_are_kept(database: Conninfo) -> None:
    with session(database, options="-c work_mem=7MB", application_name="mine") as opened:
        assert connection.query(opened, "SHOW work_mem") == [("7MB",)]
        assert connection.query(opened, "SHOW TimeZone") == [("UTC",)]
        assert connection.query(opened, "SHOW application_name") == [("mine",)]


def test_the_replication_connection_knows_its_history(database: Conninfo) -> None:
    pgconn = connection.connect_replication(database)
    system = connection.identify(pgconn)
    timeout = connection.command(pgconn, "SHOW wal_sender_timeout").get_value(0, 0)
    pgconn.finish()
    assert system.identifier.isdigit()
    assert system.timeline >= 1
    assert system.database == database["dbname"]
    assert timeout == b"10s"


@pytest.mark.parametrize(
    "connect", [connect_as_daemon, connection.connect_replication], ids=["sql", "replication"]
)
def test_hosts_that_refuse_or_are_silent_are_passed_over(
    database: Conninfo, proxy: Callable[[int], Proxy], connect: Callable[[Conninfo], Any]
) -> None:
    port = database["port"]
    silent = proxy(int(port))
    silent.deafen()
    hosts = {"host": "127.0.0.1,127.0.0.1,127.0.0.1", "port": f"1,{silent.port},{port}"}
    opened = connect({**database, **hosts, "connect_timeout": "2"})
    assert getattr(opened, "pgconn", opened).port.decode() == port
    (opened.close if hasattr(opened, "close") else opened.finish)()
    with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1"):
        connect({**database, "host": "127.0.0.1,127.0.0.1", "port": "1,2"})


def test_a_role_without_replication_is_told_what_to_run(database: Conninfo) -> None:
    run(database, "CREATE ROLE plain LOGIN PASSWORD 'plain'")
    try:
        with pytest.raises(SourcePrivilegeError, match="ALTER ROLE plain REPLICATION;"):
            connection.connect_replication({**database, "user": "plain", "password": "plain"})
    finally:
        run(database, "DROP ROLE plain")


def test_tls_is_verified(server_folder: Path) -> None:
    certificates = Certificates.create(server_folder / "tls")
    other = Certificates.create(server_folder / "other")
    server = Postgres(server_folder, certificates=certificates).start()
    try:
        with session(server.conninfo()) as opened:
            assert opened.pgconn.ssl_in_use
        with (
            pytest.raises(SourceAuthenticationError, match="sslrootcert"),
            session(server.conninfo(), sslrootcert=str(other.authority)),
        ):
            pass
    finally:
        server.stop()
