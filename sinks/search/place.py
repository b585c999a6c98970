"""What a run of the search sink has at hand: where documents come from, and where they go to."""

from dataclasses import dataclass

from opensearchpy import OpenSearch

from cdc.settings import SearchSettings, Settings
from sinks.batch import Report
from sinks.options import RunOptions
from sinks.search.progress import Ledger
from sinks.session import Session


@dataclass(frozen=True, slots=True)
class Place:
    """The configuration, the server, the progress there, Spark, and what the user asks for."""

    settings: Settings
    search: SearchSettings
    client: OpenSearch
    ledger: Ledger
    session: Session
    report: Report
    options: RunOptions
