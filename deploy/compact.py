"""Configuration → a smaller log, lakehouse and search index, line by line: ``millrace compact``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdc.kafka.state import read_all
from cdc.records.state import TableState
from cdc.records.topics import table_topic
from cdc.settings import Settings
from compaction.topics import examine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact_all(settings: Settings) -> Iterator[str]:
    """Check the topics' compaction, then compact tables and indexes; one line for each."""
    states = read_all(settings.kafka, table_topic(settings.capture.topic_prefix), TableState)
    for report in examine(settings, states):
        verdict = "; ".join(report.findings) or "as promised"
        yield f"topic {report.name}: {report.policy}, {report.offsets:,} offsets, {verdict}"
    if settings.lakehouse is not None:
        yield from _lakehouse(settings)
    if settings.search is not None:
        from compaction.indexes import compact

        names = [state.name for state in states if state.cleanup == "compact"]
        for merge in compact(settings.search, names):
            yield (
                f"index {merge.index}: {merge.after.documents:,} documents, "
                f"{merge.before.deleted:,} deleted ones before, {merge.after.deleted:,} after"
            )


def _lakehouse(settings: Settings) -> Iterator[str]:
    from compaction.lakehouse import compact_lakehouse
    from sinks.session import open_session

    opened: list[SparkSession] = []

    def session() -> "SparkSession":
        if not opened:
            opened.append(open_session(settings.spark))
        return opened[0]

    try:
        for table in compact_lakehouse(settings, session):
            yield f"table {table}"
    finally:
        for spark in opened:
            spark.stop()
