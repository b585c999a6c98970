"""``millrace cuts``, ``query`` and ``search``: derived tables and indexes → rows for people."""

import csv
import json as json_text
import sys
from base64 import b64encode
from collections.abc import Iterator
from math import isfinite, isnan
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from cdc.settings import DEFAULT_PATH, Settings, load
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_rich

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sinks.run.plans import Plans

RowFormat = Literal["table", "csv", "json"]
_SHOWN_MAX: Final = 400


def cuts(
    config: ConfigOption = DEFAULT_PATH,
    *,
    newest: Annotated[
        int, typer.Option("--newest", "-n", min=1, help="List at most this many.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """List the newest instants of the source that you can query."""
    from deploy.status.views import with_views
    from sinks.delta.cuts import cuts as of_plans

    settings = load(config)
    listed = with_views(settings, of_plans(_plans(settings), newest))
    if json:
        print_json(json_text.dumps([cut.model_dump(mode="json") for cut in listed], indent=2))
        return
    has_views = bool(settings.views)
    names = ("run", "LSN", "committed (UTC)", "tables", *(["views"] * has_views), "missing")
    shown = Table(*names)
    for cut in listed:
        missing = Text(", ".join([*cut.missing, *(f"view {name}" for name in cut.missing_views)]))
        counts = [str(len(cut.versions)), *([str(len(cut.views))] * has_views)]
        shown.add_row(str(cut.run), cut.where, cut.committed, *counts, missing)
    print_rich(shown)


def query(
    sql: Annotated[str, typer.Argument(help='Run this SQL: "SELECT … FROM public.orders".')],
    config: ConfigOption = DEFAULT_PATH,
    *,
    at: Annotated[
        str,
        typer.Option("--at", help="Query as of latest, a run's number, an LSN, or a timestamp."),
    ] = "latest",
    form: Annotated[
        RowFormat, typer.Option("--format", "-f", help="Print rows in this format.")
    ] = "table",
) -> None:
    """Query the lakehouse's tables and views as they were at one instant of the source."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from deploy.status.views import with_views
    from sinks.changes.derived import derived_tables, derived_view
    from sinks.delta.cuts import cut_at
    from sinks.delta.query import query as answer
    from sinks.spark.errors import query_error
    from sinks.spark.session import ZONE, open_session

    settings = load(config)
    lakehouse, plans = settings.require_lakehouse(), _plans(settings)
    (cut,) = with_views(settings, [cut_at(plans, at)])
    print(f"as of {cut}", file=sys.stderr)
    spark = open_session(settings.spark, "millrace query")
    spark.conf.set(ZONE, settings.spark.get(ZONE, "UTC"))
    try:
        plan = plans.last()
        sources = [table.source for table in plan.all_tables.values()] if plan else []
        views = [derived_view(lakehouse, name) for name in (*cut.views, *cut.missing_views)]
        tables = derived_tables(lakehouse, sources) | {view.name: view for view in views}
        rows = answer(spark, tables, cut, sql)
        try:
            _print(rows, form)
        except (PySparkException, Py4JJavaError) as error:
            raise query_error("the query failed", error, where=str(cut)) from None
    finally:
        spark.stop()


def search(
    index: Annotated[
        str, typer.Argument(help="Search schema.table, or the joined documents of this name.")
    ],
    query: Annotated[
        str, typer.Argument(help='Find words, or use Lucene\'s syntax: "name:blue AND n:>3".')
    ],
    config: ConfigOption = DEFAULT_PATH,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, max=10_000, help="Show at most this many.")
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")] = False,
) -> None:
    """Search an index, and show the best documents."""
    from sinks.search.client import search as find

    answer = find(load_to_connect(config).require_search(), index, query, limit)
    if json:
        for hit in answer.hits:
            print_json(json_text.dumps(hit, ensure_ascii=False))
        return
    shown = Table("_id", "_score", "document", caption=f"{answer.total:,} found")
    for hit in answer.hits:
        score = hit["_score"]
        document = {name: value for name, value in hit.items() if not name.startswith("_")}
        text = json_text.dumps(document, ensure_ascii=False)
        short = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
        shown.add_row(Text(hit["_id"]), f"{score:.3g}" if score else "", Text(short))
    print_rich(shown)


def _plans(settings: Settings) -> "Plans":
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    return lakehouse_plans(settings.require_lakehouse().path, lambda: open_session(settings.spark))


def _print(rows: "DataFrame", form: RowFormat) -> None:
    """Print row by row, as a result may exceed the driver's memory. A table needs its widths."""
    lines: Iterator[Any] = rows.toLocalIterator()
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(rows.columns)
        writer.writerows(map(cell, line) for line in lines)
    elif form == "json":
        for line in lines:
            row = dict(zip(rows.columns, map(plain, line), strict=True))
            print_json(json_text.dumps(row, ensure_ascii=False, default=str))
    else:
        shown = Table(*(Column(Text(name)) for name in rows.columns))
        for line in lines:
            shown.add_row(*(Text(cell(value)) for value in line))
        print_rich(shown)


def cell(value: Any) -> str:
    """Return a value in CSV or in a table.

    Arrays, structs and maps are JSON, bytes PostgreSQL's.
    """
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return f"\\x{value.hex()}"
    if isinstance(value, bool | dict | list | tuple):
        return json_text.dumps(plain(value), ensure_ascii=False, default=str)
    return str(value)


def plain(value: Any) -> Any:
    """Return Spark's value for JSON: a struct is an object, bytes are base64, NaN is a word."""
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a Row, whose names may repeat
        return {name: plain(each) for name, each in zip(value.__fields__, value, strict=True)}
    if isinstance(value, dict):
        return {_name(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _name(key: Any) -> str:
    """Return a map's key as the name of a member."""
    named = plain(key)
    is_nested = isinstance(named, bool | dict | list)
    return json_text.dumps(named, ensure_ascii=False, default=str) if is_nested else str(named)
