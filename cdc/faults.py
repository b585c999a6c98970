"""Environment variable → a named fault point: a place where a test kills the process.

Fault points do nothing unless the environment variable MILLRACE_FAULT names one (``point``, or
``point:n`` for its n-th pass). Then the process gets SIGKILL, as from the kernel's OOM killer.
"""

import os
import signal
from enum import StrEnum

VARIABLE = "MILLRACE_FAULT"


class FaultPoint(StrEnum):
    """Places where a test kills the daemon (docs/decisions/0002 and 0011) or a run.

    The last two belong to a run: after its plan is written, and after a table's commit.
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
    """The fault that the environment asks for, and the passes left before it."""

    def __init__(self, specification: str) -> None:
        self.point, _, count = specification.partition(":")
        self.passes = int(count or 1)


_armed = _Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def reach(point: FaultPoint) -> None:
    """Kill this process if the point is armed."""
    if _armed is not None and _armed.point == point:
        _armed.passes -= 1
        if _armed.passes == 0:
            os.kill(os.getpid(), signal.SIGKILL)
