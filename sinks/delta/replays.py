"""New tables → those that begin with an archive, where the log doesn't reach as far back."""

from collections.abc import Mapping

from cdc.log.offsets import LogState
from sinks.changes.derived import Derived
from sinks.run.plan import Replay, TablePlan
from sinks.run.summary import TableVersion


def replayed(
    tables: dict[str, TablePlan],
    versions: Mapping[str, TableVersion],
    derived: Mapping[str, Derived],
    state: LogState,
) -> dict[str, TablePlan]:
    """The tables; new ones start from an archive where the log doesn't reach as far back."""
    archives = {
        table.source: name
        for name, table in derived.items()
        if table.kind == "changes"
        and table.keeps_records
        and name in versions
        and name in tables
        and tables[name].base
        and not tables[name].waits
        and tables[name].lacks == "nothing"
    }

    def from_archive(name: str, table: TablePlan) -> TablePlan:
        archive = archives.get(table.source)
        if table.base or archive is None or name == archive or table.kind == "changes":
            return table
        is_deleted = state.tables[table.source].cleanup == "delete"
        has_lost_records = any(state.starts[table.topic].values())
        if table.kind == "current" and not (is_deleted and has_lost_records):
            return table  # the log has all of it
        whole = tables[archive]
        replay = Replay(archive=archive, version=versions[archive].version)
        update = {"start": whole.start, "replay": replay, "fresh_ms": whole.fresh_ms}
        return table.model_copy(update=update)

    return {name: from_archive(name, table) for name, table in tables.items()}
