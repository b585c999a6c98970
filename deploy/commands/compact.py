"""Configuration → a smaller log, lakehouse and search index, line by line: ``millrace compact``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdc.log.state import read_all
from cdc.records.state import TableState
from cdc.records.topics import table_topic
from cdc.settings import SearchSettings, Settings
from compaction.topics import examine
from deploy.commands.sink_status import keyed_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact_all(settings: Settings, part: str, *, dry_run: bool) -> Iterator[str]:
    """Check the topics' compaction, then compact tables and indexes; one line for each.

    ``part`` is topics, lakehouse, search or all.
    """
    if part in {"topics", "all"}:
        yield from _topics(settings)
    if part in {"lakehouse", "all"} and settings.lakehouse is not None:
        yield from _lakehouse(settings, dry_run=dry_run)
    if part in {"search", "all"} and settings.search is not None:
        yield from _search(settings, settings.search, dry_run=dry_run)


def _topics(settings: Settings) -> Iterator[str]:
    for report in examine(settings, _states(settings)):
        verdict = "; ".join(report.findings) or "as promised"
        yield f"topic {report.name}: {report.policy}, {report.offsets:,} offsets, {verdict}"


def _states(settings: Settings) -> list[TableState]:
    return read_all(settings.kafka, table_topic(settings.capture.topic_prefix), TableState)


def _search(settings: Settings, search: SearchSettings, *, dry_run: bool) -> Iterator[str]:
    from compaction.indexes import compact

    for one in compact(search, keyed_tables(settings), dry_run=dry_run):
        yield f"index {one}"


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
