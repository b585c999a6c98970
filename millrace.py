"""The command line: arguments → one call into a part, and an exit code.

The only module that imports everything, each part lazily: the daemon's machine needs no Spark.
"""

import contextlib
import gc
import importlib.resources
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cdc.errors import ConfigError, ExitCode, MillraceError
from cdc.settings import DEFAULT_PATH, Duration, load
from deploy.commands.cuts import cuts, query
from deploy.commands.dead_letters import app as dead_letters
from deploy.commands.search import rebuild, search

DEBUG_VARIABLE = "MILLRACE_DEBUG"
GC_THRESHOLD = 50_000
"""Rows make no cycles, so looking for some after every 700 new objects is time lost."""
app = typer.Typer(
    name="millrace",
    help="Turn a PostgreSQL database into derived tables that are always right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration file.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"millrace {version('millrace')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


@app.callback()
def _options(*, version: VersionOption = False) -> None: ...


class Sink(StrEnum):
    """Which derived tables a merge is for."""

    LAKEHOUSE = "lakehouse"
    SEARCH = "search"
    ALL = "all"


class Part(StrEnum):
    """What compaction is for."""

    TOPICS = "topics"
    LAKEHOUSE = "lakehouse"
    SEARCH = "search"
    ALL = "all"


def main() -> None:
    """Run the command line; the one place that turns errors into text and an exit code."""
    try:
        app(standalone_mode=True)
    except MillraceError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (a bug of ours gets a message, too)
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print(
            f"millrace: internal error: {type(error).__name__}\n"
            f"  → this is a bug; {DEBUG_VARIABLE}=1 shows the details to report. Nothing is lost: "
            "the next start goes on where this one was",
            file=sys.stderr,
        )
        sys.exit(ExitCode.BUG)


def fail(error: MillraceError) -> None:
    """Print the one message of an error and exit with its code."""
    print(f"millrace: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second SIGINT interrupts at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = DEFAULT_PATH,
    *,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration file."""
    if path.exists() and not force:
        raise ConfigError("the file exists", where=str(path), remedy="--force overwrites it")
    text = importlib.resources.files("deploy").joinpath("example.toml").read_text(encoding="utf-8")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write: {error.strerror}", where=str(path)) from None
    print(f"wrote {path}: fill in its sections, then run `millrace run`")


def _with_daemon(
    config: Path,
    json: bool,
    use: Callable[..., None],
    *arguments: object,
    answers: bool = False,
    threads: int | None = None,
) -> bool:
    """Use a daemon until it ends; returns whether it was told to stop, also while it waited.

    Only one that ``answers`` for its health takes the port: others are run beside that one.
    ``threads``: in place of snapshot.max.threads.
    """
    from cdc.capture.daemon import Daemon
    from cdc.capture.slot_lease import StoppedError
    from cdc.compiled.extension import warn_if_pure
    from deploy.commands.console import ConsoleObserver, configure_logging
    from deploy.commands.health import HealthServer, daemon_registry
    from snapshots.channel import open_channel
    from snapshots.initial import InitialSnapshot
    from snapshots.pace import Pace

    settings = load(config)
    if threads is not None:
        capture = settings.capture.model_copy(update={"snapshot_max_threads": threads})
        settings = settings.model_copy(update={"capture": capture})
    configure_logging(json=json)
    warn_if_pure()
    capture = settings.capture
    pace = Pace(capture.snapshot_rows_per_second_max, adaptive=capture.snapshot_adaptive)
    backfill = InitialSnapshot(settings.source, capture, pace)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    with (
        stop_on_signals() as stop,
        ConsoleObserver() as observer,
        contextlib.ExitStack() as stack,
    ):
        daemon = Daemon(settings, backfill, observer, partial(open_channel, pace))
        if answers and settings.health.listen is not None:
            metrics = daemon_registry(daemon.health, daemon.letters, lambda: pace.rate)
            stack.enter_context(HealthServer(settings.health.listen, daemon.health, metrics))
        with contextlib.suppress(StoppedError):
            use(daemon, *arguments, stop)
        return stop.is_set()


@app.command()
def run(config: ConfigOption = DEFAULT_PATH, *, json_log: JsonOption = False) -> None:
    """Capture: snapshot what wasn't read yet, then stream until stopped (SIGTERM drains)."""
    from cdc.capture.daemon import Daemon

    _with_daemon(config, json_log, Daemon.run, answers=True)


@app.command()
def snapshot(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="Tables as schema.table, to be read again. Default: those never read."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    where: Annotated[str | None, typer.Option(help="SQL: only rows that meet it.")] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, max=64, help="In place of snapshot.max.threads.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was paused.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Rows that the source hasn't any more disappear.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is read.")] = False,
    json_log: JsonOption = False,
) -> None:
    """Read existing rows into the log, and end. A running daemon is asked to, and watched."""
    from deploy.commands.console import configure_logging
    from deploy.commands.snapshot import ask, check_condition, describe, is_captured, render_plan

    names, settings = tables or [], load(config)
    if (where is not None or reset) and (not names or resume):
        raise ConfigError(
            "--where and --reset are for tables that are named, and not for --resume",
            remedy="millrace snapshot schema.table --where …",
        )
    if where is not None and reset:
        raise ConfigError(
            "--where and --reset exclude each other: behind a reset all rows have to be read",
            remedy="name tables with one of them",
        )
    beside = is_captured(settings)
    if beside and parallel is not None:
        raise ConfigError(
            "a daemon runs, and reads by as many threads as its configuration says",
            remedy="leave --parallel out; or change snapshot.max.threads, and start it anew",
        )
    described = describe(settings, names) if names or beside or dry_run else []
    if where is not None:
        check_condition(settings, described, where)
    if dry_run:
        Console().print(render_plan(settings, names, described, beside=beside))
        return
    if beside:
        configure_logging(json=json_log)
        with stop_on_signals() as stop:
            if ask(settings, names, described, stop, where=where, resume=resume, reset=reset):
                return
        print("the daemon goes on with it: `millrace status` shows how far it is", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED)
    from cdc.capture.daemon import Daemon

    use, asked = (Daemon.resume, (names,)) if resume else (Daemon.snapshot, (names, where))
    if _with_daemon(config, json_log, use, *asked, threads=parallel):
        raise typer.Exit(ExitCode.INTERRUPTED)  # what is left is read by the next start


@app.command()
def new_epoch(
    config: ConfigOption = DEFAULT_PATH,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only look.")] = False,
    json_log: JsonOption = False,
) -> None:
    """After a gap: go on from the source as it is now; `millrace run` then reads all tables anew.

    Rows that are gone by then disappear from what is derived. Nothing in the log is removed.
    """
    from cdc.capture.daemon import Daemon

    if not yes:
        _with_daemon(config, json_log, lambda daemon, stop: print(daemon.find_gap(stop)))
        print("nothing was changed; --yes begins a new epoch, in which all tables are read anew")
        return

    def begin(daemon: Daemon, stop: threading.Event) -> None:
        epoch = daemon.begin_epoch(stop)
        print(f"epoch {epoch} begins: `millrace run` makes a new slot, and reads all tables anew")

    if _with_daemon(config, json_log, begin):
        raise typer.Exit(ExitCode.INTERRUPTED)


@app.command()
def merge(
    sink: Annotated[Sink, typer.Argument(help="Which derived tables.")] = Sink.ALL,
    config: ConfigOption = DEFAULT_PATH,
    *,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on, run after run; default: one run.")
    ] = False,
    interval: Annotated[
        str, typer.Option(help="With --follow: runs begin at least so far apart.")
    ] = "1s",
    accept_gap: Annotated[
        list[str] | None,
        typer.Option("--accept-gap", help="A history or archive that came later than log.keep."),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(help="Read about so many at most; later runs catch up.", min=1),
    ] = None,
    types_from_source: Annotated[
        bool, typer.Option("--types-from-source", help="Ask for types that Debezium left out.")
    ] = False,
) -> None:
    """Apply the log to lakehouse tables and search indexes: one bounded run, fit for cron.

    Exit codes: 0 applied, 3 nothing to do, 4 another run is under way, 34 applied, and a table that
    came too late was rebuilt; others: docs/errors.md.
    """
    from deploy.commands.merge import run_options
    from sinks.follow import follow as run_on
    from sinks.job import Jobs

    settings = load(config)
    gaps = frozenset(accept_gap or ())
    options = run_options(settings, max_records, gaps, types_from_source=types_from_source)
    apart_s = _seconds(interval)
    with stop_on_signals() as stop, Jobs(settings, sink, options, lasting=follow) as jobs:
        code = run_on(jobs, settings, stop, apart_s, print_line) if follow else jobs.run(print_line)
    raise typer.Exit(code)


