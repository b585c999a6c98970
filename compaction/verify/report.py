"""What a verify has found, for people, scripts, and the sinks' state topic."""

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from cdc.errors import ExitCode
from compaction.verify.differences import Difference
from sinks.run.summary import SinkName


class SinkTable(NamedTuple):
    """A derived table: tables of several sinks may have one name."""

    sink: SinkName
    name: str


class DifferingValue(BaseModel):
    """A column's text at the source (of a view: by its query), and the one here."""

    model_config = ConfigDict(frozen=True)

    source: str | None
    here: str | None


class DifferingKey(BaseModel):
    """A key whose row differs: the texts of its columns by name, and the columns that differ.

    ``values`` are those of these columns, where the user has asked for them.
    """

    model_config = ConfigDict(frozen=True)

    key: dict[str, str | None]
    difference: Difference
    columns: tuple[str, ...] = ()
    values: dict[str, DifferingValue] = {}


class BrokenKey(BaseModel):
    """A key of which a history has a version, or an archive an event, that can't be; and why."""

    model_config = ConfigDict(frozen=True)

    key: dict[str, str | None]
    why: str


class VerifiedTable(BaseModel):
    """What was found of one derived table, or of one index.

    ``missing`` rows it lacks, ``extra`` ones the source hasn't, and ``different`` ones have other
    values: seen at two instants. ``refused`` are missing or different, and have a dead letter:
    `millrace dead-letters search` tells why. ``healed`` were different at the first only. ``keys``
    are the first of them. ``left_out`` has why columns weren't compared; ``unverified`` why all of
    it wasn't, and ``unconfirmed`` how many rows had differed by then, at one instant. ``repaired``
    rows differ no more once a sink has taken what the daemon has sent; ``unrepaired`` says why
    others do. ``broken`` has how many versions of a history, or events of an archive, can't be, by
    the reason why; ``broken_keys`` are the keys of the first of them. ``beside`` says what else
    these were compared with. The table itself stands at the ``cut``, where a run has left it, or
    found nothing to do, at ``cut_ms`` (ms since 1970; 0: not known).
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
        """How many rows differ from the source's."""
        return self.missing + self.extra + self.different + self.refused

    @property
    def differing(self) -> int:
        """How many rows differ, or are versions that can't be."""
        return self.differing_rows + sum(self.broken.values())

    @property
    def is_right(self) -> bool:
        """Whether all of it was compared, and nothing differs, or not any more."""
        return not (self.differing > self.repaired or self.unverified or self.left_out)


class VerifyReport(BaseModel):
    """A verify: the instant (LSN, and µs since 1970), and its tables.

    ``repair`` is the id of what was repaired, which is in a header of the log's records. Where only
    a ``slice`` was compared, the rows of tables are those in it.
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
        """What was found of one sink's tables."""
        own = tuple(table for table in self.tables if table.sink == sink)
        return self.model_copy(update={"tables": own})

    @property
    def exit_code(self) -> ExitCode:
        """That of the worst that was found."""
        if any(table.differing > table.repaired or table.unconfirmed for table in self.tables):
            asked = any(table.unrepaired for table in self.tables)
            return ExitCode.NOT_REPAIRED if asked else ExitCode.DIFFERS
        if any(table.unverified or table.left_out for table in self.tables):
            return ExitCode.NOT_COMPARED
        return ExitCode.OK
