"""Cuts: tables at one common instant, and their differences between two instants.

The lakehouse has them (sinks/delta/cuts.py). ``CutRun`` (sinks/run/cut_run.py) brings targets made
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

    ``committed_us`` is the commit time of its last transaction (µs since 1970; 0: none was seen),
    and ``made_ms`` the run's start (ms since 1970).
    """

    model_config = ConfigDict(frozen=True)

    run: int
    cut: PositionField
    versions: dict[str, TableVersion]
    committed_us: int = 0
    made_ms: int = 0

    @property
    def time_us(self) -> int:
        """Return the time at the cut. A first snapshot's rows may have no transaction."""
        return self.committed_us or self.made_ms * 1_000


class TableAtCut(Protocol):
    """A table at a cut."""

    @property
    def is_small(self) -> bool:
        """Whether reading all rows is faster than a search in them."""

    def rows(self) -> "DataFrame":
        """Return all rows."""

    def rows_with(self, values: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
        """Return at least all rows with any of the ``values``.

        ``columns`` has each one's column.
        """


class TableDifference(NamedTuple):
    """A table's rows that only the older one of two cuts has, and those that only the newer has.

    ``versions`` is the number of row versions, if it is known.
    """

    gone: "DataFrame"
    come: "DataFrame"
    versions: int | None = None


class CutReader(Protocol):
    """Reads tables at some cuts, all in one session."""

    spark: "SparkSession"

    def at(self, instant: Instant) -> Mapping[str, TableAtCut]:
        """Return the tables at one of the cuts."""

    def difference(
        self, name: str, older: Instant, newer: Instant, keys: Collection[str], columns: set[str]
    ) -> TableDifference | None:
        """Return the rows that differ, with their keys and some columns. None: no row differs."""


class Instants(Protocol):
    """Cuts at which tables are together."""

    def newest(self, tables: Collection[str]) -> Instant | None:
        """Return the newest cut of all of these tables."""

    def has(self, instant: Instant) -> bool:
        """Whether a cut still exists, and its versions of the tables are kept."""


class Cuts(Instants, Protocol):
    """Instants, and the tables at them."""

    def shapes(self, instant: Instant) -> "dict[str, TableShape]":
        """Return the columns of the tables at a cut."""

    def reader(self, *instants: Instant, records: int = 0) -> CutReader:
        """Return a reader of the tables at some cuts, sized for about this many records."""