def print_line(line: str) -> None:
    """Print one line at once, also into cron's mail."""
    print(line, flush=True)


def _seconds(text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Duration).validate_python(text).total_seconds()
    except ValidationError:
        raise ConfigError(f"not a duration: {text}", remedy="write it as 30s, 5m or 1h") from None


@app.command()
def status(config: ConfigOption = DEFAULT_PATH, *, json: JsonOption = False) -> None:
    """Show slot, lag, snapshot progress, and how far each sink is."""
    from deploy.commands.status import collect, render

    found = collect(load(config))
    if json:
        print(found.model_dump_json(indent=2))
    else:
        Console().print(render(found))


@app.command()
def drop(
    config: ConfigOption = DEFAULT_PATH,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only show.")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="The topics, too.")] = False,
    lakehouse: Annotated[bool, typer.Option("--lakehouse", help="The Delta tables, too.")] = False,
    indexes: Annotated[bool, typer.Option("--indexes", help="The search indexes, too.")] = False,
) -> None:
    """Remove slot and publication, so that nothing holds WAL back any more."""
    from deploy.commands.drop import plan

    settings = load(config)
    steps = plan(settings, topics=topics, lakehouse=lakehouse, indexes=indexes)
    for step in steps:
        print(f"{'dropping' if yes else 'would drop'} {step.what}", flush=True)
        if yes:
            step.act()
    if not steps:
        print("nothing to drop")
    elif not yes:
        print("nothing was changed; --yes drops it")


@app.command()
def compact(
    what: Annotated[Part, typer.Argument(help="What to keep small.")] = Part.ALL,
    config: ConfigOption = DEFAULT_PATH,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what pays, and change nothing.")
    ] = False,
) -> None:
    """Keep it small: check the topics' compaction, OPTIMIZE and VACUUM tables, merge segments.

    What lakehouse.keep promises stays: every cut of that time can be queried.
    """
    from deploy.commands.compact import compact_all

    for line in compact_all(load(config), what, dry_run=dry_run):
        print_line(line)


for command in (cuts, query, search, rebuild):
    app.command()(command)
app.add_typer(dead_letters, name="dead-letters")

if __name__ == "__main__":
    main()
