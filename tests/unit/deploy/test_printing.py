"""Foreign text of any kind → lines that begin and end like ours."""

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from deploy.commands.console import configure_logging
from deploy.commands.printing import (
    print_json,
    print_line,
    print_rich,
    printable_line,
    printable_message,
)

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "a\x1b[2Jb\x9b1mc\rd\u202ee"


def printed(act: Callable[[], object]) -> str:
    written = io.StringIO()
    with redirect_stdout(written):
        act()
    return written.getvalue()


@given(st.text())
def test_a_line_is_one_and_has_no_control_character(text: str) -> None:
    shown = printable_line(text)
    assert not CONTROL.search(shown)
    assert "\n" not in shown
    assert (
        shown == text
        or CONTROL.search(text)
        or set(text) & set("\t\n\u061c\u200e\u200f\u2028\u2029")
    )


def test_a_message_goes_on_where_it_is_indented_alone() -> None:
    message = "table a\nmillrace: all is well\n  → do this"
    assert printable_message(message) == "table a\\u000amillrace: all is well\n  → do this"


def test_lines_json_and_tables_are_printed_without_control_characters() -> None:
    def table() -> None:
        made = Table("name")
        made.add_row(Text(HOSTILE))
        print_rich(made)

    document = json.dumps({"name": HOSTILE}, ensure_ascii=False)
    for act in (lambda: print_line(HOSTILE), lambda: print_json(document), table):
        shown = printed(act)
        assert not CONTROL.search(shown)
        assert "\\u001b[2J" in shown
    assert json.loads(printed(lambda: print_json(document))) == {"name": HOSTILE}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_name_makes_no_line_of_the_log(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    configure_logging(json=as_json)
    try:
        name = f"{HOSTILE}\n2026-01-01T00:00:00Z [info] all is well"
        structlog.get_logger().warning("told", table=name, tables=[name], by={name: 1})
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert not CONTROL.search(written)
    assert len(written.splitlines()) == 1
