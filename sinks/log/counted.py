"""A look at a table's new records → its plan: where the next one goes on, and what ends in it."""

from collections.abc import Iterable, Mapping

from cdc.records.position import Lsn, Position
from sinks.run.plan import Found, TablePlan, Truncates


def counted(
    table: TablePlan,
    looked_at: Mapping[int, Found],
    cut: Position,
    *,
    keyed: bool,
    archived: Truncates = (),
) -> TablePlan:
    """The table's plan after a look at its records, partition by partition.

    ``archived`` are the TRUNCATEs that it has in an archive.
    """
    found = {partition: looked_at.get(partition, Found(None, 0)) for partition in table.start}
    ends = _ends(table, [*found.values(), Found(None, 0, archived)], cut, keyed=keyed)
    return table.model_copy(
        update={
            "next": {
                partition: table.end[partition] if found.above is None else found.above
                for partition, found in found.items()
            },
            "events": sum(partition.events for partition in found.values()),
            "truncated": max((position for position, _ in ends), default=None),
            "ends": tuple(ends) if table.kind == "history" else (),
            "claims_ms": min(
                (one.claims_ms for one in found.values() if one.claims_ms is not None),
                default=None,
            ),
        }
    )


def _ends(
    table: TablePlan, found: Iterable[Found], cut: Position, *, keyed: bool
) -> list[tuple[Position, int]]:
    """Where all older rows of the table end, with times: TRUNCATEs, and whole new snapshots."""
    if table.kind == "changes":
        return []
    ends = {
        (position, ts_us)
        for partition in found
        for text, ts_us in partition.truncated
        if (position := Position.parse(text)) <= cut
        and (table.after is None or position > table.after)
    }
    if _replaces_all(table, keyed=keyed):
        # Rows with a key may have been read at several positions: before the first one the log has
        # a TRUNCATE, and an epoch's own positions come behind those of older ones.
        begins = Position(table.snapshot.epoch, Lsn(0), 0)
        ends.add((begins if keyed else table.snapshot.just_before(), table.snapshot_ms * 1000))
    return sorted(ends)


def _replaces_all(table: TablePlan, *, keyed: bool) -> bool:
    """Whether a whole new snapshot takes the place of everything older.

    It does in a new epoch, and always where rows have no key to be matched by.
    """
    if table.shown is None:
        return not keyed
    if keyed:
        return table.shown.epoch != table.snapshot.epoch
    return table.shown != table.snapshot
