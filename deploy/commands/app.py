"""Words on a command line → the command's function, and the options that commands share.

A command's module is imported when the command is called, so neither the help nor another command
waits for its imports. Packages of an extra (Spark, the search client, Avro) are imported inside
functions, so that a command's own help and the daemon work without them.
"""

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from deploy.commands.ending import InterruptedCommandError

COMMANDS: Final = {
    "init": ("run", "Write a commented configuration file."),
    "check": ("deploy.check.command", "Check everything that a start would refuse."),
    "run": ("run", "Capture tables: read existing rows, then stream changes."),
    "snapshot": ("snapshot", "Read existing rows into the log, and end."),
    "new-epoch": ("run", "Let the log continue after a gap."),
    "jars": ("merge", "Fetch the jars that merges need from a Maven repository."),
    "merge": ("merge", "Apply the log to lakehouse tables, views and search indexes."),
    "status": ("status", "Show the state of all parts, and remedies for problems."),
    "runs": ("status", "List what the last merges and compactions did."),
    "wait": ("wait", "Wait until the sinks show an instant of the source."),
    "tail": ("deploy.reading.tail", "Show the log's changes as they come."),
    "drop": ("drop", "Remove the slot and the publication, and more if asked."),
    "compact": ("merge", "Keep topics, lakehouse and search indexes small."),
    "verify": ("verify", "Compare every derived table with the source at one instant."),
    "cuts": ("query", "List the instants of the source that you can query."),
    "query": ("query", "Query the lakehouse as it was at one instant."),
    "search": ("query", "Search an index, and show the best documents."),
    "views": ("deploy.views.command", "Check how views are kept, before they run."),
    "rebuild": ("merge", "Write lakehouse tables, search indexes or views again."),
    "ddl-trigger": ("ddl_trigger", "Print SQL for triggers that report DDL at once."),
    "dead-letters": ("dead_letters", "List, replay or discard what couldn't be written."),
}
"""Command → its module, here or by its full name, and its line in the help, in this order.

The function has the command's name, with _ for -.
"""
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="Read this configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@contextlib.contextmanager
def _interrupts_told() -> Iterator[None]:
    """Make an error of an interrupt, which Typer would silently turn into an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedCommandError from None


class _Commands(TyperGroup):
    """Knows the names of all commands, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, short_help=line) for name, (_, line) in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, _imported(name) if name in COMMANDS else command, rest

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _interrupts_told():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interrupts_told():
            return super().invoke(ctx)


def _imported(name: str) -> Any:
    where = COMMANDS[name][0]
    module = importlib.import_module(where if "." in where else f"deploy.commands.{where}")
    command = getattr(module, name.replace("-", "_"))
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
    else:
        parent.command(name)(command)
    return typer.main.get_group(parent).commands[name]


app = typer.Typer(
    name="millrace",
    cls=_Commands,
    help="Keep Delta tables and search indexes in step with a PostgreSQL database.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # takes longer than everything else

        print(f"millrace {version('millrace')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


@app.callback()
def _options(*, version: VersionOption = False) -> None: ...


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set. A second signal interrupts at once."""
    stop = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
