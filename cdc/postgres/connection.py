"""libpq keywords from [source] → connections that all write values as text in the same form.

Snapshot and stream must print one value alike, whatever the role's or the server's defaults are,
so every setting that changes a type's text is pinned in the start-up packet. The user's keywords
are kept, and win where nothing depends on the value.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psycopg
import structlog
from psycopg import pq, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult

from cdc.errors import ConfigError, SourceError, SourceUnreachableError
from cdc.postgres.failures import (
    VERSION_MIN,
    RefusedError,
    connect_error,
    explained,
    server_address,
    unfit,
)
from cdc.records.position import Lsn
from cdc.settings import LibraryOptions

_PINNED: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    # Bounds of partitions are read as it writes constants: a backslash is one.
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "lc_monetary": "C",
    # Names inside regclass values, row filters and declared types are always qualified.
    "search_path": "pg_catalog",
    # A policy must never hide rows from a snapshot in silence: with off, the server raises.
    "row_security": "off",
    # From PostgreSQL 18 on, a missing publication is a warning: unheard, its changes would be lost.
    "client_min_messages": "notice",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # The server notices within half a minute that we died without a word, and frees the lock.
    # No tcp_user_timeout there: it would cut a connection that we leave unread under back pressure.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_PINNED_QUERY: Final = {"lock_timeout": "10s"}
_PINNED_REPLICATION: Final = {"wal_sender_timeout": "10s"}
_PINNED_SINCE: Final = ((170_000, "SET transaction_timeout = 0"),)
"""Settings that an older server would refuse to start a session with."""

_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_UNKNOWN_SETTING: Final = re.compile("unrecognized configuration parameter", re.IGNORECASE)
_RAW: Final = "SET client_encoding = 'SQL_ASCII'"
_TEXT_TYPES: Final = (0, "text", "name", "varchar", "bpchar", '"char"')  # 0: any unknown one
_NAME: Final = "millrace"
REPLICATION_NAME: Final = f"{_NAME} replication"
"""Our application_name, unless [source] has one."""
_POLL_EVENTS: Final = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}
_POLL_MS: Final = 200
_POLL_TLS_S: Final = 0.05
"""Under TLS, decrypted bytes can wait in the library while the socket is silent: look often."""


log = structlog.get_logger()


class System(NamedTuple):
    """Which history a server writes: IDENTIFY_SYSTEM's answer.

    ``forks`` says of each earlier timeline where this one has left it, as far as that is known.
    """

    identifier: str
    timeline: int
    flush_lsn: Lsn
    database: str
    forks: Mapping[int, Lsn] = MappingProxyType({})


def connect(
    source: LibraryOptions, *, purpose: str, pinned: Mapping[str, str] = MappingProxyType({})
) -> psycopg.Connection:
    """Open an autocommit session ``millrace <purpose>``; errors: docs/reference/errors.md."""
    conninfo = _conninfo(source, purpose, {**_PINNED, **_PINNED_QUERY, **pinned})
    try:
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise _refused(str(error), source) from None
    except psycopg.ProgrammingError as error:
        raise ConfigError(str(error).strip(), where="[source]") from None
    _check_server(connection.pgconn)
    for since, statement in _PINNED_SINCE:
        if connection.info.server_version >= since:
            query(connection, statement)
    if _has_raw_text(connection.pgconn):
        query(connection, _RAW)
        for kind in _TEXT_TYPES:
            connection.adapters.register_loader(kind, _TextLoader)
    return connection


def connect_replication(source: LibraryOptions) -> PGconn:
    """Open a connection that takes replication commands of its database.

    Hosts are tried one by one: libpq, asked not to block, would wait for a silent one for ever.
    """
    failures = []
    for host in _hosts(source):
        try:
            return _connect_replication(host)
        except SourceUnreachableError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise SourceUnreachableError(
        "; ".join(f"{failure.where}: {failure.what}" for failure in failures),
        where=target(source),
        remedy=failures[-1].remedy,
    )


def _connect_replication(source: LibraryOptions) -> PGconn:
    options = {**_PINNED, **_PINNED_REPLICATION}
    conninfo = _conninfo({**source, "replication": "database"}, "replication", options)
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    _complete(pgconn, source)
    if pgconn.status != pq.ConnStatus.OK:
        error = _refused(pgconn.get_error_message(), source)
        pgconn.finish()
        raise error
    _check_server(pgconn)
    for since, statement in _PINNED_SINCE:
        if pgconn.server_version >= since:
            command(pgconn, statement)
    if _has_raw_text(pgconn):
        command(pgconn, _RAW)
    return pgconn


class _TextLoader(Loader):
    """Text as it came; bytes that aren't UTF-8 become UNREADABLE."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "replace")


