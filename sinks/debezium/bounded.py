"""A backlog, and how many records a run may read → an earlier end of each partition.

Nothing says how topics of a real Debezium belong together, so each gives the same part of what it
has. A compacted one that a table is made of from its beginning on is read at once: of what a first
run left over, compaction could take deletes of rows that the table has by then.
"""

from collections.abc import Collection, Iterable

from sinks.log.offsets import Offsets
from sinks.run.plan import TablePlan


def part(tables: Collection[TablePlan], compacted: Collection[str], records_max: int) -> Offsets:
    """The ends, by topic; a table that is behind others of its topic reads up to there, too."""
    begins = {table.topic for table in tables if not table.base or table.rebuilds}
    whole = begins.intersection(compacted)
    return _parts((one for one in tables if not one.waits and one.topic not in whole), records_max)


def _parts(tables: Iterable[TablePlan], records_max: int) -> Offsets:
    starts: Offsets = {}
    ends: Offsets = {}
    for table in tables:
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
