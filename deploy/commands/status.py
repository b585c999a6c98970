"""``millrace status`` and ``millrace runs``: the state of all parts, and sinks' last runs."""

import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segments
from rich.text import Text

from cdc.errors import ConfigError, ExitCode
from cdc.kafka.admin import REACH_S
from cdc.lines import name_first
from cdc.log.reports import ReportReader
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_rich, printable_segments
from deploy.status.collect import collect
from deploy.status.model import Status
from deploy.status.patience import give_up_after
from deploy.status.screen import Selection, names_in, render, runs_table

_REFRESH_S: Final = 2.0


def status(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Show these tables, views and indexes."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables", help="Show all tables, views and indexes, also if there are many."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 36 if there is a problem.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the slot, the log, tables and sinks: problems first, each with its remedy.

    Of more than 20 tables, it shows those that need attention, and totals. A part that doesn't
    answer within two seconds is unknown. The command changes nothing.
    """
    settings = load_to_connect(config)
    selection = Selection(frozenset(names or ()), tables)
    if watch:
        _watch(settings, selection)
    shown = collect(settings)
    if json:
        print_json(shown.model_dump_json(indent=2))
    else:
        print_rich(render(shown, selection))
        _require_known(selection, shown)
    if check and shown.problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _require_known(selection: Selection, shown: Status) -> None:
    """Raise ConfigError for a name that no table, view or index has."""
    known = names_in(shown)
    if known and (unknown := sorted(set(selection.names) - known)):
        raise ConfigError(
            f"no table, view or index has this name: {name_first(unknown)}",
            where="millrace status",
            remedy="millrace status --tables lists all names",
        )


def _watch(settings: Settings, selection: Selection) -> None:
    """Show it until interrupted, with the rate of events."""
    console = Console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for shown, rate in _rates(settings):
            title = Text(f"{time.strftime('%H:%M:%S')}, {rate}, Ctrl-C ends this", style="dim")
            segments = printable_segments(console, Group(title, render(shown, selection)))
            live.update(Segments(segments), refresh=True)


def _rates(settings: Settings) -> Iterator[tuple[Status, str]]:
    before: tuple[float, int] | None = None
    while True:
        began = time.monotonic()
        shown = collect(settings)
        rate = "events/s unknown"
        if shown.events is not None:
            if before is not None:
                per_s = (shown.events - before[1]) / (began - before[0])
                rate = f"{max(0.0, per_s):,.0f} events/s"
            before = began, shown.events
        yield shown, rate
        time.sleep(max(0.0, began + _REFRESH_S - time.monotonic()))


def runs(
    config: ConfigOption = DEFAULT_PATH,
    *,
    last: Annotated[int, typer.Option(help="List at most this many runs.", min=1)] = 20,
    json: JsonOption = False,
) -> None:
    """List the last runs of merges and compaction, the newest first.

    Runs that found nothing to do aren't listed.
    """
    settings = load_to_connect(config)
    reader = ReportReader(settings.kafka, settings.capture.topic_prefix, give_up_after(REACH_S))
    listed = reader.last_runs(last)
    if json:
        print_json("[" + ",\n".join(run.model_dump_json(indent=2) for run in listed) + "]")
    elif listed:
        print_rich(runs_table(listed))
    else:
        print("no run has reported to the log yet")
