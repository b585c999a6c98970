"""``millrace verify``: compare every derived table with the source, at one instant."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from cdc.log.reports import ReportWriter
from cdc.records.record import to_json
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect, seconds
from deploy.commands.printing import print_json, print_line, printable_line

if TYPE_CHECKING:
    from compaction.verify.options import VerifyOptions
    from compaction.verify.report import DifferingKey, DifferingValue, VerifiedTable, VerifyReport
    from sinks.run.summary import SinkName

VerifiedSink = Literal["lakehouse", "views", "search", "all"]
_LATE_S: Final = 6 * 3600
_SHOWN_MAX: Final = 200
"""Up to this many characters of a value are shown."""
_DIFFERENCES: Final = {
    "missing": "missing here",
    "extra": "extra here",
    "different": "different",
    "refused": "refused by the search server",
}

PaceOption = Annotated[
    int,
    typer.Option(help="Read at most this many rows a second from the source; 0: no limit.", min=0),
]
AgeOption = Annotated[
    str, typer.Option("--max-age", help="Keep the source's snapshot at most this long.")
]
KeysOption = Annotated[int, typer.Option(help="Name at most this many keys of each table.", min=0)]
RepairOption = Annotated[bool, typer.Option(help="Have the daemon send differing rows again.")]
SliceOption = Annotated[
    str | None, typer.Option("--slice", help="Compare only a slice of all rows, such as 3/7.")
]
ValuesOption = Annotated[
    bool, typer.Option("--values", help="Show the values that differ; never masked ones.")
]


def verify(  # noqa: PLR0913 (a command's options)
    tables: Annotated[
        list[str] | None, typer.Argument(help="Compare only these derived tables.")
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    sink: Annotated[
        VerifiedSink, typer.Option(help="Compare only the tables of this sink.")
    ] = "all",
    sessions: Annotated[
        int, typer.Option(help="Read the source with this many sessions.", min=1)
    ] = 2,
    max_rows_per_second: PaceOption = 0,
    timeout: Annotated[
        str, typer.Option(help="Wait this long for open transactions and for the log.")
    ] = "30s",
    max_age: AgeOption = "1h",
    keys: KeysOption = 10,
    slice_: SliceOption = None,
    values: ValuesOption = False,
    repair: RepairOption = False,
    json: JsonOption = False,
) -> None:
    """Compare every derived table and index with the source, row by row, at one instant.

    The command writes to no table of the source and locks none. Merges continue meanwhile. Repaired
    rows are right after the next merge. A view is compared with the result of its query over the
    lakehouse, at its own cut. An archive is compared with the log, too, and a history with its
    archive.

    With --slice 3/7 only rows whose key's hash falls into the third of seven slices are compared:
    seven such runs compare all rows.

    Exit codes: 0 nothing differs, or it was repaired; 40 something differs; 41 something can't be
    compared; 42 something differs that can't be repaired. Others: docs/reference/errors.md.
    """
    from compaction.verify.options import VerifyOptions
    from compaction.verify.slices import Slice

    settings = load_to_connect(config)
    options = VerifyOptions(
        frozenset(tables or ()),
        _sinks(settings, sink),
        sessions,
        max_rows_per_second,
        seconds(timeout),
        seconds(max_age),
        keys,
        repair,
        None if slice_ is None else Slice.parse(slice_),
        values,
    )
    report = _reported(settings, options)
    if json:
        print_json(report.model_dump_json(indent=2))
    else:
        for line in lines(report):
            print_line(line)
    raise typer.Exit(report.exit_code)


def _sinks(settings: Settings, sink: VerifiedSink) -> "frozenset[SinkName]":
    """Return the sinks to compare. Raise ConfigError if such a sink isn't configured."""
    settings.require_own_capture("verify")
    if sink == "search":
        settings.require_search()
    elif sink == "views":
        settings.require_views()
    elif sink == "lakehouse" or not settings.search:
        settings.require_lakehouse()
    return frozenset() if sink == "all" else frozenset({sink})


