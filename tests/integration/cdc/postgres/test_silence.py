"""A silent replication connection → the client asks for a reply, and abandons it in the end."""

import time
from collections.abc import Callable

import pytest

from cdc.errors import SourceUnreachableError
from cdc.postgres import connection, slot
from cdc.postgres.stream import ASK_AFTER_S, SILENCE_S_MAX, ReplicationStream
from deploy.local.postgres import Postgres
from tests.fixtures.proxy import Proxy
from tests.fixtures.source import Conninfo, frames, run

pytestmark = pytest.mark.postgres
FAST = 20
"""How much faster than ours the stream's clock goes: an answer may take 2.5 s of ours."""


def listen(stream: ReplicationStream, seconds: float) -> None:
    until = time.monotonic() + seconds / FAST
    while time.monotonic() < until:
        frames(stream, 0.05)
        stream.keep_alive()


def test_a_deaf_connection_is_given_up_and_an_idle_one_is_not(
    database: Conninfo, postgres: Postgres, proxy: Callable[[int], Proxy]
) -> None:
    way = proxy(postgres.port)
    run(database, "CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    pgconn = connection.connect_replication({**database, "port": str(way.port)})
    name = f"slot_{database['dbname']}"
    slot.create(pgconn, name)
    stream = ReplicationStream.start(
        pgconn,
        name,
        "p",
        status_interval_ms=2_000_000,  # no update of its own, so that only asking brings an answer
        clock=lambda: FAST * time.monotonic(),
    )
    try:
        listen(stream, 1.5 * SILENCE_S_MAX)
        way.deafen()
        listen(stream, ASK_AFTER_S)
        with pytest.raises(SourceUnreachableError, match="the server sent nothing for 60 s"):
            listen(stream, 2 * SILENCE_S_MAX)
    finally:
        stream.close()
