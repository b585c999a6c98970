"""The lakehouse's tables at the instant → their rows, and the compared columns."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import MillraceError
from cdc.records.position import Position
from cdc.settings import Settings
from compaction.verify.confirm import (
    RowsByKey,
    TextsByKey,
    derived_keys,
    derived_rows,
    derived_texts,
)
from compaction.verify.differences import DerivedHashes, HashedSide
from compaction.verify.hashed import KeyTexts
from compaction.verify.lakehouse.archived_versions import HistoryVersions, compared_versions
from compaction.verify.lakehouse.archives import Archive, replayed, why_no_rows
from compaction.verify.lakehouse.derived import ScratchLakehouse, TableAtInstant
from compaction.verify.lakehouse.logged import compared_events
from compaction.verify.lakehouse.versions import BrokenRows, broken
from compaction.verify.report import VerifiedTable
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule, compared_table
from compaction.verify.sides import Brought, DerivedRows, ExpectedTable, not_compared
from compaction.verify.slices import Slice, SlicedKeys, sliced_keys
from sinks.changes.names import POSITION
from sinks.run.summary import SinkName
from sinks.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NONE: Final = frozenset[int]()


class LakehouseSide:
    """The lakehouse's tables, or a slice of them."""

    sink: SinkName = "lakehouse"

    def __init__(
        self,
        lake: ScratchLakehouse,
        instant: Position,
        spark: "SparkSession",
        settings: Settings,
        slice_: Slice | None = None,
    ) -> None:
        self._lake = lake
        self._instant = instant
        self._spark = spark
        self._keep = settings.log.keep
        self._missing = dict[str, str]()
        self.names = lake.derived.keys()
        self.expected = dict[str, ExpectedTable]()
        for name in lake.expected.keys() & lake.named:
            self._expect(name, settings, slice_)

    def _expect(self, name: str, settings: Settings, slice_: Slice | None) -> None:
        shape = self._lake.expected[name]
        sliced = None if slice_ is None else sliced_keys(slice_, shape)
        if isinstance(sliced, str):
            self._missing[name] = sliced
            return
        why_not = why_no_rows(shape) if self._lake.derived[name].kind == "changes" else ""
        if why_not:
            self.expected[name] = ExpectedTable(shape, ComparedTable((), (), {}), sliced, why_not)
            return
        compared = with_position(
            compared_table(shape, not_compared(settings, shape)), self._instant
        )
        self.expected[name] = ExpectedTable(shape, compared, sliced)

    def about(self, name: str) -> VerifiedTable:
        """Return the report of the table, with its captured table and kind."""
        source, kind = self._lake.described(name)
        cut, cut_ms = self._lake.stands(name)
        return VerifiedTable(
            sink=self.sink, name=name, source=source, kind=kind, cut=cut, cut_ms=cut_ms
        )

    def brought(self) -> Brought:
        """Return the tables as a merge leaves copies of them."""
        there = self._lake.brought()
        missing = {name: why for name, why in there.missing.items() if name in self._lake.named}
        rows, missing = dict[str, DerivedRows](), missing | self._missing
        archives = dict[str, Archive]()
        for name, table in there.tables.items():
            if table.derived.kind == "changes":
                try:
                    with explained(name, self._keep):
                        events = table.all_rows(self._spark)
                except MillraceError as error:
                    missing[name] = error.what
                else:
                    archives[name] = Archive(table.derived, self._lake.expected[name], events)
        for name, table in there.tables.items():
            if name not in self.expected or name in missing:
                continue
            try:
                with explained(name, self._keep):
                    rows[name] = self._rows(name, table, archives)
            except MillraceError as error:
                missing[name] = error.what
        return Brought(rows, missing)

    def _rows(
        self, name: str, table: TableAtInstant, archives: Mapping[str, Archive]
    ) -> "LakehouseRows":
        expected = self.expected[name]
        if (archive := archives.get(name)) is not None:
            return ArchiveRows(
                lambda: replayed(archive), expected, partial(self._events, archive, expected)
            )
        current = table.rows(self._spark)
        if table.derived.kind != "history":
            return LakehouseRows(lambda: current, expected)
        history = HistoryVersions(expected.shape, table.all_rows(self._spark))
        check = partial(self._versions, name, history, archives, expected.sliced)
        return CheckedRows(lambda: current, expected, check)

    def _events(self, archive: Archive, expected: ExpectedTable, limit: int) -> BrokenRows:
        """Return the events of an archive that differ from the log's."""
        log = self._lake.in_log(archive.derived.name)
        return compared_events(archive, log, self._instant, expected.sliced, limit)

    def _versions(
        self,
        name: str,
        history: HistoryVersions,
        archives: Mapping[str, Archive],
        sliced: SlicedKeys | None,
        limit: int,
    ) -> BrokenRows:
        """Return the impossible versions of a history, and those that differ from the archive's."""
        found = broken(history.rows, history.shape, self._instant, limit, sliced)
        if (beside := self._lake.archive_of(name)) is None:
            return found
        why = self._lake.missing.get(beside, "")
        if (archive := archives.get(beside)) is not None:
            try:
                with explained(beside, self._keep):
                    whole = self._lake.whole_since(name)
                    whole = whole.with_other(self._lake.whole_since(beside))
                    more = compared_versions(history, archive, whole, sliced, limit)
                    return found.with_more(more)
            except MillraceError as error:
                why = error.what
        return found._replace(beside=(f"versions not compared with {beside}: {why}",))


class LakehouseRows:
    """The rows of a Delta table, or of a slice of it, made on first use."""

    refused = _NONE

    def __init__(self, made: "Callable[[], DataFrame]", expected: ExpectedTable) -> None:
        self._made = made
        self._expected = expected
        self._compared = expected.compared

    @cached_property
    def _rows(self) -> "DataFrame":
        sliced = self._expected.sliced
        return self._made() if sliced is None else self._made().where(sliced.here())

    def hashes(self) -> HashedSide:
        """Return the hashes of all rows."""
        return DerivedHashes(self._rows, self._compared)

    def key_texts(self, keys: Sequence[int]) -> Mapping[int, KeyTexts]:
        """Return the texts of some keys."""
        return derived_keys(self._rows, self._compared, keys)

    def by_key(self, keys: Sequence[int]) -> RowsByKey:
        """Return the hashes of some keys' columns."""
        return derived_rows(self._rows, self._compared, keys)

    def texts(self, keys: Sequence[int]) -> TextsByKey:
        """Return the texts of some keys' columns."""
        return derived_texts(self._rows, self._compared, keys)


class CheckedRows(LakehouseRows):
    """A history's current rows. ``broken`` returns impossible versions, up to a limit."""

    def __init__(
        self,
        made: "Callable[[], DataFrame]",
        expected: ExpectedTable,
        broken_rows: Callable[[int], BrokenRows],
    ) -> None:
        super().__init__(made, expected)
        self.broken = broken_rows


class ArchiveRows(CheckedRows):
    """The rows that an archive's events leave. ``broken`` returns impossible events.

    These are searched even if the rows can't be compared with the source.
    """


def with_position(compared: ComparedTable, instant: Position) -> ComparedTable:
    """Add the rows' positions, which are null if they are right: no merge changes others."""
    if not compared.columns:
        return compared

    def above(value: SparkColumn) -> SparkColumn:
        return F.when(value > F.lit(str(instant)), value)

    # The source has no such column: its side is null.
    own = ComparedColumn(compared.columns[0].source, POSITION, Rule(Kind.NOTHING, above))
    return compared._replace(columns=(*compared.columns, own))
