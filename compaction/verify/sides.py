"""A sink whose tables are brought to the instant: the interface that a comparison needs."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from cdc.settings import Settings
from compaction.verify.confirm import RowsByKey, TextsByKey
from compaction.verify.differences import HashedSide
from compaction.verify.hashed import KeyTexts
from compaction.verify.report import SinkTable, VerifiedTable
from compaction.verify.rules import ComparedTable
from compaction.verify.slices import SlicedKeys
from sinks.changes.shape import TableShape
from sinks.run.summary import SinkName


class DerivedRows(Protocol):
    """The rows of a derived table, or the documents of an index, at the instant.

    ``refused`` are the hashes of keys whose documents the search server has refused.
    """

    @property
    def refused(self) -> Collection[int]:
        """Return these hashes, after ``hashes`` or ``by_key``."""

    def hashes(self) -> HashedSide:
        """Return the hashes of all rows, which are read once."""

    def key_texts(self, keys: Sequence[int], /) -> Mapping[int, KeyTexts]:
        """Return the texts of keys that ``hashes`` lacks."""

    def by_key(self, keys: Sequence[int], /) -> RowsByKey:
        """Return the hashes of the columns of some keys' rows."""

    def texts(self, keys: Sequence[int], /) -> TextsByKey:
        """Return the texts of the columns of some keys' rows."""


class Brought(NamedTuple):
    """A sink's tables at the instant, and why others are missing."""

    tables: Mapping[str, DerivedRows]
    missing: Mapping[str, str]


class ExpectedTable(NamedTuple):
    """The future columns of a table, or an index, and the compared ones.

    If it is ``sliced``, only rows of a slice count. ``why_not`` says why it can't be compared with
    the source. Empty: it can.
    """

    shape: TableShape
    compared: ComparedTable
    sliced: SlicedKeys | None = None
    why_not: str = ""


class Side(Protocol):
    """A sink's tables, as they will be at the instant.

    ``names`` has all of them. ``expected`` describes those that can be compared.
    """

    sink: SinkName

    @property
    def names(self) -> Collection[str]:
        """Return the names of all tables."""

    @property
    def expected(self) -> Mapping[str, ExpectedTable]:
        """Return the descriptions of the tables that can be compared."""

    def about(self, name: str) -> VerifiedTable:
        """Return the report of a table that isn't compared yet."""

    def brought(self) -> Brought:
        """Return the tables at the instant."""


def not_compared(settings: Settings, shape: TableShape) -> dict[str, str]:
    """Return the columns that aren't compared, as the capture masks or cuts their values."""
    modes, table = settings.capture.column_modes, str(shape.table)
    return {
        field.name: "the capture masks or truncates it"
        for field in shape.fields
        if modes.rule(table, field.column.name) is not None
    }


def table_of(side: Side, name: str) -> SinkTable:
    """Return the key of a side's table."""
    return SinkTable(side.sink, name)
