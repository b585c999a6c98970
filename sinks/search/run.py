"""The log → every search index, up to one cut: one bounded run.

The tables' indexes come first, with the same engine as the lakehouse's tables. Then joined
documents follow, which are made of the lakehouse. Then new indexes are loaded step by step, next to
the serving ones, which keep up between two steps.
"""

import time
from dataclasses import replace

from cdc.errors import BusyError, MillraceError, SinkUnreachableError
from cdc.log.offsets import LogState
from sinks.delta.cuts import LakehouseCuts
from sinks.log.topics import MillraceTopics
from sinks.run.cut_run import CutRun
from sinks.run.engine import Run
from sinks.run.options import RunContext
from sinks.run.reported import RunEnd
from sinks.run.summary import RunSummary, Standing, TableResult
from sinks.search.apply import SearchContext
from sinks.search.client import check, connect
from sinks.search.dead_letters import DocumentDeadLetters, replayed
from sinks.search.joined.target import JoinedDocuments
from sinks.search.progress import Ledger
from sinks.search.target import IndexTarget


def run_search(run: RunContext, log: MillraceTopics) -> RunSummary:
    """Apply the log to the search indexes. Tables that fail are in the summary.

    Indexes have the names of tables and of joined documents. Raise MillraceError if no table could
    be applied at all (the log or the server can't be reached, another run).
    """
    settings = run.settings
    search = settings.require_search()
    started = time.monotonic()
    client = connect(search)
    check(client, search)
    ledger = Ledger(client, search.index_prefix, settings.capture.topic_prefix)
    ledger.create()
    dead_letters = DocumentDeadLetters(client, search.index_prefix, None)
    dead_letters.create()
    context = SearchContext(run, search, client, ledger)
    with ledger.claim() as claim:
        documents: dict[str, Standing] = {}
        ended = _run(context, IndexTarget(context, claim), log, documents)
    for alias, count in dead_letters.counts().items() if ended.results else ():
        run.report(f"{alias}: {count:,} documents were refused: run `millrace dead-letters search`")
    summary = ended.summary(IndexTarget.sink, time.monotonic() - started)
    return replace(summary, standing={**summary.standing, **documents})


def _run(
    context: SearchContext,
    target: IndexTarget,
    topics: MillraceTopics,
    documents: dict[str, Standing],
) -> RunEnd:
    options = context.run.options
    ended = Run(context.run, topics, target).once()
    state = ended.state
    plan, results = ended.plan, [*ended.results]
    results += target.begin_loads(options.rebuilt, topics)
    results += target.replayed()
    if context.search.documents:
        results += _documents(context, state, topics, documents)
    # The serving index keeps up during a load, and the loaded one follows.
    failed = {table.name for table in results if table.error is not None}
    while (step := target.load_next(failed)) is not None:
        results.append(step)
        failed |= {step.name} if step.error is not None else set()
        context.run.while_waiting()
        if options.records_max is not None:
            break  # later runs do the rest
        topics.forget()  # the log has grown
        ended = Run(context.run, topics, target).once()
        plan, results, state = ended.plan or plan, results + ended.results, ended.state
    return replace(ended, plan=plan, results=results, state=state)


def _documents(
    context: SearchContext,
    state: LogState,
    topics: MillraceTopics,
    standing: dict[str, Standing],
) -> list[TableResult]:
    """Bring each document's index to the newest cut. Those without changes have no result.

    An error of one document holds up no other. ``standing`` gets the position of each.
    """
    settings, options = context.run.settings, context.run.options
    prefix, session = settings.capture.topic_prefix, context.run.session
    cuts = LakehouseCuts(settings.require_lakehouse(), prefix, state, topics.state, session)
    results: list[TableResult] = []
    for document in context.search.documents:
        context.run.while_waiting()
        name, started = document.name, time.monotonic()
        target: JoinedDocuments | None = None
        try:
            target = JoinedDocuments(context, cuts, document)
            is_changed = CutRun(cuts, target, context.run.while_waiting).once(
                rebuilt=name in options.rebuilt
            )
            if name in options.replayed:
                results.append(replayed(name, target.dead_letters(), target.again))
        except (BusyError, SinkUnreachableError):
            raise
        except MillraceError as error:
            context.run.while_waiting()
            results.append(TableResult(name, error=error))
            where = target.standing() if target is not None else Standing(shown=False)
            standing[name] = where._replace(error=str(error))
        else:
            standing[name] = target.standing()
            if not is_changed:
                continue
            results.append(target.result(time.monotonic() - started))
        context.run.report(str(results[-1]))
    return results
