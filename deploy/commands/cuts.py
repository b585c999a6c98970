"""``millrace cuts`` and ``millrace query``: instants of the source, and its tables as of one."""

import csv
import json as json_text
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from cdc.errors import ConfigError
from cdc.settings import DEFAULT_PATH, LakehouseSettings, Settings, load
from deploy.commands.app import ConfigOption, JsonOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sinks.delta.cuts import Cut


class Form(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def cuts(
    config: ConfigOption = DEFAULT_PATH,
    *,
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="How many to list.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the instants of the source that the lakehouse's tables have stood at together."""
    listed = _cuts(load(config), newest)
    if json:
        print(json_text.dumps([cut.model_dump(mode="json") for cut in listed], indent=2))
        return
    shown = Table("run", "LSN", "committed (UTC)", "tables", "not there")
    for cut in listed:
        shown.add_row(
            str(cut.run),
            cut.where,
            cut.committed,
            str(len(cut.versions)),
            Text(", ".join(cut.missing)),
        )
    Console().print(shown)


def query(
    sql: Annotated[str, typer.Argument(help='"SELECT … FROM public.orders"')],
    config: ConfigOption = DEFAULT_PATH,
    *,
    at: Annotated[
        str, typer.Option("--at", help="latest, a run's number, an LSN, or a timestamp.")
    ] = "latest",
    form: Annotated[Form, typer.Option("--format", "-f", help="How to print rows.")] = Form.TABLE,
) -> None:
    """Query the lakehouse's tables, all as they were at one instant of the source."""
    from sinks.delta.cuts import cut_at
    from sinks.spark.session import open_session

    settings = load(config)
    cut = cut_at(_cuts(settings), at)
    print(f"as of {cut}", file=sys.stderr)
    spark = open_session(settings.spark, "millrace query")
    try:
        _print(_answer(settings, cut, sql), form)
    finally:
        spark.stop()


def _answer(settings: Settings, cut: "Cut", sql: str) -> "DataFrame":
    from sinks.changes.derived import derived_tables
    from sinks.delta.cuts import query as answer
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    lakehouse = _lakehouse(settings)
    spark = open_session(settings.spark)
    plan = lakehouse_plans(lakehouse.path, lambda: spark).last()
    sources = [table.source for table in plan.all_tables.values()] if plan else []
    return answer(spark, derived_tables(lakehouse, sources), cut, sql)


def _cuts(settings: Settings, newest: int | None = None) -> "list[Cut]":
    from sinks.delta.cuts import cuts as listed
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    plans = lakehouse_plans(_lakehouse(settings).path, lambda: open_session(settings.spark))
    return listed(plans, newest)


def _lakehouse(settings: Settings) -> LakehouseSettings:
    if settings.lakehouse is None:
        raise ConfigError(
            "there is no lakehouse",
            where="[lakehouse]",
            remedy='add a section [lakehouse] with path = "…"',
        )
    return settings.lakehouse


def _print(rows: "DataFrame", form: Form) -> None:
    """Row by row: an answer may be larger than the driver's memory, but for a table's widths."""
    lines: Iterator[Any] = rows.toLocalIterator()
    if form is Form.CSV:
        writer = csv.writer(sys.stdout)
        writer.writerow(rows.columns)
        writer.writerows(lines)
    elif form is Form.JSON:
        for line in lines:
            print(json_text.dumps(line.asDict(recursive=True), default=str, ensure_ascii=False))
    else:
        shown = Table(*(Column(Text(name)) for name in rows.columns))
        for line in lines:
            shown.add_row(*(Text("" if value is None else str(value)) for value in line))
        Console().print(shown)
