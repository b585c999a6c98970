"""``millrace dead-letters``: what couldn't be written, and what is to become of it.

Only the daemon writes to the log. So an order is a logical message at the source, which the daemon
follows where it meets it; what is asked for while none runs is done when one does.
"""

import json as json_text
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from cdc.errors import ConfigError, NotDoneError
from cdc.records.dead_letters import ORDERS, DeadLetter, DeadLetterOutcome, Order
from cdc.records.topics import dead_letter_topic
from cdc.settings import DEFAULT_PATH, Settings, load
from deploy.commands.search import refused

_POLL_S: Final = 0.2
_WAIT_S: Final = 30.0
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)"

app = typer.Typer(
    help="Records that couldn't be written: look at them, send them again, or let them go.",
    no_args_is_help=True,
)
app.command("search")(refused)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Numbers = Annotated[list[int] | None, typer.Argument(help="Their numbers.")]
AllOption = Annotated[bool, typer.Option("--all", help="All that nobody has dealt with.")]
TableOption = Annotated[str | None, typer.Option("--table", help="Those of this table only.")]


@app.command("list")
def list_letters(
    config: ConfigOption = DEFAULT_PATH,
    *,
    table: TableOption = None,
    handled: Annotated[bool, typer.Option("--handled", help="Those dealt with, too.")] = False,
    json: JsonOption = False,
) -> None:
    """List what nobody has dealt with."""
    found = {
        number: letter
        for number, letter in _letters(load(config)).items()
        if (handled or letter.outcome is None) and table in {None, letter.table}
    }
    if json:
        rows = [{"number": n, **letter.model_dump(mode="json")} for n, letter in found.items()]
        print(json_text.dumps(rows, indent=2))
        return
    whole = Column("position", overflow="fold")
    shown = Table("number", "table", "op", whole, "time", "reason")
    for number, letter in found.items():
        reason = f"{letter.outcome}: {letter.reason}" if letter.outcome else letter.reason
        place = str(letter.position)
        row = (letter.table, letter.op, place, _time(letter.ts_ms), reason)
        shown.add_row(str(number), *map(Text, row))
    Console().print(shown)


@app.command()
def show(
    number: Annotated[int, typer.Argument(help="Its number.")], config: ConfigOption = DEFAULT_PATH
) -> None:
    """Show one with all that it holds, as JSON."""
    from cdc.log.state import read_pieces

    settings = load(config)
    letter = _chosen(_letters(settings), [number], table=None, every=False)[number]
    shown: dict[str, Any] = {"number": number, **letter.model_dump(mode="json")}
    if letter.outcome is None:
        topic = dead_letter_topic(settings.capture.topic_prefix)
        shown |= _held(letter, read_pieces(settings.kafka, topic, letter))
    print(json_text.dumps(shown, indent=2, ensure_ascii=False))


@app.command()
def replay(
    numbers: Numbers = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    every: AllOption = False,
    table: TableOption = None,
) -> None:
    """Send the rows again: as they are now if they have a key, otherwise as they were."""
    _order(load(config), numbers or [], table, "replayed", every=every)


@app.command()
def discard(
    numbers: Numbers = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    every: AllOption = False,
    table: TableOption = None,
) -> None:
    """Let them go: what they hold is removed when log.keep is over."""
    _order(load(config), numbers or [], table, "discarded", every=every)


def _letters(settings: Settings) -> dict[int, DeadLetter]:
    from cdc.log.state import read_letters

    return read_letters(settings.kafka, dead_letter_topic(settings.capture.topic_prefix))


def _chosen(
    letters: Mapping[int, DeadLetter], numbers: Collection[int], table: str | None, *, every: bool
) -> dict[int, DeadLetter]:
    """Those that were named; raises ConfigError for a number that there isn't."""
    missing = sorted(set(numbers) - letters.keys())
    if missing or not (numbers or every or table):
        what = f"there is no dead letter {missing[0]}" if missing else "no dead letter is named"
        remedy = "millrace dead-letters list shows the numbers; --all and --table take several"
        raise ConfigError(what, remedy=remedy)
    return {
        number: letter
        for number, letter in letters.items()
        if number in numbers or (not numbers and table in {None, letter.table})
    }


def _order(
    settings: Settings,
    numbers: list[int],
    table: str | None,
    outcome: DeadLetterOutcome,
    *,
    every: bool,
) -> None:
    """Tell the daemon, and wait until it has done so."""
    from cdc.postgres.connection import connect, query

    letters = _letters(settings)
    chosen = _chosen(letters, numbers, table, every=every)
    wanted = {number: letter for number, letter in chosen.items() if letter.outcome is None}
    if not wanted:
        dealt_with = "they were dealt with" if chosen else "there are no dead letters"
        print(f"nothing to do: {dealt_with}")
        return
    with connect(settings.source, purpose="dead-letters") as connection:
        for number, letter in wanted.items():
            order = Order(outcome=outcome, number=number, id=letter.id)
            query(connection, _EMIT, [ORDERS, order.model_dump_json()])
    deadline = time.monotonic() + _WAIT_S
    left, now = wanted, letters
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _letters(settings)
        before, left = left, {n: one for n, one in left.items() if now[n].outcome is None}
        if len(left) < len(before):
            deadline = time.monotonic() + _WAIT_S
    print(f"{outcome}: {len(wanted) - len(left)}")
    tables = {letter.table for letter in wanted.values()}
    new = [n for n, one in now.items() if n not in letters and one.table in tables]
    if new:
        print(f"new letters of the same tables: {', '.join(map(str, new))}")
    if left:
        raise NotDoneError(
            f"not done after {_WAIT_S:.0f} s: {', '.join(map(str, left))}",
            remedy="start the daemon, which follows the order when it comes to it; if it runs, its "
            "log says why it can't",
        )


def _held(letter: DeadLetter, held: bytes) -> dict[str, Any]:
    """What a letter holds, as text as far as it is text."""
    from cdc.dead_letters.letters import row_of

    shown: dict[str, Any] = {}
    for name, part in letter.contents(held).items():
        if name == "key":
            shown[name] = _text(part)
        else:
            row = zip(letter.columns, row_of(part), strict=True)
            shown[name] = {
                column: _text(value) if isinstance(value, bytes) else value
                for column, value in row
                if value is None or isinstance(value, bytes)
            }
    return shown


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _time(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1_000, UTC).isoformat(" ", "seconds")
