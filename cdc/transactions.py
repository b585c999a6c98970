"""Begin, row and Commit messages → positions: what belongs to which transaction, in which place."""

from typing import NamedTuple

from cdc.records.position import Lsn


class Transaction(NamedTuple):
    """A source transaction, as Begin announces it.

    ``commit_lsn`` is Begin's final LSN; ``commit_ts_us`` is µs since 1970, UTC;
    ``previous_commit_lsn`` is that of the transaction before it in this stream, if there was one
    (Debezium's ``sequence`` names it).
    """

    xid: int
    commit_lsn: Lsn
    commit_ts_us: int
    previous_commit_lsn: Lsn | None
