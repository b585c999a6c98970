"""libpq keywords from [source] → connections that all write values as text in the same form.

Snapshot and stream must print a value alike, whatever the defaults of the role or the server are.
So the start-up packet pins every setting that changes a type's text. The user's keywords stay, and
take precedence if nothing depends on the value.
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
    # Partition bounds are read in the form of its constants: a backslash is itself.
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "lc_monetary": "C",
    # Names inside regclass values, row filters and declared types are always qualified.
    "search_path": "pg_catalog",
    # A policy must never hide rows from a snapshot silently: with off, the server raises.
    "row_security": "off",
    # From PostgreSQL 18 on, a missing publication is only a warning, and its changes would be lost.
    "client_min_messages": "notice",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # The server notices our silent death within half a minute, and frees the lock. It has no
    # tcp_user_timeout, which would cut a connection that we leave unread under back pressure.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_PINNED_QUERY: Final = {"lock_timeout": "10s"}
_PINNED_REPLICATION: Final = {"wal_sender_timeout": "10s"}
_PINNED_SINCE: Final = ((170_000, "SET transaction_timeout = 0"),)
"""Settings with which an older server would refuse a session."""

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
"""Under TLS, decrypted bytes can wait in the library while the socket is silent: poll often."""


log = structlog.get_logger()


class System(NamedTuple):
    """The history that a server writes: the answer of IDENTIFY_SYSTEM.

    ``forks`` has the LSN at which this timeline left each earlier one, if known.
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

    Hosts are tried one by one: libpq without blocking would wait for a silent one without limit.
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
    """Text unchanged. Bytes that aren't UTF-8 become UNREADABLE."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "replace")


def _has_raw_text(pgconn: PGconn) -> bool:
    """Whether the database stores any bytes as text: it doesn't send them as UTF-8 then."""
    return pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII"


def target(source: LibraryOptions) -> str:
    """Return the keywords' server, without secrets: ``host:port/dbname``."""
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
    """Cut the connection if the block takes longer, as a silent server counts as gone."""
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
    with suppress(OSError):  # already closed
        way.shutdown(socket.SHUT_RDWR)


@contextmanager
def at_one_instant(connection: psycopg.Connection) -> Iterator[None]:
    """Let all queries of the block see the same state, despite concurrent changes.

    Within a transaction, its isolation level decides.
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
    """Ask the server for the history that it writes, and its position."""
    result = command(pgconn, "IDENTIFY_SYSTEM")
    identifier, timeline, lsn, database = (
        (result.get_value(0, number) or b"").decode() for number in range(4)
    )
    forks = _forks(pgconn, int(timeline)) if int(timeline) > 1 else {}
    return System(identifier, int(timeline), Lsn.parse(lsn), database, forks)


def current_wal_end(connection: psycopg.Connection) -> Lsn:
    """Return the end of the server's durable WAL. No stream has more of this history."""
    ((lsn,),) = query(connection, "SELECT pg_current_wal_flush_lsn()::text")
    return Lsn.parse(lsn)


def current_insert_lsn(connection: psycopg.Connection) -> Lsn:
    """Return the end of the server's WAL, durable or not. All later writes are behind it."""
    ((lsn,),) = query(connection, "SELECT pg_current_wal_insert_lsn()::text")
    return Lsn.parse(lsn)


def _forks(pgconn: PGconn, timeline: int) -> dict[int, Lsn]:
    """Return the timeline's history file: per line an earlier timeline, its end, and why."""
    with explained(pgconn):
        result = pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
    if result.status != pq.ExecStatus.TUPLES_OK:  # the file is gone, so nothing is known
        return {}
    content = (result.get_value(0, 1) or b"").decode("utf-8", "replace")
    forks = re.findall(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", content, re.MULTILINE)
    return {int(number): Lsn.parse(lsn) for number, lsn in forks}


def wait_readable(pgconn: PGconn, timeout_s: float) -> bool:
    """Wait until data may have arrived, then move it from the socket into libpq.

    Return whether it read. False: the time is over without data.
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
    """Wait for the connection, as libpq's own wait stops every thread of ours."""
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
    """Yield the keywords with each of the hosts that they list."""
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
    """Return the keywords, and libpq's defaults (environment, user name) for others."""
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
    """Return the error if the server is too old and no keyword is wrong."""
    conninfo = _conninfo(source, "version", {})
    try:
        with psycopg.connect(conninfo) as connection:
            is_old = connection.info.server_version < VERSION_MIN
            return unfit(connection.pgconn) if is_old else None
    except psycopg.Error:
        return None


def _check_server(pgconn: PGconn) -> None:
    """Raise SourceSettingError for a server that isn't PostgreSQL 14 or newer, or for a pooler.

    It sends no query: a server reports its version and the session's settings at the start. A
    refused connection is closed.
    """
    error = unfit(pgconn)
    if error is not None:
        pgconn.finish()
        raise error


def act(connection: psycopg.Connection, statement: str) -> None:
    """Run the user's statement. As in Debezium, its failure is logged, and streaming continues.

    Our sessions look names up only in pg_catalog; the user's statement uses PostgreSQL's default.
    """
    query(connection, 'SET search_path = "$user", public')
    try:
        query(connection, statement)
    except SourceError as error:
        if connection.closed:
            raise
        log.warning("heartbeat.action.query failed", reason=error.what)
    query(connection, "SET search_path = pg_catalog")
