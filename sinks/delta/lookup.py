"""Values to look up → the files that may have them, by statistics, and the bounds within.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from itertools import accumulate
from operator import and_
from typing import Any, Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sinks.changes.names import quoted

_VALUES_MAX: Final = 10_000
"""Maximum values that select files by statistics. With more, nearly every file may have one."""
_KINDS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "date": "date",
    "string": "string",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
"""Types for which files' statistics are exact enough: in JSON, and in SQL."""
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_LATER: Final = {"timestamp": 1_000, "timestamp_ntz": timedelta(milliseconds=1)}
"""Statistics have whole milliseconds of times, so the greatest may be up to one later."""
_BEGIN: Final = "timestamp_ntz'1970-01-01'"
_NO_DAYS: Final = (-141_438, -141_426)
"""Around 5 to 14 October 1582, in days. Java's calendar lacks these days, so Spark makes Parquet
search for later ones.
"""
_A_DAY: Final = {"date": 1, "timestamp": 86_400_000_000}


class BoundedColumn(NamedTuple):
    """A column with bounds in files: its name in the files, and its type in SQL."""

    physical: str
    kind: str

    def takes(self, kind: str) -> bool:
        """Whether values of a type have its order (as text, 10 comes before 9), or are spans."""
        is_span = self.kind in _LATER and kind == f"struct<start:{self.kind},end:{self.kind}>"
        return kind == self.kind or is_span or {kind, self.kind} <= _INTEGERS

    def comparable(self, value: SparkColumn) -> SparkColumn:
        """Return a value that Python can compare with bounds."""
        if self.kind == "date":
            return F.unix_date(value)
        if self.kind == "timestamp":
            return F.unix_micros(value)
        if self.kind == "timestamp_ntz":
            return value - F.expr(_BEGIN)
        return value

    def literal(self, value: Any) -> SparkColumn:
        """Return a compared value as one of the column."""
        if self.kind == "date":
            return F.date_from_unix_date(F.lit(value))
        if self.kind == "timestamp":
            return F.timestamp_micros(F.lit(value))
        if self.kind == "timestamp_ntz":
            return F.expr(_BEGIN) + F.lit(value)
        return F.lit(value)

    def between(self, name: str, low: Any, high: Any) -> SparkColumn:
        """Return the condition that a column's values are between two. Parquet can look it up."""
        return F.col(quoted(name)).between(
            self.literal(_to_be_found(low, self.kind, _NO_DAYS[0])),
            self.literal(_to_be_found(high, self.kind, _NO_DAYS[1])),
        )

    def bounds_in(self, stats: str | None) -> tuple[Any, Any] | None:
        """Return the bounds in a file's statistics from Delta's log."""
        return self.bounds(json.loads(stats)) if stats else None

    def bounds(self, stats: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return the least and the greatest value that a file may have. None: unknown."""
        try:
            low, high = (
                self._parsed(stats[side][self.physical]) for side in ("minValues", "maxValues")
            )
        except (KeyError, TypeError, ValueError):  # none, or a time that Python doesn't support
            return None
        return low, high + _LATER[self.kind] if self.kind in _LATER else high

    def _parsed(self, bound: Any) -> Any:
        if self.kind in _INTEGERS:
            return int(bound)
        if self.kind == "date":
            return (date.fromisoformat(bound) - date(1970, 1, 1)).days
        if self.kind in _LATER:
            time = datetime.fromisoformat(bound)
            since = time.replace(tzinfo=time.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            return since if self.kind == "timestamp_ntz" else since // timedelta(microseconds=1)
        return str(bound)


def bounded_columns(fields: Iterable[Mapping[str, Any]]) -> dict[str, BoundedColumn]:
    """Return the columns with bounds in files, from the fields of a schema in Delta's log."""
    physical = "delta.columnMapping.physicalName"
    return {
        field["name"]: BoundedColumn(
            field["metadata"].get(physical, field["name"]), _KINDS[field["type"]]
        )
        for field in fields
        if isinstance(field["type"], str) and field["type"] in _KINDS
    }


class Spans:
    """Spans of one column's values, ascending. They can be single values."""

    def __init__(self, spans: Iterable[tuple[Any, Any]]) -> None:
        ascending = sorted(spans)
        self._firsts = [first for first, _ in ascending]
        self._lasts = [*accumulate((last for _, last in ascending), max)]
        self.least, self.greatest = self._firsts[0], self._lasts[-1]

    def meet(self, low: Any, high: Any) -> bool:
        """Whether any span is between two bounds, or includes one."""
        begun = bisect_right(self._firsts, high)
        return begun > 0 and bool(self._lasts[begun - 1] >= low)


class Lookup:
    """A few values, by the columns of a table that must have them. None: no row has any.

    A column is left out if null is looked up, as statistics don't show where nulls are.
    """

    def __init__(self, spans: Mapping[str, tuple[BoundedColumn, Spans]], *, empty: bool) -> None:
        self._spans = spans
        self.is_empty = empty

    @classmethod
    def of(
        cls,
        values: DataFrame,
        columns: Mapping[str, str],
        bounded: Mapping[str, BoundedColumn],
        *,
        nulls: bool,
    ) -> "Lookup | None":
        """Return the lookup of ``values``. None: they are too many, or have no bounds.

        ``columns``: the column of each value. Without ``nulls``, no value matches a null.
        """
        kinds = {field.name: field.dataType.simpleString() for field in values.schema.fields}
        own = {
            name: (bounded[name], F.col(quoted(value)), kinds[value])
            for name, value in columns.items()
            if name in bounded and bounded[name].takes(kinds[value])
        }
        if not own:
            return None
        asked: list[SparkColumn] = []
        for of, value, kind in own.values():
            is_span = kind.startswith("struct")
            sides = (value["start"], value["end"]) if is_span else (value, value)
            asked += [of.comparable(side) for side in sides]
        chosen = values.select(*(column.alias(f"v{n}") for n, column in enumerate(asked)))
        rows = [tuple(row) for row in chosen.limit(_VALUES_MAX + 1).collect()]
        if len(rows) > _VALUES_MAX:
            return None
        if not nulls:
            rows = [row for row in rows if None not in row]
        spans: dict[str, tuple[BoundedColumn, Spans]] = {}
        for place, (name, (of, _, _)) in enumerate(own.items()):
            pairs = {(row[2 * place], row[2 * place + 1]) for row in rows}
            if pairs and not any(None in pair for pair in pairs):
                spans[name] = of, Spans(pairs)
        return cls(spans, empty=not rows)

    def may_be_in(self, stats: str | None) -> bool:
        """Whether a file with these statistics may have rows with any of the values."""
        if self.is_empty:
            return False
        statistics = json.loads(stats) if stats else {}
        for of, spans in self._spans.values():
            bounds = of.bounds(statistics)
            if bounds is not None and not spans.meet(*bounds):
                return False
        return True

    def between(self) -> SparkColumn:
        """Return the condition that a row's values are between the least and the greatest."""
        return self._all(
            of.between(name, spans.least, spans.greatest)
            for name, (of, spans) in self._spans.items()
        )

    def may_be_near(self) -> SparkColumn:
        """Return the condition on a file's ``stats`` that it may have values between these."""
        stats = F.from_json("stats", "minValues map<string, string>, maxValues map<string, string>")
        conditions: list[SparkColumn] = []
        for of, spans in self._spans.values():
            low, high = (
                of.comparable(stats[side].getItem(of.physical).try_cast(of.kind))
                for side in ("minValues", "maxValues")
            )
            # The last possible times of a column have no later ones.
            least = spans.least - _LATER[of.kind] if of.kind in _LATER else spans.least
            is_after, is_before = low > F.lit(spans.greatest), high < F.lit(least)
            conditions.append(~F.coalesce(is_after | is_before, F.lit(False)))
        return self._all(conditions)

    @staticmethod
    def _all(conditions: Iterable[SparkColumn]) -> SparkColumn:
        return reduce(and_, conditions, F.lit(True))


def _to_be_found(bound: Any, kind: str, instead: int) -> Any:
    """Return a bound that Parquet finds: none of the days that Java lacks."""
    if kind not in _A_DAY:
        return bound
    first, last = (day * _A_DAY[kind] for day in _NO_DAYS)
    return instead * _A_DAY[kind] if first < bound < last else bound
