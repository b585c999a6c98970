"""A record's key and value bytes ⇄ Debezium's envelope as models: the log's public form.

For consumers and tests; the daemon writes the same bytes without them (cdc/events/reference.py).
Fields stand in the order in which Debezium's PostgreSQL connector 3.6 writes them. A column that a
row image has no value for (an unchanged TOASTed value, or everything but the key in a deleted row)
is missing from ``before`` or ``after``; a NULL is there, as None.
https://debezium.io/documentation/reference/3.6/connectors/postgresql.html#postgresql-events
"""

import importlib.metadata
import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field


def _version() -> str:
    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "0"


VERSION: Final = _version()
"""``source.version``: Millrace's own."""
CONNECTOR: Final = "postgresql"


class Source(BaseModel):
    """Where a change comes from.

    ``ts_ms``, ``ts_us`` and ``ts_ns`` are the commit time (a snapshot's: the read time) since
    1970, UTC. ``sequence`` is a JSON array as text: the commit LSN of the transaction before this
    one (or null) and the change's own LSN. ``lsn`` is the change's place in the WAL.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    version: str
    connector: str
    name: str
    ts_ms: int
    snapshot: str
    db: str
    sequence: str | None
    ts_us: int | None = None
    ts_ns: int | None = None
    namespace: str = Field(alias="schema")
    table: str
    tx_id: int | None = Field(alias="txId")
    lsn: int | None
    xmin: int | None = None
    origin: str | None = None
    origin_lsn: int | None = None


class TransactionBlock(BaseModel):
    """A change's place among the events of its transaction (Debezium's transaction metadata)."""

    model_config = ConfigDict(frozen=True)

    id: str
    total_order: int
    data_collection_order: int


class Envelope(BaseModel):
    """One change: c(reate), u(pdate), d(elete), r(ead by a snapshot) or t(runcate).

    ``ts_ms``, ``ts_us`` and ``ts_ns`` are when Millrace made the event, since 1970, UTC.
    """

    model_config = ConfigDict(frozen=True)

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: Source
    transaction: TransactionBlock | None = None
    op: Literal["c", "u", "d", "r", "t"]
    ts_ms: int | None = None
    ts_us: int | None = None
    ts_ns: int | None = None

    @classmethod
    def from_bytes(cls, value: bytes) -> "Envelope":
        """Read a record's value; raises pydantic's ValidationError or ValueError."""
        return cls.model_validate(json.loads(value))

    def to_bytes(self) -> bytes:
        """The record's value: compact JSON in UTF-8."""
        return to_json(self.model_dump(by_alias=True))


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, as all of Millrace's keys and values are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
