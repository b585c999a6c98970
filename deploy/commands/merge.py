"""``millrace merge``, ``rebuild``, ``compact``, ``jars``: the log → derived tables, by cron."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Final, Literal

import typer

from cdc.convert.converters import schema_reader
from cdc.errors import ConfigError
from cdc.log.reports import ReportWriter
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import connect
from cdc.records.schema import Column
from cdc.records.topics import data_topic
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, stop_on_signals
from deploy.commands.configuration import load_to_connect, seconds
from deploy.commands.ending import InterruptedCommandError
from deploy.commands.printing import print_line
from deploy.status.sinks import (
    all_aliases,
    keyed_tables,
    require_log,
    table_states,
)
from sinks.run.options import RunOptions
from sinks.run.reported import ReportedRun
from sinks.run.summary import SinkName
from sinks.spark.jars import REPOSITORY
from sinks.spark.jars import VARIABLE as JARS

TABLE_ENDS_S: Final = 7.0
"""How long a merge that was asked to end works on its current tables."""
_CANCEL_AGAIN_S: Final = 0.5
"""A table has several jobs, one after the other."""
AcceptGapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-gap",
        help="Accept a gap in this history or archive, which came later than log.keep.",
    ),
]
AcceptDropOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-drop", help="Treat this captured table as dropped, even if many are missing."
    ),
]
AcceptDoubtOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-doubt",
        help="End the doubt about this table from a real Debezium's topics.",
    ),
]


def merge(  # noqa: PLR0913 (a command's options)
    sink: Annotated[
        Literal[SinkName, "all"], typer.Argument(help="Apply the log to these.")
    ] = "all",
    config: ConfigOption = DEFAULT_PATH,
    *,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Merge continuously, or run once.")
    ] = False,
    interval: Annotated[
        str, typer.Option(help="With --follow, start runs at least this far apart.")
    ] = "1s",
    accept_gap: AcceptGapOption = None,
    accept_drop: AcceptDropOption = None,
    accept_doubt: AcceptDoubtOption = None,
    max_records: Annotated[
        int | None,
        typer.Option(help="Read about this many records at most; later runs catch up.", min=1),
    ] = None,
    types_from_source: Annotated[
        bool,
        typer.Option(
            "--types-from-source", help="Ask the source for types that Debezium left out."
        ),
    ] = False,
) -> None:
    """Apply the log to lakehouse tables, views and search indexes.

    A run goes to the log's end and ends: start it from cron, or use --follow.

    Exit codes: 0 applied; 3 nothing to do; 4 another run is active; 34 applied, and a table that
    came too late was rebuilt. Others: docs/reference/errors.md.
    """
    from sinks.follow import follow as run_on
    from sinks.job import Jobs

    settings = load_to_connect(config)
    gaps = frozenset(accept_gap or ())
    options = run_options(settings, max_records, gaps, types_from_source=types_from_source)
    options = replace(
        options,
        accepted_drops=frozenset(accept_drop or ()),
        accepted_doubts=_accepted_doubts(settings, accept_doubt or ()),
    )
    apart_s = seconds(interval)
    with stop_on_signals() as stop:
        going_on = partial(_go_on_unless, stop)
        with (
            Jobs(settings, sink, options, lasting=follow, while_waiting=going_on) as jobs,
            _cancelled_late(stop, jobs.cancel),
        ):
            if follow:
                code = run_on(jobs, settings, stop, apart_s, print_line)
            else:
                code = jobs.run(print_line)
    raise typer.Exit(code)


def _accepted_doubts(settings: Settings, names: Iterable[str]) -> frozenset[str]:
    if names and settings.captures_itself:
        raise ConfigError(
            "Millrace's daemon ends the doubt about its own tables: it reads them again",
            where="--accept-doubt",
            remedy='--accept-doubt is for topics_written_by = "debezium" in [lakehouse]; otherwise'
            " run: millrace snapshot",
        )
    return frozenset(names)


def _go_on_unless(stop: Event) -> None:
    """Continue with the next table, or the wait for brokers, unless the command must end."""
    if stop.is_set():
        raise InterruptedCommandError


@contextmanager
def _cancelled_late(stop: Event, cancel: Callable[[], None]) -> Iterator[None]:
    """Cancel the current work some time after ``stop`` is set, as a table may take long."""
    over = Event()

    def watch() -> None:
        stop.wait()
        over.wait(TABLE_ENDS_S)
        while not over.wait(_CANCEL_AGAIN_S):
            cancel()

    Thread(target=watch, name="cancelling", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def source_types(settings: Settings) -> dict[str, dict[str, Column]]:
    """Return columns by topic and name, as the tables have them now. Writes nothing."""
    read_only = {"default_transaction_read_only": "on"}
    with connect(settings.source, purpose="column types", pinned=read_only) as connection:
        tables = captured_tables(connection, settings.capture)
        described = described_tables(connection, settings.capture, tables)
    prefix = settings.capture.topic_prefix
    return {
        data_topic(prefix, table.name): {column.name: column for column in table.columns}
        for table in described
    }


def run_options(
    settings: Settings,
    records_max: int | None,
    accepted_gaps: frozenset[str],
    *,
    types_from_source: bool,
) -> RunOptions:
    """Return the options of a run. Raise ConfigError for one that doesn't apply to the topics."""
    if settings.captures_itself:
        if types_from_source:
            raise ConfigError(
                "Millrace's own log has all types",
                where="--types-from-source",
                remedy='--write-types is for topics_written_by = "debezium" in [lakehouse]',
            )
        return RunOptions(records_max, accepted_gaps)
    types_of = partial(source_types, settings) if types_from_source else None
    return RunOptions(records_max, accepted_gaps, schema_reader(settings.format), types_of)


