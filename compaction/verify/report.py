"""The results of a verify, for people, scripts, and the sinks' state topic."""

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from cdc.errors import ExitCode
from compaction.verify.differences import Difference
from sinks.run.summary import SinkName


class SinkTable(NamedTuple):
    """A derived table. Tables of several sinks may have the same name."""

    sink: SinkName
    name: str


class DifferingValue(BaseModel):
    """A column's text at the source (for a view: by its query), and the text here."""

    model_config = ConfigDict(frozen=True)

    source: str | None
    here: str | None


class DifferingKey(BaseModel):
    """A key whose row differs: the texts of its columns by name, and the columns that differ.

    ``values`` are those of these columns, if the user has asked for them.
    """

    model_config = ConfigDict(frozen=True)

    key: dict[str, str | None]
    difference: Difference
    columns: tuple[str, ...] = ()
    values: dict[str, DifferingValue] = {}


class BrokenKey(BaseModel):
    """A key with an impossible version in a history, or event in an archive, and the reason."""

    model_config = ConfigDict(frozen=True)

    key: dict[str, str | None]
    why: str


class VerifiedTable(BaseModel):
    """The results for one derived table, or for one index.

    The derived table lacks ``missing`` rows. Only it has ``extra`` rows, and its ``different`` rows
    have other values. All of these differ at two instants. ``refused`` rows are missing or
    different, and have a dead letter: `millrace dead-letters search` shows the reason. ``healed``
    rows differed at the first instant only. ``keys`` are the first of the differing keys.

    ``left_out`` has the reasons why columns weren't compared. ``unverified`` says why the whole
    table wasn't, and ``unconfirmed`` how many rows had differed at one instant before. ``repaired``
    rows no longer differ once a sink has applied what the daemon has sent. ``unrepaired`` says why
    others still do.

    ``broken`` has the number of impossible versions of a history, or events of an archive, by
    reason. ``broken_keys`` are the keys of the first of them. ``beside`` names what else these were
    compared with. ``cut`` is the table's own cut. A run left the table there, or found nothing to
    do, at ``cut_ms`` (ms since 1970; 0: unknown).
    """

    model_config = ConfigDict(frozen=True)

    sink: SinkName
    name: str
    source: str
    kind: str
    rows: int = 0
    derived_rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    refused: int = 0
    healed: int = 0
    keys: tuple[DifferingKey, ...] = ()
    left_out: dict[str, str] = {}
    seconds: float = 0.0
    unverified: str = ""
    unconfirmed: int = 0
    repaired: int = 0
    unrepaired: str = ""
    cut: str = ""
    cut_ms: int = 0
    broken: dict[str, int] = {}
    broken_keys: tuple[BrokenKey, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def differing_rows(self) -> int:
        """Return how many rows differ from the source's."""
        return self.missing + self.extra + self.different + self.refused

    @property
    def differing(self) -> int:
        """Return how many rows differ, or are impossible versions."""
        return self.differing_rows + sum(self.broken.values())

    @property
    def is_right(self) -> bool:
        """Whether all of it was compared, and nothing differs after repairs."""
        return not (self.differing > self.repaired or self.unverified or self.left_out)


class VerifyReport(BaseModel):
    """A verify: the instant (LSN, and µs since 1970), and its tables.

    ``repair`` is the id of the repair, which is in a header of the log's records. If only a
    ``slice`` was compared, the rows of tables are those in it.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    lsn: str
    ts_us: int
    seconds: float
    snapshot_s: float
    tables: tuple[VerifiedTable, ...]
    repair: str = ""
    slice: str = ""

    def of_sink(self, sink: SinkName) -> "VerifyReport":
        """Return the results of one sink's tables."""
        own = tuple(table for table in self.tables if table.sink == sink)
        return self.model_copy(update={"tables": own})

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the worst result."""
        if any(table.differing > table.repaired or table.unconfirmed for table in self.tables):
            asked = any(table.unrepaired for table in self.tables)
            return ExitCode.NOT_REPAIRED if asked else ExitCode.DIFFERS
        if any(table.unverified or table.left_out for table in self.tables):
            return ExitCode.NOT_COMPARED
        return ExitCode.OK
