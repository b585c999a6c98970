"""``millrace search``: a look into an index; ``millrace rebuild``: a new one in its place.

And ``millrace dead-letters search``: the documents that the server refused.
"""

import json as json_text
from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc.errors import ConfigError
from cdc.settings import DEFAULT_PATH, SearchSettings, Settings, load
from deploy.commands.sink_status import all_aliases

_SHOWN_MAX = 400
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]


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
        raise typer.Exit(jobs.run(partial(print, flush=True)))


def refused(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="schema.table, or names of joined documents. Default: all."),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    replay: Annotated[
        bool, typer.Option("--replay", help="Make these documents again, from the rows as of now.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Forget that they are missing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, a letter a line.")] = False,
) -> None:
    """List documents that the search server refused, with its reasons."""
    from sinks.search.client import connect
    from sinks.search.dead_letters import Letters

    settings = load(config)
    chosen = _chosen(settings, names or [])
    if replay and discard:
        raise ConfigError("--replay and --discard exclude each other")
    if replay:
        from sinks.job import Jobs
        from sinks.run.options import RunOptions

        with Jobs(settings, "search", RunOptions(replayed=frozenset(chosen))) as jobs:
            raise typer.Exit(jobs.run(partial(print, flush=True)))
    search = _settings(settings)
    client = connect(search)
    letters = {name: Letters(client, search.index_prefix, alias) for name, alias in chosen.items()}
    if discard:
        for one in letters.values():
            one.forget()
        return
    found = ((name, letter) for name, one in letters.items() for letter in one.all())
    if json:
        for name, letter in found:
            print(json_text.dumps({"name": name, **letter}, ensure_ascii=False))
        return
    shown = Table("index of", "document", "time", "reason")
    for name, letter in found:
        at = datetime.fromtimestamp(letter["ts_ms"] / 1_000, UTC).isoformat(" ", "seconds")
        shown.add_row(*map(Text, (name, letter["document"], at, letter["reason"])))
    Console().print(shown)


def _chosen(settings: Settings, names: Collection[str]) -> dict[str, str]:
    """The aliases of these indexes, by their names; none named: of all."""
    _settings(settings)
    known = all_aliases(settings)
    if strange := sorted(set(names) - known.keys()):
        raise ConfigError(
            f"there is no index {', '.join(strange)}",
            remedy=f"there are: {', '.join(sorted(known))}",
        )
    return {name: alias for name, alias in known.items() if not names or name in names}
