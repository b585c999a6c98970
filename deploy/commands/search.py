"""``millrace search``: documents of an index; ``millrace rebuild``: a new index in its place."""

import json as json_text
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc.errors import ConfigError
from cdc.settings import DEFAULT_PATH, SearchSettings, Settings, load
from deploy.commands.app import ConfigOption, print_line
from deploy.commands.sink_status import all_aliases

_SHOWN_MAX = 400


class Rebuilt(StrEnum):
    """What can be made anew."""

    SEARCH = "search"


def search(
    index: Annotated[str, typer.Argument(help="schema.table, or the name of joined documents.")],
    query: Annotated[str, typer.Argument(help='Words, or Lucene\'s syntax: "name:blue AND n:>3".')],
    config: ConfigOption = DEFAULT_PATH,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, max=10_000, help="Hits.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, a document a line.")] = False,
) -> None:
    """Search an index, and show the best documents."""
    from sinks.search.client import search as find

    answer = find(search_settings(load(config)), index, query, limit)
    if json:
        for hit in answer.hits:
            print(json_text.dumps(hit, ensure_ascii=False))
        return
    shown = Table("_id", "_score", "document", caption=f"{answer.total:,} found")
    for hit in answer.hits:
        score = hit["_score"]
        document = {name: value for name, value in hit.items() if not name.startswith("_")}
        shown.add_row(Text(hit["_id"]), f"{score:.3g}" if score else "", Text(_short(document)))
    Console().print(shown)


def _short(document: dict[str, Any]) -> str:
    text = json_text.dumps(document, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def search_settings(settings: Settings) -> SearchSettings:
    """The section [search]; raises ConfigError where there is none."""
    if settings.search is None:
        raise ConfigError(
            "there is no search server",
            where="[search]",
            remedy='add a section [search] with url = "…"',
        )
    return settings.search


def rebuild(
    what: Annotated[Rebuilt, typer.Argument(help="What to make anew.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="schema.table, or names of joined documents. Default: all."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
) -> None:
    """Load a new index from the log, or of joined documents from the lakehouse, in place of one.

    The old one serves, and keeps up, until the new one is complete. What is interrupted goes on
    where it was, with the next rebuild or merge.
    """
    from sinks.job import Jobs
    from sinks.run.options import RunOptions

    settings = load(config)
    wanted = frozenset(names or all_aliases(settings))
    with Jobs(settings, what, RunOptions(rebuilt=wanted), lasting=True) as jobs:
        raise typer.Exit(jobs.run(print_line))