def _has_raw_text(pgconn: PGconn) -> bool:
    """Whether the database takes any bytes as text: it refuses to send as UTF-8 what isn't."""
    return pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII"


def target(source: LibraryOptions) -> str:
    """Where the keywords lead, without secrets: ``host:port/dbname``."""
    keywords = _effective(source)
    host = keywords.get("host") or keywords.get("hostaddr") or "local"
    return f"{host}:{keywords.get('port', '')}/{keywords.get('dbname', '')}"


def query(
    connection: psycopg.Connection,
    statement: sql.SQL | sql.Composed | str,
    parameters: Sequence[Any] | None = None,
) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows, if it has any."""
    with explained(connection.pgconn):
        text = statement.encode() if isinstance(statement, str) else statement.as_bytes()
        cursor = connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def bounded(connection: psycopg.Connection, timeout_s: float) -> Iterator[None]:
    """Cut the connection when what is within takes longer: a server that is silent is gone."""
    with explained(connection.pgconn):
        descriptor = os.dup(connection.fileno())
    with socket.socket(fileno=descriptor) as way:
        timer = threading.Timer(timeout_s, _cut, [way])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _cut(way: socket.socket) -> None:
    with suppress(OSError):  # closed by now
        way.shutdown(socket.SHUT_RDWR)


@contextmanager
def at_one_instant(connection: psycopg.Connection) -> Iterator[None]:
    """Let all queries within see the same state, though others change tables meanwhile.

    In a transaction it is up to that.
    """
    if connection.info.transaction_status != pq.TransactionStatus.IDLE:
        yield
        return
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if connection.pgconn.status == pq.ConnStatus.OK:
            query(connection, "ROLLBACK")


def command(pgconn: PGconn, text: str) -> PGresult:
    """Run a replication command or a simple query, and return its result."""
    with explained(pgconn):
        result = pgconn.exec_(text.encode())
    if result.status in {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}:
        raise RefusedError.of(result).error(server_address(pgconn))
    return result


def identify(pgconn: PGconn) -> System:
    """Ask the server which history it writes, and how far it is."""
    result = command(pgconn, "IDENTIFY_SYSTEM")
    identifier, timeline, lsn, database = (
        (result.get_value(0, number) or b"").decode() for number in range(4)
    )
    forks = _forks(pgconn, int(timeline)) if int(timeline) > 1 else {}
    return System(identifier, int(timeline), Lsn.parse(lsn), database, forks)


def current_wal_end(connection: psycopg.Connection) -> Lsn:
    """How far the server's WAL is durable: nobody was ever sent more of this history."""
    ((lsn,),) = query(connection, "SELECT pg_current_wal_flush_lsn()::text")
    return Lsn.parse(lsn)


def current_insert_lsn(connection: psycopg.Connection) -> Lsn:
    """How far the server's WAL is, durable or not: what is written from now on is behind that."""
    ((lsn,),) = query(connection, "SELECT pg_current_wal_insert_lsn()::text")
    return Lsn.parse(lsn)


