"""COPY read without libpq, and with it → all of it, or the error; afterwards libpq still works."""

import os
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from cdc.errors import MillraceError, SourceError, SourceUnreachableError, TableChangedError
from cdc.postgres.connection import query
from cdc.postgres.copy_out import CopyOut, LibpqCopy, PlainCopy, copy_out, wait
from cdc.wal.frames import copy_data_end
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres
NUMBERS = b"COPY (SELECT i FROM generate_series(1, %d) i) TO STDOUT"
ENDLESS = b"COPY (SELECT i FROM generate_series(1, 1000) i, generate_series(1, 1000000)) TO STDOUT"


@pytest.fixture
def opened(database: Conninfo) -> Iterator[psycopg.Connection]:
    with session(database) as connection:
        yield connection


@pytest.fixture(params=[PlainCopy, LibpqCopy])
def copy(request: pytest.FixtureRequest, opened: psycopg.Connection) -> Iterator[CopyOut]:
    made: CopyOut = request.param(opened.pgconn)
    yield made
    made.close()


def once(act: Callable[[], Any]) -> Callable[[int], None]:
    """Do it at the first rows."""
    acts = [act]
    return lambda _: acts.pop()() if acts else None


def lines(copy: CopyOut, statement: bytes, seen: Callable[[int], Any] = id) -> list[bytes]:
    """The payloads of a COPY; ``seen`` is told how many there are so far."""
    found: list[bytes] = []
    copy.begin(statement)
    while not copy.ended():
        before = len(found)
        while (stop := copy_data_end(copy.buffer, copy.start, copy.end)) != copy.start:
            found.append(bytes(copy.buffer[copy.start + 5 : stop]))
            copy.start = stop
        if len(found) != before:
            seen(len(found))
        elif not copy.fill():
            wait(copy, 5.0)
    return found


def test_one_after_the_other_with_queries_in_between(
    opened: psycopg.Connection, copy: CopyOut
) -> None:
    """Within a transaction, too, where libpq still knows how that stands."""
    for rows in (0, 1, 200_000):
        assert lines(copy, NUMBERS % rows) == [b"%d\n" % (number + 1) for number in range(rows)]
        assert query(opened, "SELECT 1") == [(1,)]
    query(opened, "BEGIN")
    query(opened, "CREATE TEMP TABLE t AS SELECT 5 AS v")
    assert lines(copy, b"COPY t TO STDOUT") == [b"5\n"]
    query(opened, "ROLLBACK")
    with pytest.raises(TableChangedError):
        lines(copy, b"COPY t TO STDOUT")


def test_an_unencrypted_connection_is_read_past_libpq(opened: psycopg.Connection) -> None:
    made = copy_out(opened)
    assert isinstance(made, PlainCopy)
    made.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (b"COPY (SELECT 1/(i - 50000) FROM generate_series(1, 60000) i) TO STDOUT", "by zero"),
        (b"COPY (SELECT none) TO STDOUT", "none"),
        (b"COPY (SELEC 1) TO STDOUT", "syntax"),
        (b"COPY (SELECT 1) TO STDOUT; DROP TABLE kept", "multiple commands"),
    ],
)
def test_what_the_server_refuses_is_said_and_the_connection_goes_on(
    opened: psycopg.Connection, copy: CopyOut, statement: bytes, said: str
) -> None:
    query(opened, "CREATE TABLE public.kept ()")
    with pytest.raises(SourceError, match=said):
        lines(copy, statement)
    assert query(opened, "SELECT count(*) FROM public.kept") == [(0,)]
    assert lines(copy, NUMBERS % 2) == [b"1\n", b"2\n"]


def test_notices_in_between_tell_us_nothing(
    database: Conninfo, opened: psycopg.Connection, copy: CopyOut
) -> None:
    run(
        database,
        "CREATE FUNCTION public.says(v int) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE NOTICE 'row %', v; RETURN v; END $$",
    )
    said = b"COPY (SELECT public.says(i) FROM generate_series(1, 3000) i) TO STDOUT"
    assert len(lines(copy, said)) == 3_000
    assert query(opened, "SELECT 1") == [(1,)]


def test_a_backend_that_is_ended_says_so(
    database: Conninfo, opened: psycopg.Connection, copy: CopyOut
) -> None:
    ((pid,),) = query(opened, "SELECT pg_backend_pid()")
    end = once(lambda: run(database, f"SELECT pg_terminate_backend({pid})"))
    with pytest.raises(SourceUnreachableError, match=r"terminating connection|lost"):
        lines(copy, ENDLESS, end)
    with pytest.raises(MillraceError):
        query(opened, "SELECT 1")


def test_a_connection_that_is_cut_is_lost(opened: psycopg.Connection, copy: CopyOut) -> None:
    with socket.socket(fileno=os.dup(opened.fileno())) as way:
        cut = once(lambda: way.shutdown(socket.SHUT_RDWR))
        with pytest.raises(SourceUnreachableError, match="connection was lost"):
            lines(copy, ENDLESS, cut)


def test_a_large_row_comes_whole(copy: CopyOut) -> None:
    size = 100 << 20 if isinstance(copy, PlainCopy) else 8 << 20
    (line,) = lines(copy, b"COPY (SELECT repeat('x', %d)) TO STDOUT" % size)
    assert len(line) == size + 1
    assert lines(copy, NUMBERS % 1) == [b"1\n"]


def test_a_copy_that_is_no_copy_out_is_an_error(opened: psycopg.Connection) -> None:
    query(opened, "CREATE TEMP TABLE t (v int)")
    made = copy_out(opened)
    with pytest.raises(SourceError, match="COPY TO STDOUT"):
        lines(made, b"COPY t FROM STDIN")
    made.close()


def test_nothing_waits_for_the_server(opened: psycopg.Connection, copy: CopyOut) -> None:
    """Whoever reads from several of them polls their descriptors."""
    copy.begin(b"COPY (SELECT 1 FROM pg_sleep(0.2)) TO STDOUT")
    assert (copy.fill(), copy.ended()) == (0, False)
    assert select.select([copy.fileno()], [], [], 60.0)[0]
    while not copy.ended():
        copy.start = copy_data_end(copy.buffer, copy.start, copy.end)
        copy.fill()
    assert query(opened, "SELECT 1") == [(1,)]
