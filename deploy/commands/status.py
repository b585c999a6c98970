"""``millrace status`` and ``millrace runs``: the state of all parts, and sinks' last runs."""

import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segments
from rich.text import Text

from cdc.errors import ExitCode
from cdc.kafka.admin import REACH_S
from cdc.log.reports import ReportReader
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_rich, printable_segments
from deploy.status.collect import collect
from deploy.status.model import Status
from deploy.status.patience import give_up_after
from deploy.status.screen import render, runs_table

_REFRESH_S: Final = 2.0


def status(
    config: ConfigOption = DEFAULT_PATH,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 36 if there is a problem.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the slot, the log, tables and sinks: problems first, each with its remedy.

    A part that doesn't answer within two seconds is unknown. The command changes nothing.
    """
    settings = load_to_connect(config)
    if watch:
        _watch(settings)
    shown = collect(settings)
    if json:
        print_json(shown.model_dump_json(indent=2))
    else:
        print_rich(render(shown))
    if check and shown.problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _watch(settings: Settings) -> None:
    """Show it until interrupted, with the rate of events."""
    console = Console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for shown, rate in _rates(settings):
            title = Text(f"{time.strftime('%H:%M:%S')}, {rate}, Ctrl-C ends this", style="dim")
            segments = printable_segments(console, Group(title, render(shown)))
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
