"""Transactions that arrive before their end → the same records as of whole transactions."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from cdc.errors import UnclearMessagesError
from cdc.postgres.connection import query
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, each
from cdc.records.schema import Column, TableSchema
from cdc.stream.in_progress import InProgress
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Tables
from cdc.wal.messages import StreamStart
from tests.fixtures.source import Conninfo, capture, run, session, streaming
from tests.properties.cdc.compiled.test_stream import OneTable, frame, timeless

pytestmark = pytest.mark.postgres

START = Position(1, Lsn(0), 0)
LIMITS = Limits(50, 1 << 20)
SESSIONS = 4
AT_ONCE = {"options": "-c debug_logical_replication_streaming=immediate"}
"""PostgreSQL streams each change as it comes (from 16 on): the most blocks that there can be."""


def table_of_the_test() -> OneTable:
    columns = tuple(
        Column(name=name, type=kind, type_oid=oid, modifier=-1, declared=kind, key=key)
        for name, kind, oid, key in (("id", "int4", 23, 1), ("v", "text", 25, None))
    )
    schema = TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="d", columns=columns, signature="",
    )  # fmt: skip
    return OneTable(schema, compacted=True, since=START)


class Counted(InProgress):
    """Counts the blocks."""

    blocks = 0

    def start(self, message: StreamStart, lsn: Lsn) -> None:
        super().start(message, lsn)
        self.blocks += 1


def translation(in_progress: InProgress) -> Translation:
    progress = SimpleNamespace(position=START, cut=START, flush_lsn=Lsn(0), cut_ts_us=0)
    table = table_of_the_test()
    return Translation(
        cast("Tables", table),
        cast("Any", progress),
        table.actions,
        lambda _: None,
        in_progress=in_progress,
    )


def records(made: Translation, data: bytearray, start: int, end: int) -> Iterator[tuple[int, Any]]:
    while (used := made.feed(data, start, end, LIMITS)) != start or made.is_behind:
        yield used, list(each(made.take().records))
        start = used


class Writer:
    """A session that makes random changes in random (sub)transactions."""

    def __init__(
        self, connection: psycopg.Connection, number: int, random: Random, *, notes: bool
    ) -> None:
        self._connection = connection
        self._random = random
        self._ids = [number * 1_000 + one for one in range(40)]
        self._savepoints = 0
        self._prepared = 0
        self._number = number
        self._notes = notes
        self._open = False

    def step(self) -> None:
        chance = self._random.random()
        if not self._open:
            self._do("BEGIN")
            self._open, self._savepoints = True, 0
        elif chance < 0.06:
            self._end(self._random.choice(("COMMIT", "COMMIT", "ROLLBACK", "PREPARED")))
        elif chance < 0.25:
            self._savepoints += 1
            self._do(f"SAVEPOINT s{self._savepoints}")
        elif chance < 0.45 and self._savepoints:
            back = self._random.randint(1, self._savepoints)
            kind = self._random.choice(("ROLLBACK TO", "RELEASE"))
            self._do(f"{kind} s{back}")
            self._savepoints = back if kind == "ROLLBACK TO" else back - 1
        else:
            self._change()

    def _change(self) -> None:
        key, size = self._random.choice(self._ids), self._random.choice((1, 10, 3_000))
        text = f"repeat(md5(random()::text), {size})"
        moved = f"NOT EXISTS (SELECT FROM t WHERE id = {key} + 500)"
        several = f"SELECT i, {text} FROM generate_series({key}, {key} + 3) i"
        if self._notes and self._random.random() < 0.05:
            self._do(f"SELECT pg_logical_emit_message(true, 'p', '{key}')")
            return
        statements = (
            f"INSERT INTO t VALUES ({key}, {text}) ON CONFLICT (id) DO UPDATE SET v = {text}",
            f"INSERT INTO t {several} ON CONFLICT DO NOTHING",
            f"UPDATE t SET v = {text} WHERE id = {key}",
            f"UPDATE t SET id = id + 500 WHERE id = {key} AND {moved}",
            f"DELETE FROM t WHERE id IN ({key}, {key} + 500)",
        )
        self._do(self._random.choice(statements))

    def _end(self, kind: str) -> None:
        self._open = False
        if kind != "PREPARED":
            self._do(kind)
            return
        self._prepared += 1
        name = f"'{self._number}.{self._prepared}'"
        self._do(f"PREPARE TRANSACTION {name}")
        self._do(self._random.choice(("COMMIT", "ROLLBACK")) + f" PREPARED {name}")

    def finish(self) -> None:
        if self._open:
            self._end("COMMIT")

    def _do(self, statement: str) -> None:
        self._connection.execute(statement.encode())


def write(database: Conninfo, seed: int, *, notes: bool) -> None:
    random = Random(seed)  # noqa: S311
    with ExitStack() as stack:
        writers = []
        for number in range(SESSIONS):
            opened = stack.enter_context(session(database))
            opened.execute("SET search_path = public")
            writers.append(Writer(opened, number, random, notes=notes))
        for _ in range(400):
            random.choice(writers).step()
        for writer in writers:
            writer.finish()


def as_they_came(made: Translation, stream: ReplicationStream, end: Lsn) -> Iterator[Record]:
    """The stream's records up to there."""
    is_over = False
    while made.cursor.flush_lsn < end or not is_over:
        stream.read(0.5)
        wire, start = stream.wire, stream.wire.start
        for used, some in records(made, wire.buffer, start, wire.end):
            yield from some
            is_over = is_over or any(one.key == END for one in some)
            start = used
        stream.used(start, made.received)
        stream.keep_alive()


