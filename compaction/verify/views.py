"""Stored views, and the results of their queries over the tables at the views' cuts → differences.

A view's record names its cut, and the versions of the tables there, which Delta keeps. Both sides
are of one moment, regardless of other runs, so one comparison is enough.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType

from cdc.errors import MillraceError, SinkError
from compaction.verify.comparable import masks_some
from compaction.verify.differences import Difference
from compaction.verify.options import VerifyOptions
from compaction.verify.report import DifferingKey, DifferingValue, SinkTable, VerifiedTable
from compaction.verify.slices import Slice
from sinks.changes.names import END, quoted
from sinks.log.topics import MillraceTopics
from sinks.run.cuts import Instant
from sinks.run.options import RunContext
from sinks.spark.errors import explained
from sinks.spark.jvm import counted, release
from sinks.views.query import OF_VERSIONS
from sinks.views.records import ViewGeneration
from sinks.views.run import ViewsRun
from sinks.views.sources import VIEWS
from sinks.views.store import comparable
from sinks.views.target import ViewTarget

ROUNDING: Final[Mapping[type[DataType], float]] = {DoubleType: 1e-9, FloatType: 1e-6}
"""The tolerance of floating-point numbers, relative to the larger one or to 1. A sum depends on the
order of its values, and a view's groups are computed at different times."""
_NOT_BUILT: Final = "it isn't built yet: run `millrace merge views`"
_FROZEN: Final = "its rows stay unchanged until it is built again: run `millrace merge views`"
_OTHER: Final = (
    "its definition was changed, and it isn't built again yet: run `millrace merge views`"
)
_NO_CUT: Final = "the lakehouse no longer has its cut: run `millrace merge all`"
_MADE: Final = "_millrace_made"
_STORED: Final = "_millrace_stored"
_COLUMNS: Final = "_millrace_columns"


class _ViewAtCut(NamedTuple):
    """A view's generation, and its cut."""

    generation: ViewGeneration
    at: Instant


class ComparedViews:
    """Some views (None: all), compared and shown according to the options."""

    def __init__(
        self, context: RunContext, names: Collection[str] | None, options: VerifyOptions
    ) -> None:
        quiet = replace(context, report=lambda _: None)  # the report has the errors
        self._keep = context.settings.log.keep
        self._run = ViewsRun(quiet, MillraceTopics(quiet))
        self._targets = {target.name: target for target in self._run.in_order()}
        views = [view.name for view in context.settings.views]
        self.names = [name for name in views if names is None or name in names]
        self._options = options
        self._shows_values = options.values and not masks_some(context.settings)

    def tables(self) -> set[str]:
        """Return the names of the views' lakehouse tables, also by way of other views."""
        tables, views = set[str](), [*self.names]
        known = {*self._run.sources.names.values()}
        for view in views:
            record = self._run.records.view(view)
            serves = record.serves if record is not None else None
            for name in serves.tables if serves is not None else ():
                if not name.startswith(VIEWS):
                    tables.add(name)
                elif (inner := name.removeprefix(VIEWS)) not in views:
                    views.append(inner)
        return tables & known

    def compared(self) -> dict[SinkTable, VerifiedTable]:
        """Return the results of each view, and of its history."""
        return {
            SinkTable("views", table.name): table
            for name in self.names
            for table in self._compared(name)
        }

    def _compared(self, name: str) -> Iterator[VerifiedTable]:
        target = self._targets.get(name)
        serves = target.record.serves if target is not None else None
        source = ", ".join(serves.tables) if serves is not None else ""
        about = VerifiedTable(sink="views", name=name, source=source, kind="view")
        try:
            if target is None:
                raise self._run.failed[name]
            standing, started = self._standing(target), time.monotonic()
            with explained(name, self._keep):
                made = target.made_once(standing.at)
        except MillraceError as error:
            yield about.model_copy(update={"unverified": error.what})
            return
        tables = [about]
        if standing.generation.history:
            of_history = {"name": f"{name}_history", "kind": "view's history"}
            tables.append(about.model_copy(update=of_history))
        for table in tables:
            try:
                yield self._compare(table, target, standing, made, started)
            except MillraceError as error:
                yield table.model_copy(update={"unverified": error.what})
            started = time.monotonic()
        if standing.generation.history:
            release(made)

    def _standing(self, target: ViewTarget) -> _ViewAtCut:
        """Return what is compared. Raise SinkError if it is missing, or may be outdated."""
        record, why = self._run.records.view(target.name) or target.record, ""
        target.record = record
        if record.serves is None or record.at is None or record.version is None:
            raise SinkError(_NOT_BUILT, where=target.where)
        if record.frozen:
            why = _FROZEN
        elif not target.suits(record.serves, record.at):
            why = _OTHER
        elif not self._run.sources.has(record.at):
            why = _NO_CUT
        elif failed := self._failure(target.name):
            why = f"its last run failed: {failed}"
        if why:
            raise SinkError(why, where=target.where)
        return _ViewAtCut(record.serves, record.at)

    def _failure(self, name: str) -> str:
        """Return why the newest run of views failed to update it. Empty: it didn't fail."""
        for run in reversed(self._run.records.runs()):
            if (at := self._run.records.at_cut(run)) is not None:
                return at.failed.get(name, "")
        return ""

    def _compare(
        self,
        about: VerifiedTable,
        target: ViewTarget,
        standing: _ViewAtCut,
        made: DataFrame,
        started: float,
    ) -> VerifiedTable:
        is_history = about.name != target.name
        with explained(about.name, self._keep):
            stored = _stored(target, is_history=is_history)
            if is_history:
                stored = stored.where(F.col(END).isNull()).drop(*OF_VERSIONS)
            if others := {*stored.columns} ^ {*made.columns}:
                raise SinkError(
                    f"its columns aren't those of its query: {', '.join(sorted(others))}",
                    where=about.name,
                )
            keys_of = standing.generation.keys
            if (slice_ := self._options.slice_) is not None:
                stored, made = (_in_slice(rows, keys_of, slice_) for rows in (stored, made))
            pairs, counts = counted(
                _pairs(stored, made, keys_of),
                {
                    "rows": F.count_if(F.col(_MADE).isNotNull()),
                    "derived_rows": F.count_if(F.col(_STORED).isNotNull()),
                    **{
                        difference: F.count_if(_is(difference))
                        for difference in ("missing", "extra", "different")
                    },
                },
            )
            differing = counts["missing"] + counts["extra"] + counts["different"]
            keys = [*self._keys(target, standing, pairs)] if differing else []
        seconds = round(time.monotonic() - started, 3)
        return about.model_copy(update={**counts, "keys": tuple(keys), "seconds": seconds})

    def _keys(
        self, target: ViewTarget, standing: _ViewAtCut, pairs: DataFrame
    ) -> Iterator[DifferingKey]:
        """Yield the first differing keys."""
        keys = standing.generation.keys
        query = target.query(standing.at)
        row_key = query.top.row_key or ()
        shown = query.described(row_key) if query.stored(row_key) == [*keys] else keys
        key = [
            F.coalesce(F.col(_MADE)[name], F.col(_STORED)[name]).cast("string").alias(f"key_{n}")
            for n, name in enumerate(keys)
        ]
        difference = F.when(_is("missing"), "missing").when(_is("extra"), "extra")
        values = F.lit(None) if not self._shows_values else _differing_values(pairs, keys)
        found = pairs.where(_is("missing") | _is("extra") | _is("different")).select(
            *key,
            difference.otherwise("different").alias("difference"),
            F.col(_COLUMNS),
            values.alias("values"),
        )
        for row in found.limit(self._options.keys_shown).collect():
            yield DifferingKey(
                key=dict(zip(shown, row[: len(keys)], strict=True)),
                difference=row["difference"],
                columns=tuple(row[_COLUMNS]) if row["difference"] == "different" else (),
                values={
                    name: DifferingValue(source=made, here=stored)
                    for name, made, stored in row["values"] or ()
                    if row["difference"] == "different"
                },
            )


