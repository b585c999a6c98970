"""Cuts: tables as they were together at one instant, and how they differ between two.

The lakehouse has them (sinks/delta/cuts.py). ``CutRun`` (sinks/run/cut_run.py) brings what is made
of such tables from cut to cut.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from cdc.records.fields import PositionField
from sinks.run.summary import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.changes.shape import TableShape


class Instant(BaseModel):
    """A cut (the ``run`` that made it), and its version of each of some tables.

    ``committed_us`` is when its last transaction was committed (µs since 1970; 0: none was seen),
    ``made_ms`` when the run began (ms since 1970).
    """

    model_config = ConfigDict(frozen=True)

    run: int
    cut: PositionField
    versions: dict[str, TableVersion]
    committed_us: int = 0
    made_ms: int = 0

    @property
    def time_us(self) -> int:
        """What the time is at the cut: of rows of a first snapshot no transaction may be seen."""
        return self.committed_us or self.made_ms * 1_000


class TableAtCut(Protocol):
    """A table as it was at a cut."""

    @property
    def is_small(self) -> bool:
        """Whether reading all rows is faster than a search through them."""

    def rows(self) -> "DataFrame":
        """All rows."""

    def rows_with(self, values: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
        """Rows among which are all that have any of the ``values``; of which column each is."""


class TableDifference(NamedTuple):
    """A table's rows that only the older one of two cuts has, and those that only the newer has.

    ``versions``: of how many rows they are, where that is known.
    """

    gone: "DataFrame"
    come: "DataFrame"
    versions: int | None = None


class CutReader(Protocol):
    """Reads tables at some cuts, all in one session."""

    spark: "SparkSession"

    def at(self, instant: Instant) -> Mapping[str, TableAtCut]:
        """The tables at one of the cuts."""

    def difference(
        self, name: str, older: Instant, newer: Instant, keys: Collection[str], columns: set[str]
    ) -> TableDifference | None:
        """By which rows a table differs: their keys and some columns. None: by none."""


class Instants(Protocol):
    """Cuts at which tables stand together."""

    def newest(self, tables: Collection[str]) -> Instant | None:
        """The newest cut at which all of these tables stand."""

    def has(self, instant: Instant) -> bool:
        """Whether a cut is still that, and its versions of the tables are kept."""


class Cuts(Instants, Protocol):
    """Instants, and the tables as they were there."""

    def shapes(self, instant: Instant) -> "dict[str, TableShape]":
        """The columns of the tables at a cut."""

    def reader(self, *instants: Instant, records: int = 0) -> CutReader:
        """A reader of the tables at some cuts, for work that is that of about so many records."""
