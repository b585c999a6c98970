"""``millrace views check``: [[views]] → how each is maintained, and why not better, beforehand."""

import json as json_text
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.lines import Lines, on_one_line
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_line, printable_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.views.check import ViewReport

views = typer.Typer(
    help="Check views: SELECTs over the lakehouse's tables, kept current at every cut.",
    no_args_is_help=True,
)


@views.callback()
def _options() -> None: ...


@views.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Check only these views.")] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    json: JsonOption = False,
) -> None:
    """Show how each view is kept, and the reason if it is evaluated whole.

    The command starts Spark, and changes nothing. Its exit code is 0, or that of the first view
    that can't be kept.
    """
    settings = load_to_connect(config)
    wanted = {view.name for view in settings.require_views(names or ())}
    reports = [report for report in _checked(settings) if report.name in wanted]
    if json:
        print_json(json_text.dumps([as_json(report) for report in reports], indent=2))
    else:
        for report in reports:
            print_line(Lines("\n".join(lines(report))))
    if codes := [report.error.exit_code for report in reports if report.error is not None]:
        raise typer.Exit(codes[0])


def _checked(settings: Settings) -> "Sequence[ViewReport]":
    from sinks.run.options import RunContext, RunOptions
    from sinks.spark.session import RECORDS_FEW, open_session
    from sinks.views.check import check_views

    @cache
    def started() -> "SparkSession":
        return open_session(settings.spark, "millrace views check")

    def session(_records: int = RECORDS_FEW, /) -> "SparkSession":
        return started()

    try:
        return check_views(RunContext(settings, session, _say, RunOptions()))
    finally:
        if started.cache_info().currsize:
            started().stop()


def _say(line: str) -> None:
    """Print a line in addition to the result."""
    print(printable_message(on_one_line(line)), file=sys.stderr)


def lines(report: "ViewReport") -> Iterator[str]:
    """Yield the report for people."""
    name = on_one_line(report.name)
    if report.error is not None:
        yield f"{name}: can't be kept current: {report.error}"
        return
    by_changes = report.way == "changes"
    yield (f"{name}: kept by its changes" if by_changes else f"{name}: evaluated whole at each run")
    parts = {
        "because": report.reasons,
        "reads": [", ".join(report.reads)] if report.reads else (),
        "identity of a row": [", ".join(report.keys) or "none: the view is a bag of rows"],
        "computed together": [", ".join(report.groups)] if report.groups else (),
        "read whole": report.read_whole,
        "implicit cast": report.casts,
        "made definite": report.made_definite,
    }
    for title, texts in parts.items():
        yield from (f"  {title}: {on_one_line(text)}" for text in texts)


def as_json(report: "ViewReport") -> dict[str, Any]:
    """Return the report for programs."""
    error = report.error
    shown = {field.name: getattr(report, field.name) for field in fields(report)}
    if error is not None:
        texts = {"what": error.what, "where": error.where, "remedy": error.remedy}
        shown["error"] = {**texts, "exit_code": error.exit_code}
    return shown
