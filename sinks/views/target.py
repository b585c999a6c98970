"""A view, as a target of cuts: its Delta table, updated by a difference of cuts or as a whole."""

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError
from cdc.settings.views import View
from sinks.changes.derived import derived_view, local_path
from sinks.run.cut_run import CutLoad, CutTarget
from sinks.run.cuts import Instant
from sinks.run.options import RunContext
from sinks.run.owner import log_folder, stranger_in_views
from sinks.run.summary import Rows, Standing, TableResult
from sinks.spark.session import RECORDS_FEW
from sinks.views.opened import OpenVersions, UnopenedError
from sinks.views.operators import NEW
from sinks.views.pinned import PinnedSession
from sinks.views.query import OF_VERSIONS
from sinks.views.records import ViewGeneration, ViewRecord, ViewRecords
from sinks.views.sources import SourceAtCuts, Sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.views.analysis import Analysis
    from sinks.views.catalyst import Catalyst
    from sinks.views.evaluate import EmptyTable, Evaluation
    from sinks.views.query import ViewQuery
    from sinks.views.store import NewRows, ViewTable

WHOLE_BYTES: Final = 4 << 20
"""A view of smaller tables is evaluated as a whole: finding touched rows takes longer."""
TOUCHED_MAX: Final = 0.1
"""If a larger part of a table is touched, the view is evaluated as a whole."""