def _forks(pgconn: PGconn, timeline: int) -> dict[int, Lsn]:
    """The timeline's history file: per line an earlier timeline, where it was left, and why."""
    with explained(pgconn):
        result = pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
    if result.status != pq.ExecStatus.TUPLES_OK:  # the file is gone: then nothing is known
        return {}
    content = (result.get_value(0, 1) or b"").decode("utf-8", "replace")
    forks = re.findall(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", content, re.MULTILINE)
    return {int(number): Lsn.parse(lsn) for number, lsn in forks}


def wait_readable(pgconn: PGconn, timeout_s: float) -> bool:
    """Wait until something may have arrived, then take it from the socket into libpq.

    Returns whether it looked; False means that the time is over and nothing came.
    """
    if pgconn.ssl_in_use or pgconn.used_gssapi:
        timeout_s = min(timeout_s, _POLL_TLS_S)
    poller = select.poll()
    poller.register(pgconn.socket, select.POLLIN)
    ready = bool(poller.poll(max(0, timeout_s) * 1000))
    if ready or pgconn.ssl_in_use or pgconn.used_gssapi:
        with explained(pgconn):
            pgconn.consume_input()
    return ready


def _complete(pgconn: PGconn, source: LibraryOptions) -> None:
    """Wait for the connection; libpq's own way of waiting stops every thread of ours."""
    given = source.get("connect_timeout", _DEFAULTS["connect_timeout"]).strip()
    if not given.lstrip("-").isdecimal():
        raise ConfigError(f"bad value for connect_timeout: {given!r}", where="[source]")
    seconds = int(given)
    deadline = time.monotonic() + seconds if seconds > 0 else math.inf
    waiting = pq.PollingStatus.WRITING
    while pgconn.status != pq.ConnStatus.BAD and waiting in _POLL_EVENTS:
        poller = select.poll()
        poller.register(pgconn.socket, _POLL_EVENTS[waiting])
        if poller.poll(_POLL_MS):
            waiting = pq.PollingStatus(pgconn.connect_poll())
        elif time.monotonic() > deadline:
            pgconn.finish()
            raise _refused(f"no answer in {seconds} seconds", source)


def _hosts(source: LibraryOptions) -> Iterator[LibraryOptions]:
    """The keywords with each of the hosts that they list."""
    keywords = _effective(source)
    listed = {
        keyword: keywords[keyword].split(",")
        for keyword in ("host", "hostaddr", "port")
        if "," in keywords.get(keyword, "")
    }
    for number in range(max(map(len, listed.values()), default=1)):
        yield {
            **source,
            **{keyword: (values * (number + 1))[number] for keyword, values in listed.items()},
        }


def _conninfo(source: LibraryOptions, purpose: str, pinned: dict[str, str]) -> str:
    options = " ".join(f"-c {name}={value}" for name, value in pinned.items())
    keywords = {
        **_DEFAULTS,
        "application_name": f"{_NAME} {purpose}",
        **source,
        "client_encoding": "UTF8",
        "options": f"{source.get('options', '')} {options}".strip(),
    }
    try:
        return make_conninfo(**keywords)
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            str(error).strip(),
            where="[source]",
            remedy="[source] takes libpq's connection keywords: host, port, dbname, user …",
        ) from None


def _effective(source: LibraryOptions) -> dict[str, str]:
    """The keywords, and libpq's defaults (environment, user name) for those not given."""
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }
    keywords = {**defaults, **source}
    keywords.setdefault("dbname", keywords.get("user", ""))
    return keywords


def _refused(text: str, source: LibraryOptions) -> Exception:
    keywords = _effective(source)
    if _UNKNOWN_SETTING.search(text) and (error := _ask_version(source)) is not None:
        return error
    return connect_error(text, target(source), keywords.get("user", ""), keywords.get("dbname", ""))


def _ask_version(source: LibraryOptions) -> SourceError | None:
    """Why the server is too old, where that is so, and no keyword is wrong."""
    conninfo = _conninfo(source, "version", {})
    try:
        with psycopg.connect(conninfo) as connection:
            is_old = connection.info.server_version < VERSION_MIN
            return unfit(connection.pgconn) if is_old else None
    except psycopg.Error:
        return None


def _check_server(pgconn: PGconn) -> None:
    """Raise SourceSettingError for a server that isn't PostgreSQL 14 or newer, or for a pooler.

    It asks nothing: a server tells its version, and how the session is set, as it begins. What is
    refused is closed.
    """
    error = unfit(pgconn)
    if error is not None:
        pgconn.finish()
        raise error


def act(connection: psycopg.Connection, statement: str) -> None:
    """Run the user's statement; as with Debezium its failure is logged, and streaming goes on.

    Our sessions look names up in pg_catalog alone, the user's statement where PostgreSQL does.
    """
    query(connection, 'SET search_path = "$user", public')
    try:
        query(connection, statement)
    except SourceError as error:
        if connection.closed:
            raise
        log.warning("heartbeat.action.query failed", reason=error.what)
    query(connection, "SET search_path = pg_catalog")
