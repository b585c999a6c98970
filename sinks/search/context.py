"""What a run of the search sink has at hand: where documents come from, and where they go to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import OpenSearch

from cdc.settings import SearchSettings, Settings
from sinks.run.options import Report, RunOptions
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.indexes import TableIndex
from sinks.search.progress import Ledger
from sinks.spark.session import SparkProvider


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The configuration, the server, the progress there, Spark, and what the user asks for."""

    settings: Settings
    search: SearchSettings
    client: OpenSearch
    ledger: Ledger
    session: SparkProvider
    report: Report
    options: RunOptions

    def publish(self, target: TableIndex, index: str, settings: Mapping[str, Any]) -> None:
        """Let a loaded index serve; dead letters about the ones before it go with them."""
        target.publish(index, settings)
        DocumentDeadLetters(self.client, self.search.index_prefix, target.alias).forget(
            but_of=index
        )
