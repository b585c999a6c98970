"""Named fault points: places where a test makes the process die, exactly there.

Inert unless the environment variable MILLRACE_FAULT names a point (``point`` or ``point:n`` for the
n-th time it is reached); then the process gets SIGKILL, as from the kernel's OOM killer.
"""

import os
import signal
from enum import StrEnum

VARIABLE = "MILLRACE_FAULT"


class FaultPoint(StrEnum):
    """Every place with a test that kills the daemon there (docs/decisions/0002 and 0011), or a run.

    The last two are a run's: its plan is written, and a table's commit is made.
    """

    EPOCH_RECORDED = "epoch-recorded"
    CREATING_RECORDED = "creating-recorded"
    SLOT_CREATED = "slot-created"
    SNAPSHOT_RECORDED = "snapshot-recorded"
    CHUNK_WRITTEN = "chunk-written"
    SNAPSHOT_COMMITTED = "snapshot-committed"
    SNAPSHOT_DONE = "snapshot-done"
    CHUNK_READ = "chunk-read"
    CHUNK_MARKED = "chunk-marked"
    CHUNK_TAKEN = "chunk-taken"
    RECEIVED = "received"
    BLOCK_KEPT = "block-kept"
    SPILLED = "spilled"
    PART_TRANSLATED = "part-translated"
    TRANSLATED = "translated"
    BATCH_WRITTEN = "batch-written"
    NEXT_WRITTEN = "next-written"
    BATCH_COMMITTED = "batch-committed"
    ACKNOWLEDGED = "acknowledged"
    RUN_PLANNED = "run-planned"
    TABLE_COMMITTED = "table-committed"


class _Armed:
    """The fault that the environment asks for, and how often its point is still passed."""

    def __init__(self, specification: str) -> None:
        self.point, _, count = specification.partition(":")
        self.passes = int(count or 1)


_armed = _Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def reach(point: FaultPoint) -> None:
    """Die here if this point is armed."""
    if _armed is not None and _armed.point == point:
        _armed.passes -= 1
        if _armed.passes == 0:
            os.kill(os.getpid(), signal.SIGKILL)
