"""A database → sessions, configuration and streams, as the tests of cdc.postgres need them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from cdc.postgres import catalog, connection, publication, slot
from cdc.postgres.captured import captured_tables
from cdc.postgres.described import TableDescription
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Lsn
from cdc.settings import CaptureSettings
from cdc.wal.decoder import decode
from cdc.wal.frames import (
    COPY_DATA_BYTES,
    Frame,
    PrimaryKeepalive,
    XLogData,
    copy_data_end,
    parse,
)
from cdc.wal.messages import Message

Conninfo = dict[str, str]


def capture(database: Conninfo, **more: object) -> CaptureSettings:
    """Make a configuration whose slot is the database's own; keywords have ``_`` for ``.``."""
    settings = {
        "topic.prefix": "t",
        "slot.name": f"slot_{database['dbname']}",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return CaptureSettings.model_validate(settings)


@contextmanager
def session(database: Conninfo, **more: str) -> Iterator[psycopg.Connection]:
    """Open a session as the daemon does."""
    opened = connection.connect({**database, **more}, purpose="test")
    try:
        yield opened
    finally:
        opened.close()


def run(database: Conninfo, *statements: str) -> None:
    """Run statements, as the source's users do."""
    with session(database) as opened:
        opened.execute("SET search_path = public")
        for statement in statements:
            opened.execute(statement.encode())


def described(opened: psycopg.Connection, settings: CaptureSettings) -> list[TableDescription]:
    """Describe the captured tables."""
    tables = captured_tables(opened, settings)
    return catalog.describe(opened, tables, settings.publication_name)


@contextmanager
def streaming(database: Conninfo, settings: CaptureSettings) -> Iterator[ReplicationStream]:
    """Make publication and slot where they are missing, and stream."""
    with session(database) as opened:
        publication.ensure(opened, settings, captured_tables(opened, settings))
        missing = slot.inspect(opened, settings.slot_name) is None
    pgconn = connection.connect_replication(database)
    if missing:
        slot.create(pgconn, settings.slot_name)
    stream = ReplicationStream.start(pgconn, settings.slot_name, settings.publication_name)
    try:
        yield stream
    finally:
        stream.close()


def frames(stream: ReplicationStream, timeout_s: float) -> list[Frame]:
    """The frames that have arrived, or that come until the time is over."""
    stream.read(timeout_s)
    start, end = stream.filled
    found: list[Frame] = []
    while (stop := copy_data_end(stream.buffer, start, end)) != start:
        found.append(parse(bytes(stream.buffer[start + COPY_DATA_BYTES : stop])))
        if isinstance(found[-1], PrimaryKeepalive):
            stream.heard(found[-1])
        start = stop
    stream.used(start, Lsn(0))
    return found


def messages(
    stream: ReplicationStream, until: Callable[[Message], bool], seconds: float = 30
) -> list[Message]:
    """Read messages up to the one that is awaited."""
    deadline = time.monotonic() + seconds
    found: list[Message] = []
    while time.monotonic() < deadline:
        for frame in frames(stream, 0.5):
            if isinstance(frame, XLogData):
                found.append(decode(frame.payload))
                if until(found[-1]):
                    return found
        stream.keep_alive()
    raise TimeoutError(f"{len(found)} messages, and not the one awaited")
