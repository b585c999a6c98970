"""``millrace dead-letters``: changes that couldn't be written, and their outcome.

Only the daemon writes to the log. So an order is a logical message at the source, which the daemon
executes when the stream reaches it. Orders given while no daemon runs wait for the next one.
"""

import json as json_text
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Column, Table
from rich.text import Text

from cdc.dead_letters.row_bytes import row_of
from cdc.errors import ConfigError, NotDoneError
from cdc.log.following import read_dead_letters
from cdc.log.state import read_pieces
from cdc.postgres.connection import connect, query
from cdc.records.dead_letters import DeadLetter, DeadLetterOutcome
from cdc.records.orders import DEAD_LETTER_ORDERS, DeadLetterOrder
from cdc.records.topics import dead_letter_topic
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_line, print_rich
from deploy.status.sinks import all_aliases

_POLL_S: Final = 0.2
_WAIT_S: Final = 30.0
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)"

dead_letters = typer.Typer(
    help="List, replay or discard records that couldn't be written.",
    no_args_is_help=True,
)
Numbers = Annotated[list[int] | None, typer.Argument(help="Choose these dead letters, by number.")]
AllOption = Annotated[bool, typer.Option("--all", help="Choose every open one.")]
TableOption = Annotated[
    str | None, typer.Option("--table", help="Choose only those of this table.")
]


@dead_letters.command()
def search(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Choose schema.table, or joined documents by name. Default: all."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    replay: Annotated[
        bool, typer.Option("--replay", help="Write these documents again, from the current rows.")
    ] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Forget these documents.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")] = False,
) -> None:
    """List documents that the search server refused, with its reasons."""
    from sinks.search.client import connect as connect_search
    from sinks.search.dead_letters import DocumentDeadLetters

    settings = load_to_connect(config)
    chosen = _aliases(settings, names or [])
    if replay and discard:
        raise ConfigError("--replay and --discard exclude each other")
    if replay:
        from sinks.job import Jobs
        from sinks.run.options import RunOptions

        with Jobs(settings, "search", RunOptions(replayed=frozenset(chosen))) as jobs:
            raise typer.Exit(jobs.run(print_line))
    server = settings.require_search()
    client = connect_search(server)
    refusals = {
        name: DocumentDeadLetters(client, server.index_prefix, alias)
        for name, alias in chosen.items()
    }
    if discard:
        for of_index in refusals.values():
            of_index.forget()
        return
    refused = (
        (name, document) for name, of_index in refusals.items() for document in of_index.all()
    )
    if json:
        for name, document in refused:
            print_json(json_text.dumps({"name": name, **document}, ensure_ascii=False))
        return
    shown = Table("index of", "document", "time", "reason")
    for name, document in refused:
        row = (name, document["document"], _time(document["ts_ms"]), document["reason"])
        shown.add_row(*map(Text, row))
    print_rich(shown)


@dead_letters.command("list")
def list_dead_letters(
    config: ConfigOption = DEFAULT_PATH,
    *,
    table: TableOption = None,
    handled: Annotated[bool, typer.Option("--handled", help="Also list handled ones.")] = False,
    json: JsonOption = False,
) -> None:
    """List open dead letters."""
    listed = {
        number: dead_letter
        for number, dead_letter in _dead_letters(load_to_connect(config)).items()
        if (handled or dead_letter.outcome is None) and table in {None, dead_letter.table}
    }
    if json:
        rows = [
            {"number": number, **dead_letter.model_dump(mode="json")}
            for number, dead_letter in listed.items()
        ]
        print_json(json_text.dumps(rows, indent=2))
        return
    position = Column("position", overflow="fold")
    shown = Table("number", "table", "op", position, "time", "reason")
    for number, dead_letter in listed.items():
        outcome = dead_letter.outcome
        reason = f"{outcome}: {dead_letter.reason}" if outcome else dead_letter.reason
        time_text, position_text = _time(dead_letter.ts_ms), str(dead_letter.position)
        row = (dead_letter.table, dead_letter.op, position_text, time_text, reason)
        shown.add_row(str(number), *map(Text, row))
    print_rich(shown)


@dead_letters.command()
def show(
    number: Annotated[int, typer.Argument(help="Show the dead letter with this number.")],
    config: ConfigOption = DEFAULT_PATH,
) -> None:
    """Show everything that a dead letter holds, as JSON."""
    settings = load_to_connect(config)
    dead_letter = _chosen(_dead_letters(settings), [number], table=None, every=False)[number]
    shown: dict[str, Any] = {"number": number, **dead_letter.model_dump(mode="json")}
    if dead_letter.outcome is None:
        topic = dead_letter_topic(settings.capture.topic_prefix)
        shown |= _contents(dead_letter, read_pieces(settings.kafka, topic, dead_letter))
    print_json(json_text.dumps(shown, indent=2, ensure_ascii=False))


