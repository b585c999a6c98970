"""Words on a command line → the command's function, and the options that commands share.

A command's module is imported when the command is called: no command waits for what another needs.
What comes with an extra (Spark, the search client, Avro) is imported inside functions, so that help
and the daemon work without it.
"""

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Final = {
    "init": "init",
    "run": "run",
    "snapshot": "snapshot",
    "new-epoch": "run",
    "merge": "merge",
    "status": "status",
    "drop": "drop",
    "compact": "compact",
    "cuts": "cuts",
    "query": "cuts",
    "search": "search",
    "rebuild": "search",
    "dead-letters": "dead_letters",
}
"""Command → its module in this package, in the order of the help.

The function has the command's name, with _ for -. Two commands share a module where they differ in
the last step only: both open a daemon, list the cuts, or need the search indexes.
"""
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class _Commands(TyperGroup):
    """Knows the names of all commands, and imports a command that is called or listed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _imported(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)


def _imported(name: str) -> Any:
    module = importlib.import_module(f"deploy.commands.{COMMANDS[name]}")
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
    help="Turn a PostgreSQL database into derived tables that are always right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"millrace {installed_version('millrace')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


@app.callback()
def _options(*, version: VersionOption = False) -> None: ...


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


def print_line(line: str) -> None:
    """Print one line at once, also into cron's mail."""
    print(line, flush=True)
