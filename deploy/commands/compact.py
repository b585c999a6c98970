"""``millrace compact``: configuration → a smaller log, lakehouse and search index, line by line."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.settings import DEFAULT_PATH, SearchSettings, Settings, load
from compaction.topics import examine
from deploy.commands.app import ConfigOption, print_line
from deploy.commands.sink_status import keyed_tables, table_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CompactTarget(StrEnum):
    """What compaction is for."""

    TOPICS = "topics"
    LAKEHOUSE = "lakehouse"
    SEARCH = "search"
    ALL = "all"


def compact(
    what: Annotated[CompactTarget, typer.Argument(help="What to keep small.")] = CompactTarget.ALL,
    config: ConfigOption = DEFAULT_PATH,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what pays, and change nothing.")
    ] = False,
) -> None:
    """Keep it small: check the topics' compaction, OPTIMIZE and VACUUM tables, merge segments.

    What lakehouse.keep promises stays: every cut of that time can be queried.
    """
    for line in compact_all(load(config), what, dry_run=dry_run):
        print_line(line)


def compact_all(settings: Settings, what: str, *, dry_run: bool) -> Iterator[str]:
    """Check the topics' compaction, then compact tables and indexes; one line for each.

    ``what`` is topics, lakehouse, search or all.
    """
    if what in {"topics", "all"}:
        yield from _topics(settings)
    if what in {"lakehouse", "all"} and settings.lakehouse is not None:
        yield from _lakehouse(settings, dry_run=dry_run)
    if what in {"search", "all"} and settings.search is not None:
        yield from _search(settings, settings.search, dry_run=dry_run)


def _topics(settings: Settings) -> Iterator[str]:
    for report in examine(settings, table_states(settings)):
        verdict = "; ".join(report.findings) or "as promised"
        yield f"topic {report.name}: {report.policy}, {report.offsets:,} offsets, {verdict}"


def _search(settings: Settings, search: SearchSettings, *, dry_run: bool) -> Iterator[str]:
    from compaction.indexes import compact

    for index in compact(search, keyed_tables(settings), dry_run=dry_run):
        yield f"index {index}"


def _lakehouse(settings: Settings, *, dry_run: bool) -> Iterator[str]:
    from compaction.lakehouse import compact_lakehouse
    from sinks.spark.session import open_session

    opened: list[SparkSession] = []

    def session() -> "SparkSession":
        if not opened:
            opened.append(open_session(settings.spark))
        return opened[0]

    try:
        for table in compact_lakehouse(settings, session, dry_run=dry_run):
            yield f"table {table}"
    finally:
        for spark in opened:
            spark.stop()
