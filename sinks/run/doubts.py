"""A run over a real Debezium's topics → which tables have rows that may be wrong, and what to do.

sinks/debezium/members.py has the reasons. A doubt is part of the plan that brings it, and of those
that follow. An outcome ends it: the run's own, where an event has covered each row since, or that
of the last run, where the user says that the rows are right. A plan that fails for a table brings
it no doubt: the next run reads the same records, and finds the same.
"""

from collections.abc import Collection, Iterator, Mapping

from cdc.lines import Lines, on_one_line
from sinks.run.options import Report
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.summary import RunOutcome, TableResult


def doubt_text(name: str, table: TablePlan, signals: str | None) -> str | None:
    """Why rows of a derived table may be wrong, and what to do; None where they aren't.

    ``signals`` is the connector's table of signals.
    """
    doubt = table.debezium and table.debezium.doubt
    if not doubt:
        return None
    remedy = on_one_line(doubt.remedy(name, table.source, signals))
    return Lines(f"{on_one_line(doubt.what(table.topic))}\n    → {remedy}")


def new_doubt(table: TablePlan, result: TableResult, signals: str | None) -> str | None:
    """The same with the table's name, where a plan brings the doubt, and hasn't ended it."""
    doubt = table.debezium and table.debezium.doubt
    if not doubt or not doubt.is_new or result.is_covered or result.error:
        return None
    return Lines(f"{on_one_line(result.name)}: {doubt_text(result.name, table, signals)}")


def doubts(tables: Mapping[str, TablePlan], signals: str | None) -> Iterator[tuple[str, str]]:
    """The doubtful ones among derived tables, and why."""
    for name, table in sorted(tables.items()):
        if (text := doubt_text(name, table, signals)) is not None:
            yield name, text


def accepted(
    plan: RunPlan, outcome: RunOutcome, names: Collection[str], report: Report
) -> RunOutcome:
    """The outcome of the last run, where the user takes the named tables for right.

    What ends is the doubt that `millrace status` has shown.
    """
    tables = goes_on(plan, outcome)
    doubtful = [
        name
        for name in sorted(names)
        if name in tables
        if (topic := tables[name].debezium) is not None and topic.doubt is not None
    ]
    for name in doubtful:
        report(f"{name}: its rows count as right from now on (--accept-doubt)")
    return outcome.model_copy(update={"covered": (*outcome.covered, *doubtful)})