def _stored(target: ViewTarget, *, is_history: bool) -> DataFrame:
    """Return the rows at the view's cut. An unfinished run may have written newer ones."""
    view, *history = target.stored_in
    record, recorded = target.record, target.record.version
    if recorded is None or view.delta.applied().at.id != recorded.id:
        raise SinkError("another table has replaced it", where=view.delta.path)
    (table,) = history if is_history else [view]
    is_under_way = record.to is not None or record.loading is not None
    return table.rows_of(view.delta.run_at(recorded.version) if is_under_way else record.step)


def _is(difference: Difference) -> SparkColumn:
    made, stored = F.col(_MADE), F.col(_STORED)
    if difference == "missing":
        return stored.isNull()
    if difference == "extra":
        return made.isNull()
    return made.isNotNull() & stored.isNotNull() & (F.size(_COLUMNS) > 0)


def _in_slice(rows: DataFrame, keys: Sequence[str], slice_: Slice) -> DataFrame:
    """Return the rows of a slice, by Spark's texts of the keys. 0 and -0 are one number."""

    def text(name: str) -> SparkColumn:
        value = F.col(quoted(name))
        is_float = isinstance(rows.schema[name].dataType, tuple(ROUNDING))
        return (value + F.lit(0) if is_float else value).cast("string")

    return rows.where(slice_.has([text(name) for name in keys]))


def _differing_values(pairs: DataFrame, keys: Sequence[str]) -> SparkColumn:
    """Return each differing column's name, its value by the query, and its stored value."""
    names = [name for name in pairs.select(f"{_MADE}.*").columns if name not in keys]
    return F.array_compact(
        F.array(
            *(
                F.when(
                    F.array_contains(_COLUMNS, name),
                    F.struct(
                        F.lit(name).alias("name"),
                        F.col(_MADE)[name].cast("string").alias("made"),
                        F.col(_STORED)[name].cast("string").alias("stored"),
                    ),
                )
                for name in names
            )
        )
    )


def _pairs(stored: DataFrame, made: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return rows by their keys as structs: stored, made, and the names of the columns that differ.

    Another copy of a stored row has the same key but is an extra row, so copies are numbered.
    """
    copies = Window.partitionBy(*map(quoted, keys)).orderBy(F.lit(0))
    old = stored.select(F.struct("*").alias(_STORED), F.row_number().over(copies).alias("copy"))
    new = made.select(F.struct(*map(quoted, made.columns)).alias(_MADE), F.lit(1).alias("one"))
    same = [F.col(_STORED)[key].eqNullSafe(F.col(_MADE)[key]) for key in keys]
    pairs = old.join(new, reduce(and_, same, F.col("copy") == F.col("one")), "full_outer")
    differing = [
        F.when(
            ~_is_same(F.col(_STORED)[field.name], F.col(_MADE)[field.name], field.dataType),
            F.lit(field.name),
        )
        for field in made.schema.fields
        if field.name not in keys
    ]
    return pairs.withColumn(_COLUMNS, F.array_compact(F.array(*differing)))


def _is_same(one: SparkColumn, other: SparkColumn, kind: DataType) -> SparkColumn:
    same = comparable(one, kind).eqNullSafe(comparable(other, kind))
    if (rounding := ROUNDING.get(type(kind))) is None:
        return same
    larger = F.greatest(F.abs(one), F.abs(other), F.lit(1))
    return same | F.coalesce(F.abs(one - other) <= rounding * larger, F.lit(False))
