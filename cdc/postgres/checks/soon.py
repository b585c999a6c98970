"""A server that may be silent → a session, or an error within seconds, for inspections."""

from typing import Final

import psycopg

from cdc.postgres.connection import connect
from cdc.settings import LibraryOptions

CONNECT_S: Final = 2
"""libpq has no shorter limit."""
_BOUNDED: Final = {"statement_timeout": "2s", "lock_timeout": "1s"}


def quickly(server: LibraryOptions, seconds: int = CONNECT_S) -> LibraryOptions:
    """Return keywords that limit the connection time. A lower limit of the user's stays."""
    given = server.get("connect_timeout", "").strip()
    own = int(given) if given.isdecimal() else 0
    return {**server, "connect_timeout": str(min(own or seconds, seconds))}


def connect_soon(server: LibraryOptions, *, purpose: str) -> psycopg.Connection:
    """Open a session with short statements. Raises what docs/reference/errors.md lists."""
    return connect(quickly(server), purpose=purpose, pinned=_BOUNDED)
