"""What a run did to each table → its outcome, its exit code, and the line for cron's mail."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from cdc.errors import BusyError, ExitCode, MillraceError, SinkUnreachableError
from cdc.lines import Lines, on_one_line
from cdc.records.position import Position

SinkName = Literal["lakehouse", "views", "search"]
"""What there are derived tables in, by its name in the configuration; runs are in this order."""
SINK_NAMES: Final[tuple[SinkName, ...]] = get_args(SinkName)


class TableVersion(BaseModel):
    """One version of a Delta table; ``id`` is the table's, which one made anew doesn't have."""

    model_config = ConfigDict(frozen=True)

    id: str
    version: int


class TableCounts(BaseModel):
    """What a run did to a table: records read, and rows touched."""

    model_config = ConfigDict(frozen=True)

    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0


class RunOutcome(BaseModel):
    """The end of a run: the tables that failed, and why. The others stand at the plan's cut.

    ``versions`` are the tables' versions at which they do (one that nothing new came for has the
    one of an earlier run), ``tables`` what the run did to those that it committed to. ``covered``
    are those that aren't doubtful any more (sinks/run/debezium_topic.py).
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

    The log's last transaction was committed at ``cut_ts_us`` by then (µs since 1970).
    """

    ts_ms: int = 0
    tables: list[str] = []
    cut_ts_us: int = 0


class Rows(NamedTuple):
    """How many rows of a derived table a run touched, and the table's version after it.

    ``is_covered``: of a table that was doubtful, no row is any more.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    version: TableVersion | None = None
    is_covered: bool = False


@dataclass(frozen=True, slots=True)
class TableResult:
    """One table of a run: records read, rows touched, and what went wrong, if anything."""

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
        """What a plan's outcome keeps of it."""
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
    """The errors of those that have one, by table."""
    return {table.name: str(table.error) for table in results if table.error is not None}


class Standing(NamedTuple):
    """Up to where a derived table has the log, after a run.

    It has all of the topics before ``offsets`` (topic → partition → offset), or is ``made_of``
    derived tables, or views, as they were at its ``cut``. That was committed at ``cut_ts_us`` (µs
    since 1970; 0: not known). The last ``run`` that wrote to it is 0 where there is none, and it
    isn't ``shown`` until somebody can query it.
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
    """What came of it; an error that is this table's alone, and holds up no other, among it."""
    try:
        return act()
    except (BusyError, SinkUnreachableError):
        raise
    except MillraceError as error:
        return TableResult(name, error=error)


def kept_out_text(runs: int) -> str:
    """Return what to say of runs that couldn't start meanwhile, behind a run's duration."""
    return f"; {runs} {'run' if runs == 1 else 'runs'} couldn't start meanwhile" if runs else ""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of one sink.

    ``standing`` are all of its tables after it. It has the log up to ``reached``, whose last
    transaction was committed at ``reached_ts_us``; its newest plan is that of ``last_run``. ``log``
    is the name of the log. ``kept_out`` runs couldn't start meanwhile.
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
        """The first failure's; else whether a table was rebuilt, or anything was done at all."""
        for table in self.tables:
            if table.error is not None:
                return table.error.exit_code
        if any(table.rebuilt for table in self.tables):
            return ExitCode.REBUILT
        return ExitCode.OK if self.tables else ExitCode.NOTHING_TO_DO

    def line(self) -> str:
        """The run in one line."""
        if not self.tables:
            return f"{self.sink}: nothing to do ({self.seconds:.1f} s)"
        # One that an interrupted run's plan had, too, comes twice: what became of it last counts.
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
