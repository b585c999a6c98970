"""Foreign text (names, values, reasons) → text that can't harm a terminal or a log.

A control character moves a cursor, erases lines or answers in the user's name. A newline begins a
line that looks like ours. A direction mark shows a name as another one.
"""

import contextlib
import os
import re
import sys
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from cdc.lines import on_one_line

_MARKS: Final = "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_CONTROLS: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_MARKS}]")
_LINES: Final = re.compile(r"[\t\n]")
_NEW_LINE: Final = re.compile(r"\n(?!  )")
"""Our own continuation lines are indented."""


def printable(text: str) -> str:
    """Return the text with control characters escaped as in JSON. Line breaks stay."""
    return _CONTROLS.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Return the same on one line."""
    return _LINES.sub(_escaped, printable(text))


def printable_message(text: str) -> str:
    """Return the same for an error: none of its lines can look like the begin of ours."""
    return _NEW_LINE.sub(_escaped, printable(text))


def print_line(line: str) -> None:
    """Print a line at once, also into cron's mail, together with its indented lines.

    A failure ends no run: the line is lost, and the next one is tried again.
    """
    try:
        print(printable_message(on_one_line(line)), flush=True)
    except OSError:
        _lose_output()


def _lose_output() -> None:
    """Empty the stream's buffer, which would write lost output again at the command's end."""
    with contextlib.suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        try:
            sys.stdout.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(nowhere)


def print_json(text: str) -> None:
    """Print JSON. A terminal may take characters that JSON permits for a command."""
    print(printable(text))


def print_rich(renderable: RenderableType) -> None:
    """Print more than text, in rich's layout."""
    console = Console()
    segments = printable_segments(console, renderable)
    console.print(Segments(segments), end="", soft_wrap=True)  # escaped, a name is longer


def printable_segments(console: Console, renderable: RenderableType) -> list[Segment]:
    """Return the same for a console that prints it later."""
    return [
        segment if segment.control else Segment(printable(segment.text), segment.style)
        for segment in console.render(renderable)
    ]


def printable_values(_logger: Any, _method: str, values: Any) -> Any:
    """Escape a log line's values (a processor of structlog)."""
    return {name: _cleaned(value) for name, value in values.items()}


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return printable_line(value)
        case dict():
            return {_cleaned(key): _cleaned(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_cleaned(each) for each in value]
        case _:
            return value


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
