"""A real server's pgoutput, protocol 1 and 4 → our messages."""

from collections.abc import Iterator

import psycopg
import pytest

from cdc.errors import CorruptMessageError
from cdc.postgres.connection import connect
from cdc.wal import messages as m
from cdc.wal.decoder import decode

pytestmark = pytest.mark.postgres
_HAVE_XID = {b"R", b"Y", b"I", b"U", b"D", b"T", b"M"}
"""What begins with an xid of its own between Stream Start and Stream Stop."""


@pytest.fixture
def connection(database: dict[str, str]) -> Iterator[psycopg.Connection]:
    """Open a session on a database with a publication of everything and a slot."""
    with connect(database, purpose="test") as opened:
        opened.execute("CREATE PUBLICATION p FOR ALL TABLES")
        opened.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
        opened.execute("ALTER TABLE public.t ALTER v SET STORAGE EXTERNAL")
        opened.execute("CREATE TABLE public.f (a int, b text)")
        opened.execute("ALTER TABLE public.f REPLICA IDENTITY FULL")
        slot = f"s_{opened.info.dbname}"
        opened.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", [slot]
        )
        yield opened


def received(connection: psycopg.Connection, *options: str) -> list[m.Message]:
    """Decode all that the slot has."""
    arguments = ["publication_names", "p", "messages", "true", *options]
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)",
        [f"s_{connection.info.dbname}", arguments],
        binary=True,
    )
    decoded, streaming = [], False
    for (data,) in rows:
        has_xid = streaming and data[:1] in _HAVE_XID
        decoded.append(decode(data[:1] + data[5:] if has_xid else data))
        if isinstance(decoded[-1], m.StreamStart | m.StreamStop):
            streaming = isinstance(decoded[-1], m.StreamStart)
    return decoded


def test_rows_keys_and_unchanged_values(connection: psycopg.Connection) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO public.t VALUES (1, repeat('x', 5000)), (2, NULL)")
        connection.execute("UPDATE public.t SET id = 3 WHERE id = 1")
        connection.execute("DELETE FROM public.t WHERE id = 3")
        connection.execute("INSERT INTO public.f VALUES (1, 'é')")
        connection.execute("UPDATE public.f SET a = 2")
        connection.execute("SELECT pg_logical_emit_message(true, 'pre', 'content')")
        connection.execute("TRUNCATE public.t, public.f RESTART IDENTITY")
    begin, *body, commit = received(connection, "proto_version", "1")
    assert isinstance(begin, m.Begin)
    assert isinstance(commit, m.Commit)
    assert commit.commit_lsn == begin.final_lsn < commit.end_lsn
    assert commit.commit_ts_us == begin.commit_ts_us
    relation = body[0]
    assert isinstance(relation, m.Relation)
    assert relation[1:4] == ("public", "t", "d")
    assert [column[:2] for column in relation.columns] == [(True, "id"), (False, "v")]
    t = relation.oid
    f = next(one.oid for one in body[1:] if isinstance(one, m.Relation))
    (message,) = [one for one in body if isinstance(one, m.LogicalMessage)]
    assert (message.transactional, message.prefix, message.content) == (True, "pre", b"content")
    assert [one for one in body if not isinstance(one, m.Relation | m.LogicalMessage)] == [
        m.Insert(t, (b"1", b"x" * 5000)),
        m.Insert(t, (b"2", None)),
        m.Update(t, (b"1", None), True, (b"3", m.ABSENT)),
        m.Delete(t, (b"3", None), True),
        m.Insert(f, (b"1", "é".encode())),
        m.Update(f, (b"1", "é".encode()), False, (b"2", "é".encode())),
        m.Truncate((t, f), False, True),
    ]


def test_a_streamed_transaction(connection: psycopg.Connection) -> None:
    connection.execute("SET logical_decoding_work_mem = '64kB'")
    many = "INSERT INTO public.t SELECT g, repeat('x', 100) FROM generate_series({}) AS g"
    with connection.transaction():
        connection.execute(many.format("1, 2000"))
        connection.execute("SAVEPOINT s")
        connection.execute(many.format("2001, 4000"))
        connection.execute("ROLLBACK TO SAVEPOINT s")
        connection.execute(many.format("4001, 4010"))
    decoded = received(connection, "proto_version", "4", "streaming", "on")
    assert isinstance(decoded[0], m.StreamStart)
    assert {m.StreamStop, m.StreamAbort} <= {type(one) for one in decoded}
    (commit,) = [one for one in decoded if isinstance(one, m.StreamCommit)]
    assert commit.xid == decoded[0].xid
    assert sum(isinstance(one, m.Insert) for one in decoded) >= 2000


def test_a_prepared_transaction_is_an_error_that_names_the_reason(
    connection: psycopg.Connection,
) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO public.t VALUES (0, 'prepared')")
    connection.execute("PREPARE TRANSACTION 'the gid'")
    connection.execute("COMMIT PREPARED 'the gid'")
    with pytest.raises(CorruptMessageError, match="created with two_phase"):
        received(connection, "proto_version", "4", "two_phase", "on")
