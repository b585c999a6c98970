"""A run over a real Debezium's topics → the tables whose rows may be wrong, and the solution.

sinks/debezium/members.py has the reasons. A doubt is part of the plan that brings it, and of later
ones. An outcome ends it. In the run's own outcome, an event has covered each row since. In the last
run's outcome, the user says that the rows are right. If a plan fails for a table, it adds no doubt:
the next run reads the same records, with the same result.
"""

from collections.abc import Collection, Iterator, Mapping

from cdc.lines import Lines, on_one_line
from sinks.run.options import Report
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.summary import RunOutcome, TableResult


def doubt_text(name: str, table: TablePlan, signals: str | None) -> str | None:
    """Return why rows of a derived table may be wrong, and the solution. None: they are right.

    ``signals`` is the connector's table of signals.
    """
    doubt = table.debezium and table.debezium.doubt
    if not doubt:
        return None
    remedy = on_one_line(doubt.remedy(name, table.source, signals))
    return Lines(f"{on_one_line(doubt.what(table.topic))}\n    → {remedy}")


def new_doubt(table: TablePlan, result: TableResult, signals: str | None) -> str | None:
    """Return it with the table's name, if a plan brings the doubt, and hasn't ended it."""
    doubt = table.debezium and table.debezium.doubt
    if not doubt or not doubt.is_new or result.is_covered or result.error:
        return None
    return Lines(f"{on_one_line(result.name)}: {doubt_text(result.name, table, signals)}")


def doubts(tables: Mapping[str, TablePlan], signals: str | None) -> Iterator[tuple[str, str]]:
    """Yield the doubtful derived tables, and the reasons."""
    for name, table in sorted(tables.items()):
        if (text := doubt_text(name, table, signals)) is not None:
            yield name, text


def accepted(
    plan: RunPlan, outcome: RunOutcome, names: Collection[str], report: Report
) -> RunOutcome:
    """Return the last run's outcome, in which the user accepts the named tables' rows.

    This ends the doubt that `millrace status` has shown.
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
