"""What a session asks of PostgreSQL as the stream brings relations."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from cdc.events.changes import Reread
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn
from cdc.records.schema import Column, TableName
from cdc.wal.messages import Relation


class Lookups(NamedTuple):
    """The questions, each a function.

    ``describe``: its columns. ``entry``: the OID of its entry in the publication, by its own.
    ``reread``: rows of it whose unchanged values are wanted. ``late``: the description of a table,
    by its OID and name, if a start now would find it among those to capture. ``instant``: how far
    the WAL is, and then a transaction ID (64 bits) that is younger than whatever is open. ``check``
    raises TableRefusedError for a table whose rows the log would mix up. ``await_visible``: waits
    until what a transaction (32 bits) has done is seen, or raises UnreadTableError. ``filled``: in
    which of these columns of a table, by its OID, rows have values that nothing wrote.
    """

    describe: Callable[[Relation], tuple[Column, ...]]
    entry: Callable[[int], int]
    reread: Reread
    late: Callable[[int, TableName], TableDescription | None]
    instant: Callable[[], tuple[Lsn, int]]
    check: Callable[[TableDescription], None]
    await_visible: Callable[[int], None]
    filled: Callable[[int, Sequence[str]], Collection[str]]
