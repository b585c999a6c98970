"""``millrace tail``: the log's changes → one line each, as they come."""

import json as json_text
from typing import Annotated, Final, get_args

import typer

from cdc.errors import ConfigError
from cdc.reader.access import LogAccess
from cdc.reader.events import ChangeEvent, ChangeOperation
from cdc.reader.stream import ChangeStream
from cdc.records.dead_letters import DeadLetter
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, stop_on_signals
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_line, printable_line
from deploy.reading.lines import EventLines, Hiding

_OPERATIONS: Final = get_args(ChangeOperation)
_FIRST_PARTITION: Final = 0


def tail(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Show these tables (schema.table). Default: all.")
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Start at beginning, now, an LSN, or a time. Default: now; with --once, the"
            " beginning.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Show one row: 7, or id=7,line=2, or JSON.")
    ] = None,
    op: Annotated[
        str, typer.Option("--op", help="Show these operations: letters of c,r,u,d,t,p.")
    ] = ",".join(_OPERATIONS),
    once: Annotated[bool, typer.Option("--once", help="End where the log ends now.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one event or dead letter a line.")
    ] = False,
) -> None:
    """Show the log's changes as they come."""
    operations = {letter.strip() for letter in op.split(",")}
    if wrong := sorted(operations - set(_OPERATIONS)):
        raise ConfigError(
            f"unknown operation: {', '.join(wrong)}",
            where="--op",
            remedy=f"use one or more of {','.join(_OPERATIONS)}",
        )
    settings = load_to_connect(config)
    lines = EventLines(lambda table, column: _mask(settings, table, column))
    begin = start or ("beginning" if once else "now")
    with stop_on_signals() as stop:
        show = _print_dead_letter_as_json if json else _print_dead_letter
        access = LogAccess(settings, tables or None, stop, show)
        with ChangeStream(access, None, begin, once=once) as stream:
            for event in stream:
                line = lines.line(event)  # also for hidden events: the next line compares with it
                if event.operation not in operations or _is_copy(event) or not _is_of(event, key):
                    continue
                if json:
                    print_json(event.model_dump_json())
                else:
                    print_line(line)


def _is_copy(event: ChangeEvent) -> bool:
    """Whether it concerns the whole table, and the first partition has it, too."""
    is_of_table = event.operation in {"t", "p"} and event.position is not None
    return is_of_table and event.partition != _FIRST_PARTITION


def _is_of(event: ChangeEvent, key: str | None) -> bool:
    """Whether an event concerns the row with a key."""
    if key is None:
        return True
    members = {name: str(value) for name, value in (event.key or {}).items()}
    if key.startswith("{"):
        try:
            return bool(event.key) and json_text.loads(key) == event.key
        except ValueError:
            raise ConfigError("the key in braces isn't valid JSON", where="--key") from None
    named = ",".join(f"{name}={value}" for name, value in members.items())
    return key in {named, ",".join(members.values())} and bool(members)


def _mask(settings: Settings, table: str, column: str) -> Hiding:
    rule = settings.capture.column_modes.rule(table, column)
    if rule is None:
        return ""
    return "cut" if rule.kind == "truncate" else "masked"


def _print_dead_letter(letter: DeadLetter) -> None:
    reason = printable_line(letter.reason)
    print_line(f"{printable_line(letter.table)}: the log lacks a change: {reason}")


def _print_dead_letter_as_json(letter: DeadLetter) -> None:
    print_json(f'{{"dead_letter":{letter.model_dump_json()}}}')
