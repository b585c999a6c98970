"""libpq's messages and SQLSTATEs → errors with what is wrong, where, and the remedy.

A connection that failed has no SQLSTATE in libpq, only a text. CONNECT_FAILURES reads the English
ones. A server in another language gets the general class, with its own words.
https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.errors import (
    ConfigError,
    MillraceError,
    SourceAuthenticationError,
    SourceError,
    SourcePrivilegeError,
    SourceSettingError,
    SourceUnreachableError,
    TableChangedError,
    TableLockedError,
    TableRefusedError,
)
from cdc.lines import Lines
from cdc.records.schema import TableName
from cdc.records.sql_names import quote, sql_names

_CONNECT_FAILURES: Final[tuple[tuple[str, type[MillraceError], str], ...]] = (
    (
        # PgBouncer's words; PostgreSQL has others.
        r"unsupported (options )?startup parameter",
        ConfigError,
        (
            "a pooler such as PgBouncer answered: set host and port in [source] to PostgreSQL"
            " itself. A pooler supports neither replication nor session settings"
        ),
    ),
    (
        (
            r"invalid .+ value|invalid integer value|invalid port|bad value for|invalid connection"
            r" opt|unrecognized configuration parameter|missing .*=|could not match \d+ (port|host)"
            r"|service (file )?.+ not found|requires a value|invalid value for parameter"
        ),
        ConfigError,
        "correct that keyword in [source]: it takes libpq's connection keywords",
    ),
    (
        r"password authentication failed|no password supplied|fe_sendauth|SCRAM|SASL",
        SourceAuthenticationError,
        "check user and password in [source]",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        SourceAuthenticationError,
        "add a line for this user, database and address to the server's pg_hba.conf, and reload it",
    ),
    (
        r"role .+ does not exist|not permitted to log in|authentication failed",
        SourceAuthenticationError,
        "set user in [source] to a role that may log in",
    ),
    (
        r"does not support SSL",
        SourceAuthenticationError,
        "enable TLS on the server (ssl = on), or choose another sslmode in [source]",
    ),
    (
        r"certificate|SSL error|tlsv1 alert|private key file|channel binding",
        SourceAuthenticationError,
        (
            "check sslmode, sslrootcert, sslcert and sslkey in [source], and that host is the name"
            " in the server's certificate"
        ),
    ),
    (
        r"database .+ does not exist",
        ConfigError,
        "set dbname in [source] to an existing database",
    ),
    (
        r"start WAL sender|superuser or replication role",
        SourcePrivilegeError,
        (
            "let a superuser run ALTER ROLE {role} REPLICATION; (managed services: grant their"
            " replication role, such as rds_replication, instead)"
        ),
    ),
    (
        r"permission denied for database",
        SourcePrivilegeError,
        "let the database's owner run GRANT CONNECT ON DATABASE {database} TO {role};",
    ),
    (
        r"max_wal_senders",
        SourceUnreachableError,
        "raise max_wal_senders and restart the server, or stop an idle replication client",
    ),
    (
        r"too many (clients|connections)|remaining connection slots",
        SourceUnreachableError,
        "raise max_connections (or the role's CONNECTION LIMIT), or close idle sessions",
    ),
)

VERSION_MIN: Final = 140_000
_PREFIX = re.compile(
    r"connection (failed|is bad): |connection to server .+ failed: |(?<!\S)FATAL: |\AERROR: "
)
"""libpq's prefix of the reason. The message names the place anyway."""

_NOT_UTF8 = (
    "the database has bytes that aren't UTF-8, and the WAL has them, too: correct the rows"
    " (docs/guides/postgresql.md, Encodings, shows how to find them), or leave the table out"
    " (table.exclude.list); then begin a new log: millrace drop --yes --topics, then millrace"
    " run"
)
_CONFLICT = (
    "none: the daemon retries; on a standby that cancels queries for its replay, set"
    " hot_standby_feedback = on and a larger max_standby_streaming_delay"
)
_CANCELLED = (
    "if the query took too long, raise snapshot.query.timeout.ms or the role's"
    " statement_timeout; otherwise find out who cancelled it"
)
_STATEMENT_FAILURES: dict[str, tuple[type[MillraceError], str]] = {
    "08": (SourceUnreachableError, "check the server and the network"),
    "22021": (TableRefusedError, _NOT_UTF8),
    "22P05": (TableRefusedError, _NOT_UTF8),
    "25006": (
        SourceSettingError,
        (
            "connect to the primary; or, if this is the primary, set default_transaction_read_only"
            " to off"
        ),
    ),
    "40001": (SourceUnreachableError, _CONFLICT),
    "40P01": (SourceUnreachableError, _CONFLICT),
    "42501": (SourcePrivilegeError, "grant the missing right to the role in [source]"),
    "42703": (TableChangedError, "a table changed at the same time: start again"),
    "42P01": (TableChangedError, "a table was dropped or renamed at the same time: start again"),
    "53": (SourceUnreachableError, "free the resource that the server lacks"),
    "53400": (SourceSettingError, "raise that limit in postgresql.conf and restart the server"),
    "55P03": (
        TableLockedError,
        "wait for the session that holds the lock, or end it (pg_locks, pg_stat_activity)",
    ),
    "57014": (SourceUnreachableError, _CANCELLED),
    "57P": (SourceUnreachableError, "wait until the server accepts connections again"),
}
"""SQLSTATE, or its beginning → the error. The longest match counts."""


