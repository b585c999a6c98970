"""[[views]] and the tables' columns → how each view is maintained, before anything runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cdc.errors import ConfigError, MillraceError
from sinks.delta.version import Version
from sinks.log.topics import MillraceTopics
from sinks.run.cuts import Instant
from sinks.run.options import RunContext
from sinks.views.evaluate import Evaluation, Plan, SparkAlgebra
from sinks.views.operators import NEW, CutSide, Table
from sinks.views.query import ViewQuery
from sinks.views.run import ViewsRun
from sinks.views.target import ViewTarget
from sinks.views.touched import Near, Rules


@dataclass(frozen=True, slots=True)
class ViewReport:
    """How a view is maintained: by its ``changes``, or evaluated ``whole`` for these reasons.

    ``keys`` are the columns or expressions that identify its rows (none: it is a bag of rows).
    ``groups`` are those of the rows that are computed again together. ``read_whole`` are tables
    that a change of others reads as a whole, with the reason. ``casts`` are implicit casts of text
    to numbers. ``made_definite`` lists what the query leaves open and how it is decided. All of it
    is text for people. ``error``: the view can't be maintained at all.
    """

    name: str
    reads: tuple[str, ...] = ()
    way: str = "changes"
    reasons: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    read_whole: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()
    made_definite: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    error: MillraceError | None = None


def check_views(context: RunContext) -> Sequence[ViewReport]:
    """Analyse all views over the tables at their newest cut. Starts Spark."""
    quiet = replace(context, report=lambda _: None)  # reports have the errors
    run = ViewsRun(quiet, MillraceTopics(quiet))
    reports = [_report(run, target) for target in run.in_order()]
    failed = [ViewReport(name, error=error) for name, error in run.failed.items()]
    order = [view.name for view in context.settings.views]
    return sorted([*reports, *failed], key=lambda report: order.index(report.name))


def _report(run: ViewsRun, target: ViewTarget) -> ViewReport:
    name = target.name
    try:
        reads = target.tables(None)
        at = run.sources.newest(reads)
        if at is None:
            raise ConfigError(
                f"no cut of the lakehouse has all of {', '.join(sorted(reads))}",
                where=target.where,
                remedy="run `millrace merge all` once; then check again",
            )
        query, casts = target.query(at), target.casts(at)
        run.sources.plan(name, _Planned(target, query, at), _stored_keys(query))
    except MillraceError as error:
        return ViewReport(name, error=error)
    return ViewReport(
        name,
        reads=tuple(sorted(reads)),
        way="whole" if query.reasons else "changes",
        reasons=query.reasons,
        keys=() if query.is_bag else tuple(query.described(query.top.row_key or ())),
        groups=tuple(query.described(query.top.group)),
        read_whole=() if query.reasons else tuple(_read_whole(target, query, at)),
        casts=casts,
        made_definite=query.definite,
        columns=dict(query.types),
    )


def _stored_keys(query: ViewQuery) -> tuple[str, ...]:
    return tuple(query.stored(query.top.row_key or ()))


class _Planned(Version):
    """A view's future table."""

    def __init__(self, target: ViewTarget, query: ViewQuery, at: Instant) -> None:  # no super()
        evaluation = Evaluation(target.catalyst, query, target.empty_tables(at))
        self.columns = evaluation.whole(NEW).schema


def _read_whole(target: ViewTarget, query: ViewQuery, at: Instant) -> Iterator[str]:
    """Return the tables read as a whole when another one, or they themselves, change."""
    tables = target.empty_tables(at)
    for changed in sorted(tables):
        algebra = _WholeReads(target.catalyst, tables, lambda _: None)
        algebra.changing.add(changed)
        rules = Rules(algebra)
        groups = rules.groups(query.top)
        if groups is not None:
            rules.exactly(query.top, NEW, groups)
        for name in sorted(algebra.whole):
            yield f"{name}, when {changed} changes"


@dataclass(frozen=True, slots=True)
class _WholeReads(SparkAlgebra):
    """The rules without rows: which tables they read as a whole when others change."""

    changing: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    def table(self, table: Table, cut: CutSide, near: Near[Plan] | None) -> Plan:
        """Record a table that isn't looked up by any values."""
        if near is None:
            self.whole.add(table.name)
        return self.as_table(table, self.tables[table.name].rows(cut))

    def changed(self, table: Table) -> tuple[Plan | None, Plan | None]:
        """Return added and removed rows if it is the changed table."""
        if table.name not in self.changing:
            return None, None
        rows = self.tables[table.name].rows(NEW)
        return self.as_table(table, rows), self.as_table(table, rows)

    def kept(self, rows: Plan) -> Plan | None:
        """Return the rows as if there were any."""
        return rows
