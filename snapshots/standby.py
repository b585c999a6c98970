"""A standby to read from → whether it is one, and as far as the stream.

The stream comes from the primary. A chunk that is read from a standby has to show all that was
streamed before, or it would bring back what was changed.
https://www.postgresql.org/docs/current/hot-standby.html
"""

import time
from collections.abc import Callable
from typing import Final

import psycopg

from cdc.errors import SourceSettingError, SourceUnreachableError
from cdc.postgres.connection import query
from cdc.postgres.failures import server_address
from cdc.records.position import Lsn

WAIT_S: Final = 10.0
"""How long a chunk waits for the standby's replay."""
_POLL_S: Final = 0.02
_IDENTITY: Final = "SELECT system_identifier, pg_is_in_recovery() FROM pg_control_system()"
_REPLAYED: Final = "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text"


def check(standby: psycopg.Connection, primary: psycopg.Connection) -> None:
    """Raise SourceSettingError unless one is a standby of the other's cluster."""
    ((ours, _),) = query(primary, _IDENTITY)
    ((its, is_standby),) = query(standby, _IDENTITY)
    if its != ours or not is_standby:
        reason = "is no standby" if its == ours else "belongs to another cluster"
        raise SourceSettingError(
            f"the server that [snapshot_source] leads to {reason}",
            where=server_address(standby.pgconn),
            remedy="let [snapshot_source] lead to a standby of [source]; without it, rows are read"
            " from [source]",
        )


def await_replay(standby: psycopg.Connection, streamed: Lsn, wait: Callable[[float], bool]) -> None:
    """Wait until the standby shows all that was committed before; ``wait`` says when to give up.

    Raises SourceUnreachableError where it doesn't for long, or was promoted.
    """
    until = time.monotonic() + WAIT_S
    while True:
        ((is_standby, text),) = query(standby, _REPLAYED)
        replayed = Lsn.parse(text) if is_standby and text else Lsn(0)
        if replayed >= streamed:
            return
        if not is_standby or time.monotonic() > until or wait(_POLL_S):
            break
    state = f"has replayed {replayed}, and not yet {streamed}" if is_standby else "is none any more"
    raise SourceUnreachableError(
        f"the standby that rows are read from {state}",
        where=server_address(standby.pgconn),
        remedy="see why it is behind (pg_stat_replication at the primary)",
    )
