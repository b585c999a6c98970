"""The log → every search index, up to one cut: one bounded run.

The tables' indexes first, by the same engine as the lakehouse's tables. Then joined documents,
which are made of the lakehouse. Then the indexes that are loaded beside those that serve, step by
step: between two steps those that serve keep up.
"""

import time
from typing import TYPE_CHECKING

from cdc.errors import ConfigError
from cdc.settings import Settings
from sinks.log.topics import MillraceTopics
from sinks.run.engine import Run, RunEnd
from sinks.run.options import Report, RunContext, RunOptions
from sinks.run.summary import RunSummary
from sinks.search.apply import SearchContext
from sinks.search.client import check, connect
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.joined.run import run_documents
from sinks.search.progress import Ledger
from sinks.search.target import TableIndexes
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from cdc.log.offsets import LogState


def run_search(
    settings: Settings,
    session: SparkProvider,
    report: Report = print,
    options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
) -> RunSummary:
    """Apply what the log has to the search indexes; tables that fail are in the summary.

    ``session`` is called once there is something for Spark to do. Indexes go by the names of tables
    and of joined documents. Raises MillraceError where no table could be applied at all (the log or
    the server can't be reached, another run).
    """
    if settings.search is None:
        raise ConfigError(
            "there is no search server to merge into",
            where="[search]",
            remedy='add a section [search] with url = "…"',
        )
    started = time.monotonic()
    client = connect(settings.search)
    check(client, settings.search)
    ledger = Ledger(client, settings.search.index_prefix, settings.capture.topic_prefix)
    ledger.create()
    dead_letters = DocumentDeadLetters(client, settings.search.index_prefix, None)
    dead_letters.create()
    run = RunContext(settings, session, report, options)
    context = SearchContext(run, settings.search, client, ledger)
    with ledger.claim() as claim:
        ended = _run(context, TableIndexes(context, claim))
    for alias, count in dead_letters.counts().items() if ended.results else ():
        report(f"{alias}: {count:,} documents are refused: `millrace dead-letters search`")
    return ended.summary(TableIndexes.sink, time.monotonic() - started)


def _run(context: SearchContext, target: TableIndexes) -> RunEnd:
    topics, options = MillraceTopics(context.run), context.run.options

    def once() -> RunEnd:
        try:
            return Run(context.run, topics, target).once()
        finally:
            topics.forget()

    ended = once()
    state = ended.state
    if state is None:
        return ended
    plan, results = ended.plan, [*ended.results]
    results += target.loads.begin(options.rebuilt)
    results += target.replayed()
    if context.search.documents:
        first: LogState = state
        results += run_documents(context, first, lambda: topics.state() or first)
    # The index that serves keeps up meanwhile, and the one that is loaded follows.
    failed = {table.name for table in results if table.error is not None}
    while (step := target.loads.next(failed)) is not None:
        results.append(step)
        failed |= {step.name} if step.error is not None else set()
        if options.records_max is not None:
            break  # the rest is later runs'
        later = once()
        plan, results = later.plan or plan, results + later.results
    return RunEnd(plan, results, state)
