"""A sink whose tables are brought to the instant: what comparing asks of each kind of sink."""

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
        """As above, once there are ``hashes``, or rows ``by_key``."""

    def hashes(self) -> HashedSide:
        """Those of all rows, which are read once."""

    def key_texts(self, keys: Sequence[int], /) -> Mapping[int, KeyTexts]:
        """The texts of keys that ``hashes`` couldn't tell."""

    def by_key(self, keys: Sequence[int], /) -> RowsByKey:
        """The hashes of the columns of some keys' rows."""

    def texts(self, keys: Sequence[int], /) -> TextsByKey:
        """The texts of the columns of some keys' rows."""


class Brought(NamedTuple):
    """A sink's tables at the instant, and why others aren't there."""

    tables: Mapping[str, DerivedRows]
    missing: Mapping[str, str]


class ExpectedTable(NamedTuple):
    """The columns that a table, or an index, will have, and what is compared of them.

    Only rows of a slice count where it is ``sliced``. ``why_not`` says why it can't be compared
    with the source; empty: it can.
    """

    shape: TableShape
    compared: ComparedTable
    sliced: SlicedKeys | None = None
    why_not: str = ""


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
