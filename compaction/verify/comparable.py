"""Descriptions of the source, the log and a derived table → whether they can be compared."""

from collections.abc import Sequence

from cdc.errors import ConfigError
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn
from cdc.records.schema import Column
from cdc.records.state import Progress
from cdc.settings import Settings
from compaction.verify.options import WantedNames
from compaction.verify.report import VerifiedTable
from compaction.verify.rules import ComparedTable
from compaction.verify.sides import Side
from sinks.changes.shape import TableShape


def require_there(names: WantedNames, sides: Sequence[Side]) -> None:
    """Raise ConfigError if no side has a table of that name."""
    there = {name for side in sides for name in side.names}
    wanted = {name for some in names.values() for name in some or ()}
    if unknown := sorted(wanted - there):
        raise ConfigError(
            f"unknown derived table: {', '.join(unknown)}",
            remedy=f"the derived tables are: {', '.join(sorted(there))}",
        )


def why_not(settings: Settings, table: VerifiedTable, description: TableDescription | None) -> str:
    """Return why a table can't be compared with the source. Empty: it can."""
    capture = settings.capture
    if settings.transforms or capture.skipped_operations:
        return "the log doesn't have all changes unchanged ([transforms], skipped.operations)"
    is_own = table.source in capture.snapshot_select_statements
    if is_own or not capture.snapshots(table.source):
        return "its first rows may differ, or not be in the log (snapshot options)"
    if description is None:
        return "the table was dropped at the source, or is no longer captured"
    return "" if description.all_changes else "the publication leaves out operations"


def lacks(progress: Progress, lsn: Lsn, timeline: int) -> str:
    """Return what the log lacks of the source at an instant. Empty: nothing.

    After a failover, LSNs of the log's timeline may belong to other changes.
    """
    if progress.timeline != timeline:
        return (
            f"the source is on timeline {timeline}, but the daemon is still on timeline"
            f" {progress.timeline}: it hasn't followed the failover"
        )
    reached = progress.cut.commit_lsn
    return "" if reached >= lsn else f"the source was at {lsn}, and the log has reached {reached}"


def require_same_cluster(progress: Progress, cluster: str) -> None:
    """Raise ConfigError if the source's LSNs aren't the log's."""
    if progress.system_identifier != cluster:
        raise ConfigError(
            f"the source is cluster {cluster}, but the log is of cluster"
            f" {progress.system_identifier}: they can't be compared",
            where="[source]",
            remedy="correct [source]; if the source was replaced: millrace new-epoch",
        )


def lacking_columns(
    settings: Settings,
    description: TableDescription | None,
    shape: TableShape,
    compared: ComparedTable,
) -> str:
    """Return why the columns of both sides don't fit each other. Empty: they do."""
    if not compared.columns:
        reasons = [f"{name}: {why}" for name, why in compared.left_out.items()]
        return f"none of its columns can be compared ({'; '.join(reasons)})"
    keeps, table = settings.capture.column_modes.keeps, str(shape.table)
    columns = description.columns if description is not None else ()
    at_source = {_form(column) for column in columns if keeps(table, column.name)}
    in_log = {_form(column) for column in shape.versions[-1].event_columns}
    if others := sorted({name for name, *_ in at_source ^ in_log}):
        return (
            "its columns have changed, and the log doesn't have the change yet:"
            f" {', '.join(others)}"
        )
    return ""


def _form(column: Column) -> tuple[str, str, int, bool]:
    return column.name, column.type, column.modifier, column.array


def masks_some(settings: Settings) -> bool:
    """Whether some column is masked. Its place in a view or a document is unknown."""
    tables = settings.lakehouse.tables if settings.lakehouse is not None else []
    return bool(settings.capture.column_modes.rules) or any(table.mask for table in tables)
