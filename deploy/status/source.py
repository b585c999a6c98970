"""Settings → the slot, the server and the daemon as PostgreSQL sees them."""

from contextlib import closing
from typing import Final

from pydantic import BaseModel

from cdc.postgres import slot
from cdc.postgres.checks.soon import connect_soon
from cdc.postgres.connection import query
from cdc.settings import Settings

_ROWS: Final = """
SELECT n.nspname, c.relname, CASE WHEN c.relkind = 'p' THEN (
    SELECT CASE WHEN bool_and(leaf.reltuples >= 0) THEN sum(leaf.reltuples)::int8 END
    FROM pg_partition_tree(c.oid) t JOIN pg_class leaf ON leaf.oid = t.relid WHERE t.isleaf)
    WHEN c.reltuples >= 0 THEN c.reltuples::int8 END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND (n.nspname, c.relname) IN (
    SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s)
"""


class SlotStatus(BaseModel):
    """The slot at the source. ``retained_bytes`` of WAL are kept for it.

    A slot with ``failover`` is copied to those standbys that synchronize slots.
    """

    name: str
    active: bool
    confirmed_flush_lsn: str
    lag_bytes: int
    retained_bytes: int
    wal_status: str | None
    safe_wal_size: int | None
    invalidation_reason: str | None
    failover: bool


class SlotConcern(BaseModel):
    """A concern about the WAL that the slot holds back, and the remedy."""

    text: str
    remedy: str


class SourceStatus(BaseModel):
    """The source's state: the slot (None: none exists), and whether a daemon has its lock.

    ``rows`` are the catalog's estimates by table (None: the table was never analyzed).
    """

    slot: SlotStatus | None = None
    is_captured: bool = False
    concerns: list[SlotConcern] = []
    rows: dict[str, int | None] = {}


def source_status(settings: Settings) -> SourceStatus:
    """Ask the source. Without an answer, raise an error of docs/reference/errors.md."""
    name = settings.capture.slot_name
    with closing(connect_soon(settings.source, purpose="status")) as connection:
        state = slot.inspect(connection, name)
        rows = query(connection, _ROWS, [settings.capture.publication_name])
        status = SourceStatus(
            is_captured=slot.is_captured(connection, name),
            rows={f"{schema}.{table}": count for schema, table, count in rows},
        )
        if state is None:
            return status
        concerns = slot.concerns(state, settings.capture.slot_max_lag_bytes)
        status.concerns = [SlotConcern(text=each.text, remedy=each.remedy) for each in concerns]
        lsn = str(state.confirmed_flush_lsn)
        status.slot = SlotStatus.model_validate({**state._asdict(), "confirmed_flush_lsn": lsn})
    return status