def _reported(settings: Settings, options: "VerifyOptions") -> "VerifyReport":
    """Compare, and report the results of each sink to the log."""
    from compaction.verify.instant import older_readings
    from compaction.verify.options import compared_sinks
    from compaction.verify.run import verify as compare
    from sinks.run.options import RunContext, RunOptions
    from sinks.run.reported import ReportedRun
    from sinks.spark.session import open_session

    for reading in older_readings(settings):
        warning = f"another verify already reads the source: {printable_line(reading)}"
        print(f"millrace: warning: {warning}", file=sys.stderr)
    spark = open_session(settings.spark, "millrace verify")
    try:
        with ReportWriter(settings, _say_nothing) as reports, ExitStack() as stack:
            runs = {
                sink: stack.enter_context(ReportedRun(reports, sink, "verify"))
                for sink in compared_sinks(settings, options)
            }
            for run in runs.values():
                run.progress(0, 0)
            context = RunContext(settings, lambda _records=0: spark, _say_nothing, RunOptions())
            report = compare(context, options)
            for sink, run in runs.items():
                of_sink = report.of_sink(sink)
                run.found(
                    {table.name: _verdict(table) for table in of_sink.tables if not table.is_right},
                    of_sink.exit_code,
                    tables=len(of_sink.tables),
                    done=sum(not table.unverified for table in of_sink.tables),
                    rows=sum(table.rows for table in of_sink.tables),
                    where=f"{report.lsn} (slice {report.slice})" if report.slice else report.lsn,
                )
    finally:
        spark.stop()
    return report


def _say_nothing(_line: str) -> None:
    """Drop the messages of runs on copies, as only the report is printed."""


def lines(report: "VerifyReport") -> Iterator[str]:
    """Yield the report's lines for people."""
    taken = datetime.fromtimestamp(report.ts_us / 1e6, UTC).isoformat(" ", "seconds")
    slice_ = f", slice {report.slice}" if report.slice else ""
    yield f"at {report.lsn}, {taken}{slice_}, read in {report.snapshot_s:.1f} s"
    for table in report.tables:
        yield f"{table.sink}: {table.name}: {_verdict(table)}{_late(table, report.ts_us)}"
        yield from (f"  {beside}" for beside in table.beside)
        there = "by its query" if table.sink == "views" else "at the source"
        yield from (f"  {_named(key, there)}" for key in table.keys)
        yield from (f"  {_values(broken.key)}: {broken.why}" for broken in table.broken_keys)
        if (more := table.differing - len(table.keys) - len(table.broken_keys)) > 0:
            yield f"  and {more:,} more"
        yield from (f"  {name} isn't compared: {why}" for name, why in table.left_out.items())


def _late(table: "VerifiedTable", ts_us: int) -> str:
    """Return how long before the instant the last run was, if that is long."""
    late_s = ts_us / 1e6 - table.cut_ms / 1e3
    if not table.cut_ms or late_s < _LATE_S:
        return ""
    return f"; its last run was {late_s / 3600:,.0f} h earlier and didn't apply later changes"


def _verdict(table: "VerifiedTable") -> str:
    if table.unverified:
        return f"not compared: {table.unverified}"
    counts = [
        f"{getattr(table, kind):,} {text}"
        for kind, text in _DIFFERENCES.items()
        if getattr(table, kind)
    ]
    counts += [f"{count:,} where {why}" for why, count in table.broken.items()]
    details = f": {', '.join(counts)}" if counts else ""
    healed = f"; {table.healed:,} differed at the first instant only" if table.healed else ""
    repaired = f"; {table.repaired:,} repaired" if table.repaired else ""
    unrepaired = f"; not repaired: {table.unrepaired}" if table.unrepaired else ""
    return f"{table.rows:,} rows, {table.differing:,} differ{details}{healed}{repaired}{unrepaired}"


def _named(key: "DifferingKey", there: str) -> str:
    columns = ", ".join(_column(name, key.values.get(name), there) for name in key.columns)
    in_columns = f" in {columns}" if columns else ""
    return f"{_values(key.key)}: {_DIFFERENCES[key.difference]}{in_columns}"


def _column(name: str, value: "DifferingValue | None", there: str) -> str:
    if value is None:
        return name
    return f"{name} ({_shown(value.source)} {there}, {_shown(value.here)} here)"


def _shown(text: str | None) -> str:
    """Return a value in quotes, so that a text NULL differs from none. Cut a long one."""
    if text is None:
        return "NULL"
    short = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
    return to_json(short).decode()


def _values(key: "Mapping[str, str | None]") -> str:
    values = ", ".join(f"{name}={'NULL' if v is None else v}" for name, v in key.items())
    return values or "a row"
