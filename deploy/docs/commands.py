"""The command line's own help → docs/reference/commands.md.

Write it with `python -m deploy.docs.commands`.

tests/unit/deploy/docs/test_commands_page.py compares the page with the help.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from deploy.commands.app import COMMANDS, app

PAGE: Final = Path(__file__).parents[2] / "docs/reference/commands.md"
GUIDES: Final = {
    "init": ("Configuration", "configuration.md"),
    "check": ("Check before the start", "../guides/check.md"),
    "run": ("The daemon", "../guides/operations.md#the-daemon"),
    "snapshot": ("Snapshots", "../guides/snapshot.md"),
    "new-epoch": ("Continue after a gap", "../guides/operations.md#continue-after-a-gap"),
    "jars": ("Jars of Spark", "../guides/install.md#jars-of-spark"),
    "merge": ("The merge jobs", "../guides/operations.md#the-merge-jobs"),
    "status": ("Check all parts", "../guides/is-it-working.md#check-all-parts"),
    "runs": ("List the last runs", "../guides/is-it-working.md#list-the-last-runs"),
    "wait": ("Wait for your own writes", "../guides/is-it-working.md#wait-for-your-own-writes"),
    "tail": ("Watch the log", "../guides/reader.md#watch-the-log"),
    "drop": ("Stop permanently", "../guides/operations.md#stop-permanently"),
    "compact": ("Keep tables small", "lakehouse.md#keep-tables-small"),
    "verify": ("Prove that your tables are right", "../guides/verify.md"),
    "cuts": (
        "Query every table at one instant",
        "lakehouse.md#query-every-table-at-one-instant",
    ),
    "query": (
        "Query every table at one instant",
        "lakehouse.md#query-every-table-at-one-instant",
    ),
    "search": ("Search from the command line", "search.md#search-from-the-command-line"),
    "views": ("Check views", "../guides/views.md#check-views"),
    "rebuild": ("Rebuild a table", "lakehouse.md#rebuild-a-table"),
    "ddl-trigger": (
        "Check by an event trigger",
        "../explanation/unseen-changes.md#check-by-an-event-trigger",
    ),
    "dead-letters": ("Dead letters", "../guides/dead-letters.md"),
}
"""Command → title and place of the page that says when to use it."""
_INTRODUCTION: Final = """\
# Commands

This page has the texts of `millrace COMMAND --help`. [Errors and exit codes](errors.md) lists the
exit codes. [How a command ends](../guides/operations.md#how-a-command-ends) describes signals.
"""
_WIDTH_MAX: Final = 100_000
"""A width at which no line of the help is wrapped."""
_COLUMNS: Final = 120
_CODE: Final = re.compile(
    r"(?<![\w`])(--\w[\w-]*|MILLRACE_\w+|(?:log|lakehouse|snapshot)\.\w[\w.]*\w)"
)
_EXTRA: Final = re.compile(r"\s*\[([^\]]*)\]$")
"""The help's additions to an option's text: its default, bounds, variable."""


def page() -> str:
    """Return the whole page."""
    rows = "\n".join(f"| [`{name}`](#{name}) | {line} |" for name, (_, line) in COMMANDS.items())
    listed = f"| command | effect |\n| --- | --- |\n{rows}\n"
    return "\n".join(
        [_INTRODUCTION, listed, *(text for name in COMMANDS for text in _command(name))]
    )


def _command(*words: str) -> Iterator[str]:
    """Yield a command's section, and those of its subcommands."""
    sections = _sections(*words)
    usage, text = sections.pop("Usage")
    yield f"{'#' * (len(words) + 1)} {' '.join(words)}\n"
    yield f"```text\n{usage}\n```\n"
    yield _paragraphs(text)
    if len(words) == 1:
        title, place = GUIDES[words[0]]
        yield f"Guide: [{title}]({place}).\n"
    commands = sections.pop("Commands", ("", ""))[1]
    if not commands:
        for name, (_, lines) in sections.items():
            yield _table(name, lines)
    for line in commands.splitlines():
        yield from _command(*words, line.split()[0])


def _sections(*words: str) -> dict[str, tuple[str, str]]:
    """Return heading of the help → the text next to it, and below it."""
    shown = CliRunner().invoke(
        app, [*words, "--help"], catch_exceptions=False, terminal_width=_WIDTH_MAX
    )
    parts = re.split(
        r"^(Usage|Arguments|Options|Commands): *(.*)\n", shown.output, flags=re.MULTILINE
    )
    return {
        heading: (beside, "\n".join(map(str.strip, _joined(below).splitlines())))
        for heading, beside, below in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def _joined(text: str) -> str:
    """Join a long name with its text, which is in the next line, far to the right."""
    return re.sub(r"\n {20,}", "  ", text.strip("\n"))


def _table(heading: str, lines: str) -> str:
    """Return the table of arguments, or of options without --help."""
    rows = [re.split(r" {2,}", line, maxsplit=1) for line in lines.splitlines()]
    cells = [f"| {_names(names)} | {_meaning(text)} |" for names, text in rows if names != "--help"]
    titles = f"| {heading.lower().removesuffix('s')} | meaning |\n| --- | --- |\n"
    return titles + "\n".join(cells) + "\n" if cells else ""


def _names(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def _meaning(text: str) -> str:
    """Return the option's effect, with its default, bounds and variable as sentences."""
    extra = _EXTRA.search(text)
    sentences = [_marked(_EXTRA.sub("", text))]
    for part in extra[1].split("; ") if extra else ():
        name, _, value = part.partition(": ")
        if value:
            sentences.append(f"{'Variable' if name == 'env var' else 'Default'}: `{value}`.")
        elif part == "required":
            sentences.append("Required.")
        else:
            sentences.append(f"`{part}`.")
    return " ".join(sentences).replace("|", r"\|")


def _paragraphs(text: str) -> str:
    wrapped = (textwrap.wrap(_marked(line), _COLUMNS) for line in text.splitlines())
    return "\n".join("\n".join(lines) for lines in wrapped) + "\n"


def _marked(text: str) -> str:
    """Mark options, variables and keys as code, and another page as a link."""
    text = text.replace("docs/reference/errors.md", "[Errors and exit codes](errors.md)")
    return _CODE.sub(r"`\1`", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
