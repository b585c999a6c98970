"""A source transaction, as its Begin announces it, and what events say of where it came from."""

from json.encoder import encode_basestring
from typing import NamedTuple

from cdc.records.position import Lsn


class Origin(NamedTuple):
    """The transaction was replicated from elsewhere."""

    commit_lsn: Lsn
    name: str


class Transaction(NamedTuple):
    """A source transaction, as Begin announces it.

    ``commit_lsn`` is Begin's final LSN; ``commit_ts_us`` is µs since 1970, UTC;
    ``previous_commit_lsn`` is that of the transaction before it in this stream, if there was one
    (Debezium's ``sequence`` names it). ``origin`` is set where it was replicated from elsewhere.
    """

    xid: int
    commit_lsn: Lsn
    commit_ts_us: int
    previous_commit_lsn: Lsn | None
    origin: Origin | None = None


def after_lsn(origin: Origin | None) -> str:
    """The text of an event from its source's LSN to its operation, as cdc.events.reference says."""
    name, lsn = (
        ("null", "null")
        if origin is None
        else (encode_basestring(origin.name), int(origin.commit_lsn))
    )
    return f',"xmin":null,"origin":{name},"origin_lsn":{lsn}}},"transaction":null,"op":"'
