"""The shared data of a check's parts: the settings, and one part's results for the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from cdc.postgres.described import TableDescription
from cdc.postgres.slot import SlotState
from cdc.records.schema import TableSchema
from cdc.records.state import Progress, TableState
from cdc.settings import CaptureSettings, Settings
from deploy.check.runner import Awaited
from sinks.run.wanted import CapturedTables


class SlotBefore(NamedTuple):
    """The slot before the log was read. None: it doesn't exist."""

    state: SlotState | None


class CapturedLog(NamedTuple):
    """The log's progress and its state of tables. Without progress nothing was captured yet."""

    progress: Progress | None
    states: dict[str, TableState]
    schemas: Mapping[str, tuple[TableSchema, ...]] = MappingProxyType({})
    """All versions of each table, ascending."""
    is_behind_slot: bool = True
    """Whether it was read after the slot; otherwise the two can't be compared."""

    @property
    def has_begun(self) -> bool:
        """Whether an earlier start has created a slot."""
        return self.progress is not None and not self.progress.is_first_start


def captured_of(capture: CaptureSettings, tables: list[TableDescription]) -> CapturedTables:
    """Return described tables as sinks see them later in the log, with their records' keys."""

    def is_keyed(table: TableDescription) -> bool:
        named = capture.column_modes.key_columns(str(table.name)) or ()
        names = {name.lower() for name in named}
        return any(column.key or column.name.lower() in names for column in table.columns)

    has_key = {str(each.name): is_keyed(each) for each in tables}
    keyed = frozenset(name for name, has in has_key.items() if has)
    return CapturedTables(tuple(has_key), keyed, frozenset(has_key.keys() - keyed))


@dataclass(frozen=True)
class Scene:
    """One check."""

    settings: Settings
    config: str
    """The configuration file's path."""
    slot: Awaited[SlotBefore] = field(default_factory=Awaited)
    log: Awaited[CapturedLog] = field(default_factory=Awaited)
    tables: Awaited[list[TableDescription]] = field(default_factory=Awaited)
