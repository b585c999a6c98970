"""`millrace run`, broken on purpose: rows of a chunk overwrite what was streamed meanwhile.

A test of snapshots under fire that doesn't see them is no test.
"""

from millrace import main
from snapshots.chunk import Chunk
from snapshots.incremental import IncrementalSnapshots
from snapshots.work import Begun, Work

_stale = IncrementalSnapshots._stale


def _none(
    self: IncrementalSnapshots, work: Work, chunk: Chunk, begun: Begun
) -> frozenset[bytes] | None:
    return None if _stale(self, work, chunk, begun) is None else frozenset()


IncrementalSnapshots._stale = _none  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