def rebuild(
    what: Annotated[
        Literal["search", "lakehouse", "view"], typer.Argument(help="Rebuild this kind.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Rebuild only these derived tables, joined documents or views."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
) -> None:
    """Write lakehouse tables, search indexes or views again.

    lakehouse: One commit replaces all rows of a table, from the log or an archive. If neither has
    the whole table, the table stays as it is (exit code 33). Without names, the command rebuilds
    every table that it can.

    search: The old index serves searches and stays current until the new one is complete.

    view: The command evaluates the whole query, and replaces the rows of the view at once.

    After an interruption, the next rebuild or merge finishes the work. The exit codes are those of
    merge.
    """
    from sinks.job import Jobs

    settings = load_to_connect(config)
    if what == "lakehouse":
        options = run_options(settings, None, frozenset(), types_from_source=False)
        options = replace(options, rebuilt=frozenset(names or ()), rebuilds_all=not names)
        sink: str = what
    elif what == "view":
        views = settings.require_views(names or ())
        sink, options = "views", RunOptions(rebuilt=frozenset(view.name for view in views))
    else:
        sink, options = what, RunOptions(rebuilt=frozenset(names or all_aliases(settings)))
    with Jobs(settings, sink, options, lasting=what != "lakehouse") as jobs:
        raise typer.Exit(jobs.run(print_line))


def compact(
    what: Annotated[
        Literal["topics", "lakehouse", "search", "all"],
        typer.Argument(help="Keep these small."),
    ] = "all",
    config: ConfigOption = DEFAULT_PATH,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is worth compacting, and change nothing.")
    ] = False,
) -> None:
    """Keep topics, lakehouse tables and search indexes small.

    The command checks the compaction of topics, runs OPTIMIZE and VACUUM on tables, and merges
    segments of indexes. You can still query every cut within lakehouse.keep.
    """
    settings = load_to_connect(config)
    with ReportWriter(settings, print_line) as reports:
        for name, compacted in _COMPACTED.items():
            if what not in {name, "all"}:
                continue
            lines = compacted(settings, dry_run)
            with ReportedRun(reports, name, "compact") if not dry_run else nullcontext() as run:
                if run is not None:
                    run.progress(0, 0)
                for line in lines:
                    print_line(line)


def _topics(settings: Settings, _dry_run: bool) -> Iterator[str]:
    if not settings.captures_itself:
        return
    require_log(settings)
    from compaction.topics import examine

    for report in examine(settings, table_states(settings)):
        verdict = "; ".join(report.findings) or "as promised"
        yield f"topic {report.name}: {report.policy}, {report.offsets:,} offsets, {verdict}"


def _tables(settings: Settings, dry_run: bool) -> Iterator[str]:
    if settings.lakehouse is None:
        return
    from compaction.lakehouse import compact_lakehouse
    from sinks.spark.session import open_session

    session = cache(partial(open_session, settings.spark))
    try:
        for table in compact_lakehouse(settings, session, dry_run=dry_run):
            yield f"table {table}"
    finally:
        if session.cache_info().currsize:
            session().stop()


def _indexes(settings: Settings, dry_run: bool) -> Iterator[str]:
    if settings.search is None or not settings.captures_itself:
        return
    require_log(settings)
    from compaction.indexes import compact as compact_indexes

    names = keyed_tables(settings, table_states(settings))
    for index in compact_indexes(settings.search, names, dry_run=dry_run):
        yield f"index {index}"


_COMPACTED: Final[Mapping[str, Callable[[Settings, bool], Iterator[str]]]] = {
    "lakehouse": _tables,
    "topics": _topics,
    "search": _indexes,
}
"""Kind of data → a line for each topic, table or index, once it is compacted."""


def jars(
    repository: Annotated[
        str,
        typer.Option("--repository", envvar=REPOSITORY, help="Fetch from this Maven repository."),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write them to this folder instead of MILLRACE_JARS."),
    ] = None,
) -> None:
    """Fetch the jars that merges need: Delta Lake and Spark's Kafka source.

    The jars go to the folder of --to or MILLRACE_JARS, or into the installation. If PySpark and
    Java are there, the command also writes an archive of classes: merges start faster with it.
    """
    from sinks.spark.classes import archive_classes
    from sinks.spark.maven import fetch_jars

    if to is not None:
        os.environ[JARS] = str(to.absolute())
    fetch_jars(repository, print_line)
    archive_classes(print_line)
