"""A slot's state and the limits on it → what endangers the source, or the slot, in words.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html (wal_status, safe_wal_size)
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from cdc.postgres.slot import SlotState

LEVELS: Final = (100, 80, 50)
"""Percents of a limit that are told."""
_STATUSES: Final = {
    "extended": "it holds back more WAL than max_wal_size",
    "unreserved": "the server may remove WAL that it needs at the next checkpoint, unless it"
    " catches up before (max_slot_wal_keep_size)",
    "lost": "the server has removed WAL that it needs (max_slot_wal_keep_size): there is a gap",
}
HELD: Final = "held for transactions that are open, or until the next checkpoint"
"""Why a slot may hold back more than what its reader lacks."""
_UNITS: Final = ((40, "TB"), (30, "GB"), (20, "MB"), (10, "kB"))


class Concern(NamedTuple):
    """One thing to worry about; ``level`` grows as it gets worse."""

    kind: str
    level: int
    text: str


def concerns(state: SlotState, bytes_max: int | None) -> Iterator[Concern]:
    """What is to be said of the slot; ``bytes_max`` is slot.max.lag.bytes."""
    held = state.retained_bytes
    limits = [("slot.max.lag.bytes", bytes_max)]
    if state.safe_wal_size is not None:
        limits.append(("max_slot_wal_keep_size at the server", held + max(0, state.safe_wal_size)))
    for name, limit in limits:
        percent = 100 * held // limit if limit else 0
        level = next((level for level in LEVELS if percent >= level), 0)
        if level and limit:
            text = f"holds back {size(held)} of WAL, {percent} % of {name} ({size(limit)})"
            if state.lag_bytes < held // 2:
                text += f"; the log lacks only {size(state.lag_bytes)}, the rest is {HELD}"
            yield Concern(name, level, f"slot {state.name} {text}")
    for level, (status, text) in enumerate(_STATUSES.items(), 1):
        if state.wal_status == status:
            yield Concern("wal_status", level, f"slot {state.name} is {status}: {text}")


def size(number: int) -> str:
    """Bytes in PostgreSQL's units, where 1 kB is 1,024 bytes."""
    for shift, unit in _UNITS:
        if number >= 1 << shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} bytes"
