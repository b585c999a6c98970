"""A backlog, and how many records a run may read → an earlier end of each partition.

Nothing says how topics of a real Debezium belong together, so each gives the same part of what it
has.
"""

from collections.abc import Iterable

from sinks.batch import Offsets
from sinks.plan import TablePlan


def part(tables: Iterable[TablePlan], records_max: int) -> Offsets:
    """The ends, by topic; a table that is behind others of its topic reads up to there, too."""
    starts: Offsets = {}
    ends: Offsets = {}
    for table in tables:
        if table.waits:
            continue
        furthest = starts.setdefault(table.topic, dict(table.start))
        starts[table.topic] = {n: max(offset, table.start[n]) for n, offset in furthest.items()}
        ends[table.topic] = table.end
    total = sum(end - starts[topic][n] for topic in ends for n, end in ends[topic].items())
    return {
        topic: {
            number: min(end, start + -(-(end - start) * records_max // max(total, 1)))
            for number, end in partitions.items()
            for start in (starts[topic][number],)
        }
        for topic, partitions in ends.items()
    }
