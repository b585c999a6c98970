"""A sink whose tables are brought to the instant: what comparing asks of each kind of sink."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import MillraceError
from cdc.records.position import Position
from cdc.settings import Settings
from compaction.verify.confirm import RowsByKey, derived_keys, derived_rows
from compaction.verify.derived import ScratchLakehouse
from compaction.verify.differences import DerivedHashes, HashedSide
from compaction.verify.hashed import KeyTexts
from compaction.verify.report import SinkTable, VerifiedTable
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule, compared_table
from compaction.verify.versions import BrokenVersions, broken
from sinks.changes.names import POSITION
from sinks.changes.shape import TableShape
from sinks.run.summary import SinkName
from sinks.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NONE: Final = frozenset[int]()


class DerivedRows(Protocol):
    """The rows of a derived table, or the documents of an index, at the instant.

    ``refused`` are the hashes of keys whose documents the search server has refused.
    """

    @property
    def refused(self) -> Collection[int]:
        """As above, once there are ``hashes``, or rows ``by_key``."""

    def hashes(self) -> HashedSide:
        """Those of all rows, which are read once."""

    def key_texts(self, keys: Sequence[int], /) -> Mapping[int, KeyTexts]:
        """The texts of keys that ``hashes`` couldn't tell."""

    def by_key(self, keys: Sequence[int], /) -> RowsByKey:
        """The hashes of the columns of some keys' rows."""


class Brought(NamedTuple):
    """A sink's tables at the instant, and why others aren't there."""

    tables: Mapping[str, DerivedRows]
    missing: Mapping[str, str]


class ExpectedTable(NamedTuple):
    """The columns that a table, or an index, will have, and what is compared of them."""

    shape: TableShape
    compared: ComparedTable


class Side(Protocol):
    """A sink's tables, as they will be at the instant.

    ``names`` are those of all, ``expected`` is what those will have that can be compared.
    """

    sink: SinkName

    @property
    def names(self) -> Collection[str]:
        """As above."""

    @property
    def expected(self) -> Mapping[str, ExpectedTable]:
        """As above."""

    def about(self, name: str) -> VerifiedTable:
        """What is said of a table that isn't compared yet."""

    def brought(self) -> Brought:
        """The tables at the instant."""


class LakehouseSide:
    """The lakehouse's tables."""

    sink: SinkName = "lakehouse"

    def __init__(
        self,
        lake: ScratchLakehouse,
        instant: Position,
        spark: "SparkSession",
        settings: Settings,
    ) -> None:
        self._lake = lake
        self._instant = instant
        self._spark = spark
        self._keep = settings.log.keep
        self.names = lake.derived.keys()
        self.expected = {
            name: ExpectedTable(
                shape, with_position(compared_table(shape, not_compared(settings, shape)), instant)
            )
            for name, shape in lake.expected.items()
        }

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
        rows, missing = dict[str, DerivedRows](), dict(there.missing)
        for name, table in there.tables.items():
            try:
                with explained(name, self._keep):
                    shape, compared = self.expected[name]
                    current = table.rows(self._spark)
                    rows[name] = _LakehouseRows(current, compared)
                    if table.derived.kind == "history":
                        versions = table.all_rows(self._spark)
                        check = partial(broken, versions, shape, self._instant)
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


def not_compared(settings: Settings, shape: TableShape) -> dict[str, str]:
    """Why columns aren't compared: the capture masks or cuts their values."""
    modes, table = settings.capture.column_modes, str(shape.table)
    return {
        field.name: "the capture masks or truncates it"
        for field in shape.fields
        if modes.rule(table, field.column.name) is not None
    }


def table_of(side: Side, name: str) -> SinkTable:
    """Where a table of a side is."""
    return SinkTable(side.sink, name)