class ViewTarget(CutTarget[ViewGeneration]):
    """One view's table."""

    what = "table"
    record: ViewRecord

    def __init__(
        self,
        context: RunContext,
        session: PinnedSession,
        sources: Sources,
        records: ViewRecords,
        view: View,
    ) -> None:
        self.name = view.name
        self.where = view.where
        self.report = context.report
        self._view = view
        self._sql = view.sql()
        self._context = context
        self.session = session
        self._sources = sources
        self._records = records
        self._derived = derived_view(context.settings.require_lakehouse(), view.name)
        self._versions = OpenVersions(sources, session, view.where)
        self._queries: dict[tuple[tuple[str, str, int], ...], ViewQuery] = {}
        self._rows = Rows()
        self.record = records.view(view.name) or ViewRecord()

    def write(self, record: Any) -> None:
        """Write the record next to the lakehouse's plans. One that begins a commit numbers it."""
        before = self.record
        begins = (record.to is not None and record.to != before.to) or (
            record.loading is not None and before.loading is None
        )
        step = self._next_step() if begins else before.step
        update = {"step": step, "version": self._rows.version or before.version}
        self.record = record.model_copy(update=update | {"ts_ms": int(time.time() * 1_000)})
        self._records.write(self._view.name, self.record)

    def _next_step(self) -> int:
        """Return the next commit's number. A table may be ahead of a record that was lost."""
        return max(self.record.step, *(table.step() for table in self.stored_in)) + 1

    @property
    def stored_in(self) -> "list[ViewTable]":
        """Return its Delta table, and the one of its history, if it is kept."""
        return [self._table] + ([self._history] if self._history is not None else [])

    @property
    def _spark(self) -> "SparkSession":
        return self.session.spark

    @cached_property
    def _analysis(self) -> "Analysis":
        from sinks.views.analysis import Analysis

        return Analysis(self._spark, self._sources, self.where)

    @cached_property
    def _parsed(self) -> Any:
        return self._analysis.parsed(self._sql)

    @cached_property
    def _table(self) -> "ViewTable":
        from sinks.views.store import ViewTable

        prefix = self._context.settings.capture.topic_prefix
        return ViewTable(self._spark, prefix, self._derived)

    @cached_property
    def _history(self) -> "ViewTable | None":
        """Return the table of all versions of the rows, if it is configured."""
        from sinks.views.store import ViewTable

        if not self._view.history:
            return None
        prefix = self._context.settings.capture.topic_prefix
        derived = derived_view(self._context.settings.require_lakehouse(), self._view.tables[1])
        return ViewTable(self._spark, prefix, derived, keeps=True)

    def tables(self, generation: ViewGeneration | None) -> set[str]:
        """Return the view's tables. Those of an earlier definition are recorded."""
        if generation is not None:
            return {*generation.tables}
        newest = self.record.newest
        if newest is not None and self._is_todays(newest):
            return {*newest.tables}
        return {*self._analysis.tables(self._parsed)}

    def _is_todays(self, generation: ViewGeneration) -> bool:
        return (generation.query, generation.history) == (self._sql, self._view.history)

    def is_there(self, generation: ViewGeneration) -> bool:
        """Whether its tables exist. Writes check their owner."""
        del generation
        if self.record.serves is None or self.record.version is None:
            return True  # it is created by the load
        lakehouse = self._context.settings.require_lakehouse()
        tables = (derived_view(lakehouse, name) for name in self._view.tables)
        return all(local_path(of.path) is None or log_folder(of) is not None for of in tables)

    def is_shown(self, generation: ViewGeneration) -> bool:
        """Whether its commit exists, and so its version is the view's."""
        del generation
        there = self._table.delta.read_applied()
        if there is None or there.run < self.record.step:
            return False
        self._rows = Rows(version=there.at)
        return True

    def suits(self, generation: ViewGeneration, at: Instant) -> bool:
        """Whether a definition is current. An old one is no longer followed."""
        del at
        return self._is_todays(generation)

    def unfit(self, generation: ViewGeneration, at: Instant, newest: Instant) -> str | None:
        """Check that the columns that identify rows are the same at both cuts."""
        if at.versions == newest.versions:
            return None
        now = self._versions.columns(newest)
        others = [name for name, of in generation.columns.items() if now.get(name) != of]
        if others:
            return f"{', '.join(others)}: other columns now"
        adapted = self.adapted(generation, newest) if self._is_todays(generation) else None
        return adapted if isinstance(adapted, str) else None

    def adapted(self, generation: ViewGeneration, newest: Instant) -> ViewGeneration | str:
        """Return the same, unless the query, or the columns that it sees, have changed."""
        if not self._is_todays(generation):
            return "its definition has changed"
        if self.record.at is not None and self.record.at.versions == newest.versions:
            return generation
        seen = self._versions.columns(newest)
        if seen == generation.seen:
            return generation
        made = self._generation(newest)
        if (made.shown, made.columns) != (generation.shown, generation.columns):
            return "it shows other columns"
        if (made.keys, made.groups) != (generation.keys, generation.groups):
            return "other columns identify its rows"
        return made

    def _generation(self, at: Instant) -> ViewGeneration:
        query = self.query(at)
        used = {
            f"{table.name}.{name}" for table in query.top.tables() for name in table.names.values()
        }
        seen = self._versions.columns(at)
        return ViewGeneration(
            query=self._sql,
            history=self._view.history,
            tables=tuple(sorted(at.versions)),
            columns={name: of for name, of in seen.items() if name in used},
            seen=seen,
            shown=query.types,
            keys=tuple(query.stored(query.top.row_key or ())),
            groups=tuple(query.stored(query.top.group)),
            keys_from=tuple(query.described(query.top.row_key or ())),
            is_timed=query.is_timed,
        )

    def is_timed(self, generation: ViewGeneration) -> bool:
        """Whether the query uses the time."""
        return generation.is_timed

    def begin(self, at: Instant, after: ViewGeneration | None) -> CutLoad[ViewGeneration]:
        """Create nothing yet, as one commit writes the table."""
        del after
        self._require_own()
        return CutLoad[ViewGeneration](into=self._generation(at))

    def _require_own(self) -> None:
        """Raise SinkError if a Delta table in its folders isn't a view's."""
        for table in self.stored_in:
            there = table.delta.read_applied()
            if there is not None and not there.run:
                raise stranger_in_views(table.delta.derived)

    def load(self, loading: CutLoad[ViewGeneration], at: Instant) -> None:
        """Evaluate all of it, and write the result as the table."""
        from sinks.views.store import NewRows

        if self._table.step() >= self.record.step:
            self._rows = Rows(version=self._table.delta.applied().at)
            return
        with self._analysis.explained():
            new = NewRows(self.made_once(at), loading.into.keys, at)
            if self._history is not None and self._history.step() < self.record.step:
                goes_on = loading.into.continues(self.record.serves)
                is_same = goes_on and self._history.has_columns(new.rows)
                write = self._history.change if is_same else self._history.replace
                write(self.record.step, new)
            self._rows = self._table.replace(self.record.step, new)

    def made(self, at: Instant) -> "DataFrame":
        """Return all rows of the query at a cut."""
        self._fit_whole(at)
        with self._analysis.explained():
            return self._evaluation(None, at).whole(NEW)

    def made_once(self, at: Instant) -> "DataFrame":
        """Return the rows of ``made``, computed once if two tables need them."""
        return self._once(self.made(at))

    def _once(self, rows: "DataFrame") -> "DataFrame":
        return rows if self._history is None else rows.localCheckpoint()

    def write_changed(self, generation: ViewGeneration, at: Instant, to: Instant) -> None:
        """Compute the groups that may change again, and write the changed rows."""
        from sinks.views.store import NewRows, other_writer

        loading = self.record.loading
        if loading is not None and generation == loading.into:
            return  # it will be loaded as of the newer cut
        if (done := self._table.step()) > self.record.step:  # the record is older
            raise other_writer(self._table.delta, done)
        if done == self.record.step:
            self._rows = Rows(version=self._table.delta.applied().at)
            return
        self._require_own()
        with self._analysis.explained():
            if not self._write_groups(generation, at, to):
                self._write_rows(NewRows(self.made(to), generation.keys, to))

    def _write_groups(self, generation: ViewGeneration, at: Instant, to: Instant) -> bool:
        """Compute the groups that may change again. Return whether this way was chosen and worked.

        The search meets values that the query never has: rows of an outer join without a match. It
        also reads the older cut, whose files may be gone.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from sinks.spark.errors import machine_error, spark_ended
        from sinks.spark.session import first_line
        from sinks.views.store import NewRows

        try:
            evaluation = self._evaluation(at, to)
            if self._is_whole(evaluation, to):
                return False
            if (groups := evaluation.groups()) is None:
                self._rows = Rows(version=self._table.delta.applied().at)
                return True
            rows = evaluation.of_groups(groups)
            self._write_rows(NewRows(rows, generation.keys, to, *evaluation.names(groups)))
        except (PySparkException, Py4JError, UnopenedError) as error:
            of_spark = not isinstance(error, UnopenedError)
            if of_spark and (spark_ended(error) or machine_error(error, self.where)):
                raise
            self._context.while_waiting()  # a signal to end cancels the jobs
            why = first_line(error) if of_spark else error
            self.say(f"can't find what has changed, evaluating all of it: {why}")
            return False
        return True

    def _write_rows(self, new: "NewRows") -> None:
        new, step = new._replace(rows=self._once(new.rows)), self.record.step
        if self._history is not None and self._history.step() < step:
            self._history.change(step, new)
        self._rows = self._table.change(step, new)

    def _is_whole(self, evaluation: "Evaluation", to: Instant) -> bool:
        """Whether to evaluate all of it."""
        if self.query(to).reasons or self._size_bytes(to) < WHOLE_BYTES:
            return True
        there = self.record.version
        if there is not None and self._table.is_altered(there):
            self.say("another program has changed the table's rows: comparing all of them")
            return True
        self.session.fit("changes")
        touched = evaluation.touched()
        if touched.rows >= RECORDS_FEW:
            self.session.fit("much")
        return touched.share > TOUCHED_MAX

    def _fit_whole(self, at: Instant) -> None:
        self.session.fit("little" if self._size_bytes(at) < WHOLE_BYTES else "much")

    def _size_bytes(self, at: Instant) -> int:
        """Return the size of all of its tables, and its own."""
        return self._versions.size_bytes(at) + self._table.delta.size_bytes()

    def _evaluation(self, at: Instant | None, to: Instant) -> "Evaluation":
        from sinks.views.evaluate import Evaluation

        query, rebuilt = self.query(to), self._sources.rebuilt(at, to)
        tables = {
            name: SourceAtCuts(
                self._sources,
                name,
                self._versions.version(name, at) if at is not None else None,
                self._versions.version(name, to),
                self._sources.key(name, to),
                sorted({*names, *self._sources.key(name, to)}),
                rebuilt=name in rebuilt,
            )
            for name, names in query.used().items()
        }
        time_us = to.time_us if query.is_timed else None
        return Evaluation(self._analysis.catalyst, query, tables, time_us)

    def query(self, at: Instant) -> "ViewQuery":
        """Return the query over the tables at a cut."""
        key = tuple(sorted((name, of.id, of.version) for name, of in at.versions.items()))
        if key not in self._queries:
            versions = self._versions.at(at)
            query = self._analysis.query(self._parsed, versions, at)
            taken = sorted(name for name, _ in query.columns if name.lower() in OF_VERSIONS)
            if taken and self._view.history:
                raise ConfigError(
                    f"a history adds columns with these names: {', '.join(taken)}",
                    where=self.where,
                    remedy="rename the query's columns, or remove history = true",
                )
            self._queries = {key: query}
        return self._queries[key]

    @property
    def catalyst(self) -> "Catalyst":
        """Return the maker of plans in the view's session."""
        return self._analysis.catalyst

    def casts(self, at: Instant) -> tuple[str, ...]:
        """Return texts that the query implicitly uses as numbers."""
        versions = self._versions.at(at)
        return self._analysis.casts(self._parsed, versions)

    def empty_tables(self, at: Instant) -> "dict[str, EmptyTable]":
        """Return the query's tables, without any rows."""
        from sinks.views.evaluate import EmptyTable

        return {
            name: EmptyTable(
                self._spark.createDataFrame([], self._versions.version(name, at).columns)
            )
            for name in self.query(at).used()
        }

    def publish(self, generation: ViewGeneration) -> None:
        """Do nothing: its commit has published it."""

    def standing(self) -> Standing:
        """Return the position of the table in its sources."""
        at = self.record.at
        return Standing(
            made_of=tuple(sorted(self.record.serves.tables)) if self.record.serves else (),
            run=at.run if at is not None else 0,
            cut=at.cut if at is not None else None,
            cut_ts_us=at.committed_us if at is not None else 0,
            shown=self.record.serves is not None and not self.record.frozen,
        )

    def result(self, seconds: float) -> TableResult:
        """Return the changes of the table, with the seconds taken."""
        rows = self._rows
        counts = rows.inserted, rows.updated, rows.deleted
        return TableResult(
            self.name, sum(counts), *counts, version=self.record.version, seconds=seconds
        )
