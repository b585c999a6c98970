"""A table's schema versions → those that a run uses if the key has changed.

Imports are local, so that a run with nothing to do starts at once.
"""

from collections.abc import Sequence

from cdc.records.position import Position
from cdc.records.schema import TableSchema
from cdc.records.state import TableState


def versions_at(versions: Sequence[TableSchema], cut: Position) -> Sequence[TableSchema]:
    """Return the versions up to a cut, without a generation that begins after it.

    Return all versions of the cut's generation: a record up to the cut may be of a version that is
    recorded later.
    """
    if not versions or Position.parse(versions[-1].since) <= cut:
        return versions
    from sinks.changes.generations import generations

    begins = generations(versions)
    later = [
        version.version
        for version in versions[1:]
        if begins[version.version] == version.version and Position.parse(version.since) > cut
    ]
    return [version for version in versions if not later or version.version < later[0]]


def has_other_key(versions: Sequence[TableSchema], applied: int) -> bool:
    """Whether a table with the columns of a version (0: of none) is of an older generation."""
    if not versions or applied in {0, versions[-1].version}:
        return False
    from sinks.changes.generations import generations

    begins = generations(versions)
    return applied in begins and begins[applied] != begins[versions[-1].version]


def has_unread_key(versions: Sequence[TableSchema], read: Position) -> bool:
    """Whether the newest generation, if another one precedes it, began after the last read."""
    if len(versions) <= 1:
        return False
    from sinks.changes.generations import newest_generation

    begun = newest_generation(versions)
    since = next(Position.parse(each.since) for each in versions if each.version == begun)
    return begun != versions[0].version and read < since.just_before()


def snapshot_position(table: TableState) -> Position:
    """Return the position of the rows of the table's last snapshot."""
    return Position(table.epoch, table.snapshot_lsn, 0)
