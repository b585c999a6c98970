"""``millrace search``: a look into an index; ``millrace rebuild``: a new one in its place."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc.errors import ConfigError
from cdc.settings import DEFAULT_PATH, SearchSettings, Settings, load

_SHOWN_MAX = 400


def search(
    index: Annotated[str, typer.Argument(help="schema.table, or the name of joined documents.")],
    query: Annotated[str, typer.Argument(help='Words, or Lucene\'s syntax: "name:blue AND n:>3".')],
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration file.")
    ] = DEFAULT_PATH,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, max=10_000, help="Hits.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, a document a line.")] = False,
) -> None:
    """Search an index, and show the best documents."""
    from sinks.search.query import search as find

    found = find(_settings(load(config)), index, query, limit)
    if json:
        for hit in found.hits:
            print(json_text.dumps(hit, ensure_ascii=False))
        return
    shown = Table("_id", "_score", "document", caption=f"{found.total:,} found")
    for hit in found.hits:
        score = hit["_score"]
        document = {name: value for name, value in hit.items() if not name.startswith("_")}
        shown.add_row(Text(hit["_id"]), f"{score:.3g}" if score else "", Text(_short(document)))
    Console().print(shown)


def _short(document: dict[str, Any]) -> str:
    text = json_text.dumps(document, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _settings(settings: Settings) -> SearchSettings:
    if settings.search is None:
        raise ConfigError(
            "there is no search server",
            where="[search]",
            remedy='add a section [search] with url = "…"',
        )
    return settings.search