def as_kept(connection: psycopg.Connection, folder: Path, publication: str) -> list[Record]:
    """The records of the same, as they are sent whole."""
    rows = connection.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('whole', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
        [publication],
        binary=True,
    ).fetchall()
    data = bytearray(b"".join(frame(Lsn.parse(lsn), message) for lsn, message in rows))
    made = translation(InProgress(folder, 0))
    return [one for _, some in records(made, data, 0, len(data)) for one in some]


END = b'{"prefix":"end"}'
"""Of the last message: a keepalive may say before that the stream has reached its place."""


def current(opened: psycopg.Connection) -> Lsn:
    """Where the WAL ends; what follows makes the stream reach it."""
    ((place,),) = query(opened, "SELECT pg_current_wal_insert_lsn()::text")
    query(opened, "SELECT pg_logical_emit_message(true, 'end', '')")
    return Lsn.parse(place)


def make_table(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER v SET STORAGE external",
    )


def test_what_arrives_while_it_runs_is_what_was_committed(
    database: Conninfo, tmp_path: Path
) -> None:
    make_table(database)
    settings = capture(database)
    in_progress = Counted(tmp_path, 2_000)
    with session(database) as opened, streaming({**database, **AT_ONCE}, settings) as stream:
        opened.execute("SELECT pg_create_logical_replication_slot('whole', 'pgoutput')")
        write(database, seed=1, notes=False)
        came = list(as_they_came(translation(in_progress), stream, current(opened)))
        kept = as_kept(opened, tmp_path, settings.publication_name)
    assert in_progress.blocks > 50
    assert timeless(came, bytes) == timeless(kept, bytes)


def test_messages_of_savepoints_that_were_rolled_back_are_not_made_up(
    database: Conninfo, tmp_path: Path
) -> None:
    make_table(database)
    settings = capture(database)
    came: list[Record] = []
    with session(database) as opened:
        with streaming({**database, **AT_ONCE}, settings) as stream:
            opened.execute("SELECT pg_create_logical_replication_slot('whole', 'pgoutput')")
            write(database, seed=2, notes=True)
            made = as_they_came(translation(InProgress(tmp_path, 0)), stream, current(opened))
            with pytest.raises(UnclearMessagesError):
                came.extend(made)  # what came before the error counts
        kept = as_kept(opened, tmp_path, settings.publication_name)
    assert came
    assert timeless(came, bytes) == timeless(kept, bytes)[: len(came)]
