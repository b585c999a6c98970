"""The lakehouse's tables at the instant: their rows, and what is compared of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import MillraceError
from cdc.records.position import Position
from cdc.settings import Settings
from compaction.verify.confirm import RowsByKey, derived_keys, derived_rows
from compaction.verify.differences import DerivedHashes, HashedSide
from compaction.verify.hashed import KeyTexts
from compaction.verify.lakehouse.derived import ScratchLakehouse
from compaction.verify.lakehouse.versions import BrokenVersions, broken
from compaction.verify.report import VerifiedTable
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule, compared_table
from compaction.verify.sides import Brought, DerivedRows, ExpectedTable, not_compared
from compaction.verify.slices import Slice, sliced_keys
from sinks.changes.names import POSITION
from sinks.run.summary import SinkName
from sinks.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NONE: Final = frozenset[int]()


class LakehouseSide:
    """The lakehouse's tables; of a slice, where one is given."""

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
        self.names = lake.derived.keys()
        self._missing = dict[str, str]()
        self.expected = dict[str, ExpectedTable]()
        for name, shape in lake.expected.items():
            sliced = None if slice_ is None else sliced_keys(slice_, shape)
            if isinstance(sliced, str):
                self._missing[name] = sliced
                continue
            compared = compared_table(shape, not_compared(settings, shape))
            self.expected[name] = ExpectedTable(shape, with_position(compared, instant), sliced)

    def about(self, name: str) -> VerifiedTable:
        """The captured table, and the kind."""
        source, kind = self._lake.described(name)
        cut, cut_ms = self._lake.stands(name)
        return VerifiedTable(
            sink=self.sink, name=name, source=source, kind=kind, cut=cut, cut_ms=cut_ms
        )

    def brought(self) -> Brought:
        """As a merge leaves copies of them."""
        there = self._lake.brought()
        rows, missing = dict[str, DerivedRows](), {**there.missing, **self._missing}
        for name in self.expected.keys() & there.tables.keys():
            table = there.tables[name]
            try:
                with explained(name, self._keep):
                    shape, compared, sliced = self.expected[name]
                    current = table.rows(self._spark)
                    current = current if sliced is None else current.where(sliced.here())
                    rows[name] = _LakehouseRows(current, compared)
                    if table.derived.kind == "history":
                        versions = table.all_rows(self._spark)
                        check = partial(broken, versions, shape, self._instant, sliced=sliced)
                        rows[name] = HistoryRows(current, compared, check)
            except MillraceError as error:
                missing[name] = error.what
        return Brought(rows, missing)


class _LakehouseRows:
    """The rows of a Delta table."""

    refused = _NONE

    def __init__(self, rows: "DataFrame", compared: ComparedTable) -> None:
        self._rows = rows
        self._compared = compared

    def hashes(self) -> HashedSide:
        return DerivedHashes(self._rows, self._compared)

    def key_texts(self, keys: Sequence[int]) -> Mapping[int, KeyTexts]:
        return derived_keys(self._rows, self._compared, keys)

    def by_key(self, keys: Sequence[int]) -> RowsByKey:
        return derived_rows(self._rows, self._compared, keys)


class HistoryRows(_LakehouseRows):
    """The current rows of a history; ``broken`` are versions that can't be, so many of them."""

    def __init__(
        self,
        rows: "DataFrame",
        compared: ComparedTable,
        broken_versions: Callable[[int], BrokenVersions],
    ) -> None:
        super().__init__(rows, compared)
        self.broken = broken_versions


def with_position(compared: ComparedTable, instant: Position) -> ComparedTable:
    """With the rows' positions, which are null where they are right: no merge changes others."""
    if not compared.columns:
        return compared

    def above(value: SparkColumn) -> SparkColumn:
        return F.when(value > F.lit(str(instant)), value)

    # The source has nothing like it: its side is null.
    own = ComparedColumn(compared.columns[0].source, POSITION, Rule(Kind.NOTHING, above))
    return compared._replace(columns=(*compared.columns, own))
