"""The results of a run's tables → its outcome, its exit code, and the line for cron's mail."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from cdc.errors import BusyError, ExitCode, MillraceError, SinkUnreachableError
from cdc.lines import Lines, on_one_line
from cdc.records.position import Position

SinkName = Literal["lakehouse", "views", "search"]
"""The sinks, by their names in the configuration. Runs are in this order."""
SINK_NAMES: Final[tuple[SinkName, ...]] = get_args(SinkName)


class TableVersion(BaseModel):
    """One version of a Delta table. ``id`` is the table's, and differs once it is recreated."""

    model_config = ConfigDict(frozen=True)

    id: str
    version: int


class TableCounts(BaseModel):
    """A run's effect on a table: records read, and rows touched."""

    model_config = ConfigDict(frozen=True)

    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0


class RunOutcome(BaseModel):
    """The end of a run: the tables that failed, and why. The others are at the plan's cut.

    ``versions`` are the tables' versions there. A table without new records has the one of an
    earlier run. ``tables`` has the counts of the tables with a commit. ``covered`` are those that
    are no longer doubtful (sinks/run/debezium_topic.py).
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    run: int
    ts_ms: int
    failed: dict[str, str]
    seconds: float = 0.0
    versions: dict[str, TableVersion] = {}
    tables: dict[str, TableCounts] = {}
    covered: tuple[str, ...] = ()


class LastCheck(BaseModel):
    """When a run last had nothing to do for these tables (ms since 1970; 0: never).

    The log's last transaction then was committed at ``cut_ts_us`` (µs since 1970).
    """

    ts_ms: int = 0
    tables: list[str] = []
    cut_ts_us: int = 0


class Rows(NamedTuple):
    """The number of a derived table's rows that a run touched, and the version after it.

    ``is_covered``: the table was doubtful, and none of its rows is any longer.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    version: TableVersion | None = None
    is_covered: bool = False


@dataclass(frozen=True, slots=True)
class TableResult:
    """One table of a run: records read, rows touched, and the error, if it failed."""

    name: str
    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    version: TableVersion | None = None
    is_covered: bool = False
    seconds: float = 0.0
    error: MillraceError | None = None
    rebuilt: bool = False

    def counts(self) -> TableCounts:
        """Return the part that a plan's outcome keeps."""
        return TableCounts(
            events=self.events,
            inserted=self.inserted,
            updated=self.updated,
            deleted=self.deleted,
            seconds=round(self.seconds, 3),
        )

    def __str__(self) -> str:
        if self.error is not None:
            return Lines(f"{on_one_line(self.name)}: not applied: {self.error}")
        rebuilt = ", rebuilt: it was later than log.keep" if self.rebuilt else ""
        return (
            f"{self.name}: {self.events:,} events, {self.inserted:,} rows inserted, "
            f"{self.updated:,} updated, {self.deleted:,} deleted in {self.seconds:.1f} s"
            f"{rebuilt}"
        )


def errors_of(results: Iterable[TableResult]) -> dict[str, str]:
    """Return the errors of the tables that failed, by table."""
    return {table.name: str(table.error) for table in results if table.error is not None}


class Standing(NamedTuple):
    """A derived table's position in the log, after a run.

    It has everything in the topics before ``offsets`` (topic → partition → offset), or is
    ``made_of`` derived tables, or views, at its ``cut``. That was committed at ``cut_ts_us`` (µs
    since 1970; 0: unknown). The last ``run`` that wrote to it is 0 if none has, and it isn't
    ``shown`` until users can query it.
    """

    source: str = ""
    offsets: Mapping[str, Mapping[int, int]] = {}
    made_of: tuple[str, ...] = ()
    run: int = 0
    cut: Position | None = None
    cut_ts_us: int = 0
    shown: bool = True
    error: str = ""


def attempted(name: str, act: Callable[[], TableResult]) -> TableResult:
    """Return the result. An error that concerns only this table becomes part of it."""
    try:
        return act()
    except (BusyError, SinkUnreachableError):
        raise
    except MillraceError as error:
        return TableResult(name, error=error)


def kept_out_text(runs: int) -> str:
    """Return the text about runs that couldn't start, which follows a run's duration."""
    return f"; {runs} {'run' if runs == 1 else 'runs'} couldn't start meanwhile" if runs else ""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of one sink.

    ``standing`` has the state of all its tables after it. It has the log up to ``reached``, whose
    last transaction was committed at ``reached_ts_us``. Its newest plan is that of ``last_run``.
    ``log`` is the name of the log. ``kept_out`` runs couldn't start during it.
    """

    sink: str
    run: int
    cut: str
    seconds: float
    tables: list[TableResult] = field(default_factory=list)
    standing: Mapping[str, Standing] = field(default_factory=dict)
    reached: Position | None = None
    reached_ts_us: int = 0
    last_run: int = 0
    log: str = ""
    kept_out: int = 0

    @property
    def exit_code(self) -> ExitCode:
        """Return the first failure's code. Otherwise, it shows a rebuilt table, or any work."""
        for table in self.tables:
            if table.error is not None:
                return table.error.exit_code
        if any(table.rebuilt for table in self.tables):
            return ExitCode.REBUILT
        return ExitCode.OK if self.tables else ExitCode.NOTHING_TO_DO

    def line(self) -> str:
        """Return the run in one line."""
        if not self.tables:
            return f"{self.sink}: nothing to do ({self.seconds:.1f} s)"
        # A table that was also in an interrupted run's plan has two results. The last one counts.
        ended = {table.name: table.error is not None for table in self.tables}
        failed = [name for name, has_failed in ended.items() if has_failed]
        counts = ", ".join(
            f"{sum(getattr(table, what) for table in self.tables):,} {what}"
            for what in ("events", "inserted", "updated", "deleted")
        )
        run = f"run {self.run} to {self.cut}: " if self.run else ""
        what = {"search": "indexes", "views": "views"}.get(self.sink, "tables")
        return (
            f"{self.sink}: {run}{len(ended) - len(failed)} of {len(ended)} {what}, {counts} in "
            f"{self.seconds:.1f} s{kept_out_text(self.kept_out)}"
            + (f"; FAILED: {', '.join(failed)}" if failed else "")
        )