_TEXT_FIELDS: Final = (
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_DETAIL,
    pq.DiagnosticField.MESSAGE_HINT,
)


class RefusedError(Exception):
    """A refusal by the server. Without an SQLSTATE, the connection broke."""

    def __init__(self, sqlstate: str | None, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.text = text

    @classmethod
    def of(cls, result: PGresult) -> Self:
        """Return a failed result as one line: the server's message, its detail and hint."""
        code = result.error_field(pq.DiagnosticField.SQLSTATE)
        fields = filter(None, map(result.error_field, _TEXT_FIELDS))
        text = "; ".join(field.decode("utf-8", "replace") for field in fields)
        text = text or result.error_message.decode("utf-8", "replace").strip()
        return cls(code.decode() if code else None, text)

    def error(self, where: str) -> MillraceError:
        """Return its general meaning."""
        return statement_error(self.sqlstate, self.text, where)


def server_address(pgconn: PGconn) -> str:
    """Return a connection's ``host:port/dbname``, which messages show as the place."""
    host, port, name = (text.decode() for text in (pgconn.host, pgconn.port, pgconn.db))
    return f"{host or 'local'}:{port}/{name}"


def unfit(pgconn: PGconn) -> SourceSettingError | None:
    """Return why a session isn't at PostgreSQL 14 or newer, or is a pooler's. None: it fits.

    Sends no query: a server reports its version and the session's settings at the start.
    """
    version, where = pgconn.server_version, server_address(pgconn)
    if version < VERSION_MIN:
        reported = (pgconn.parameter_status(b"server_version") or b"unknown").decode()
        return SourceSettingError(
            f"the server reports version {reported}; Millrace needs PostgreSQL 14 or newer",
            where=where,
            remedy="upgrade the server",
        )
    style = pgconn.parameter_status(b"IntervalStyle")
    if style not in {None, b"iso_8601"}:
        return SourceSettingError(
            "the session lacks the settings that were requested: a pooler such as PgBouncer is"
            " in between",
            where=where,
            remedy="set host and port in [source] to PostgreSQL itself",
        )
    return None


def connect_error(text: str, where: str, role: str, database: str) -> MillraceError:
    """Return why no connection was made. ``text`` is libpq's message."""
    what = " ".join(text.split())
    if what.count("connection to server") < 2:
        what = _PREFIX.sub("", what)
    for pattern, error, remedy in _CONNECT_FAILURES:
        if re.search(pattern, what, re.IGNORECASE):
            names = {"role": quote(role), "database": quote(database)}
            return error(what, where=where, remedy=remedy.format(**names))
    return SourceUnreachableError(
        what, where=where, remedy="check host and port in [source], and that the server runs"
    )


def statement_error(sqlstate: str | None, text: str, where: str) -> MillraceError:
    """Return why a statement failed. Without an SQLSTATE, the connection was lost."""
    if sqlstate is None:
        sqlstate = "08006"
        text = f"the connection was lost: {text}"
    text = " ".join(text.split())
    for length in (5, 3, 2):
        if sqlstate[:length] in _STATEMENT_FAILURES:
            error, remedy = _STATEMENT_FAILURES[sqlstate[:length]]
            return error(text, where=where, remedy=remedy)
    return SourceError(f"{text} [SQLSTATE {sqlstate}]", where=where)


@contextmanager
def explained(pgconn: PGconn) -> Iterator[None]:
    """Turn psycopg's exceptions in the block into our errors."""
    where = server_address(pgconn) if pgconn.status == pq.ConnStatus.OK else ""
    try:
        yield
    except psycopg.Error as error:
        text = error.diag.message_primary or str(error)
        raise statement_error(error.sqlstate, text, where) from error


@contextmanager
def blaming(key: str | None) -> Iterator[None]:
    """Name the key of [capture] whose SQL a server refuses. None: the SQL is ours."""
    try:
        yield
    except (SourceUnreachableError, SourceAuthenticationError):
        raise
    except SourceError as error:
        if key is None:
            raise
        what = f"PostgreSQL refuses {key}: {error.what}"
        remedy = f"correct {key} in [capture], or grant the needed right to the role in [source]"
        raise ConfigError(what, where=error.where, remedy=remedy) from error


def alter_identity(names: Iterable[TableName], identity: str) -> str:
    """Return SQL that gives tables a replica identity, one line each."""
    return Lines(
        "".join(
            f"\n      ALTER TABLE {sql_names([name])} REPLICA IDENTITY {identity};"
            for name in names
        )
    )


def finish_detach(root: TableName, partition: TableName) -> str:
    """Return SQL that ends a DETACH PARTITION CONCURRENTLY, on a line of its own."""
    names = sql_names([root]), sql_names([partition])
    return Lines("\n      ALTER TABLE {} DETACH PARTITION {} FINALIZE;".format(*names))