@dead_letters.command()
def replay(
    numbers: Numbers = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    every: AllOption = False,
    table: TableOption = None,
) -> None:
    """Send the rows again: as they are now if they have a key, or else as they were."""
    _order(load_to_connect(config), numbers or [], table, "replayed", every=every)


@dead_letters.command()
def discard(
    numbers: Numbers = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    every: AllOption = False,
    table: TableOption = None,
) -> None:
    """Give dead letters up. The log removes what they hold after log.keep."""
    _order(load_to_connect(config), numbers or [], table, "discarded", every=every)


def _dead_letters(settings: Settings) -> dict[int, DeadLetter]:
    return read_dead_letters(settings.kafka, dead_letter_topic(settings.capture.topic_prefix))


def _chosen(
    existing: Mapping[int, DeadLetter], numbers: Collection[int], table: str | None, *, every: bool
) -> dict[int, DeadLetter]:
    """Return the named ones. Raise ConfigError for a number that doesn't exist."""
    missing = sorted(set(numbers) - existing.keys())
    if missing or not (numbers or every or table):
        what = f"dead letter {missing[0]} doesn't exist" if missing else "no dead letter is chosen"
        remedy = "millrace dead-letters list shows the numbers; --all and --table choose several"
        raise ConfigError(what, remedy=remedy)
    return {
        number: dead_letter
        for number, dead_letter in existing.items()
        if number in numbers or (not numbers and table in {None, dead_letter.table})
    }


def _order(
    settings: Settings,
    numbers: list[int],
    table: str | None,
    outcome: DeadLetterOutcome,
    *,
    every: bool,
) -> None:
    """Send the orders to the daemon, and wait until it has executed them."""
    settings.require_own_capture("dead-letters")
    at_first = _dead_letters(settings)
    chosen = _chosen(at_first, numbers, table, every=every)
    wanted = {
        number: dead_letter for number, dead_letter in chosen.items() if dead_letter.outcome is None
    }
    if not wanted:
        dealt_with = "they are already handled" if chosen else "there are no dead letters"
        print_line(f"nothing to do: {dealt_with}")
        return
    with connect(settings.source, purpose="dead-letters") as connection:
        for number, dead_letter in wanted.items():
            order = DeadLetterOrder(outcome=outcome, number=number, id=dead_letter.id)
            query(connection, _EMIT, [DEAD_LETTER_ORDERS, order.model_dump_json()])
    deadline = time.monotonic() + _WAIT_S
    remaining, now = wanted, at_first
    while remaining and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _dead_letters(settings)
        open_before = len(remaining)
        remaining = {n: wanted[n] for n in remaining if now[n].outcome is None}
        if len(remaining) < open_before:
            deadline = time.monotonic() + _WAIT_S
    print_line(f"{outcome}: {len(wanted) - len(remaining)}")
    tables = {dead_letter.table for dead_letter in wanted.values()}
    new = [
        number
        for number, dead_letter in now.items()
        if number not in at_first and dead_letter.table in tables
    ]
    if new:
        print_line(f"new dead letters of the same tables: {', '.join(map(str, new))}")
    if remaining:
        raise NotDoneError(
            f"not done after {_WAIT_S:.0f} s: {', '.join(map(str, remaining))}",
            remedy="start the daemon: it then carries out the order; if it runs, its log says what"
            " stops it",
        )


def _contents(dead_letter: DeadLetter, pieces: bytes) -> dict[str, Any]:
    """Return the key and the rows of a dead letter, as text."""
    return {
        name: _text(content)
        if name == "key"
        else {
            column: _text(value) if isinstance(value, bytes) else value
            for column, value in zip(dead_letter.columns, row_of(content), strict=True)
            if value is None or isinstance(value, bytes)
        }
        for name, content in dead_letter.contents(pieces).items()
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _time(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1_000, UTC).isoformat(" ", "seconds")


def _aliases(settings: Settings, names: Collection[str]) -> dict[str, str]:
    """Return the aliases of these indexes, by their names. Without names: all."""
    aliases = all_aliases(settings)
    if strange := sorted(set(names) - aliases.keys()):
        raise ConfigError(
            f"unknown index: {', '.join(strange)}",
            remedy=f"the indexes are: {', '.join(sorted(aliases))}",
        )
    return {name: alias for name, alias in aliases.items() if not names or name in names}
