"""A view's SQL and the columns of its sources → its query, or what is wrong, and where."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from cdc.errors import ConfigError
from sinks.run.cuts import Instant
from sinks.spark.errors import spark_ended, spark_error
from sinks.spark.session import first_line, full_text
from sinks.views.catalyst import Catalyst
from sinks.views.query import ViewQuery
from sinks.views.reading import QueryReader
from sinks.views.sources import Sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.delta.version import Version

_KLL_TYPES: Final = ("Bigint", "Double", "Float")
_TUPLE_TYPES: Final = ("Double", "Integer")
_OPEN: Final = {
    "First": "min_by(x, key), or an aggregate such as min(x)",
    "Last": "max_by(x, key), or an aggregate such as max(x)",
    "AnyValue": "min(x)",
    "Mode": "a subquery that counts, and row_number() that chooses",
    "CollectList": "array_sort(collect_list(x))",
    "CollectSet": "array_sort(collect_set(x))",
    "ListAgg": "listagg(x, ',') WITHIN GROUP (ORDER BY x)",
    "MaxByUnordered": "max_by(to_json(x), y)",
    "MinByUnordered": "min_by(to_json(x), y)",
    "MaxMinByK": "slice(sort_array(collect_list(struct(y, x)), false), 1, k)",
    "ApproximatePercentile": "percentile(x, 0.5)",
    "SpecialDatetime": "now() or current_date(), which are the time of the cut",
    "CurrentUser": "the user's name: it depends on who merges",
    "HistogramNumeric": "GROUP BY width_bucket(x, …)",
    **dict.fromkeys(
        ("ApproxTopK", "ApproxTopKAccumulate", "ApproxTopKCombine"),
        "a subquery that counts, and row_number() that chooses",
    ),
    **dict.fromkeys(
        (
            *(f"Kll{kind}Agg{of}" for kind in ("Sketch", "Merge") for of in _KLL_TYPES),
            *("HllSketchAgg", "HllUnionAgg", "ThetaSketchAgg", "ThetaUnionAgg"),
            *(f"Tuple{kind}Agg{of}" for kind in ("Sketch", "Union") for of in _TUPLE_TYPES),
        ),
        "percentile(x, 0.5), or count(DISTINCT x): a sketch depends on the order of rows",
    ),
}
"""Functions with several correct results, and definite replacements."""
_TOLD: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")


class Analysis:
    """The analysis of one view's SQL in a session. ``where`` is its place in the configuration."""

    def __init__(self, spark: "SparkSession", sources: Sources, where: str) -> None:
        self.catalyst = Catalyst(spark)
        self._sources = sources
        self._where = where

    def parsed(self, sql: str) -> Any:
        """Return the query as written. Raise ConfigError."""
        with self.explained():
            plan = self.catalyst.views.parsed(self.catalyst.session, sql)
        if self.catalyst.views.isCommand(plan):
            raise ConfigError("a view is a SELECT", where=self._where, remedy="SELECT … FROM …")
        return plan

    def tables(self, parsed: Any) -> frozenset[str]:
        """Return the names of a query's tables. Spark itself reports unknown ones."""
        names = self._sources.names
        written = self.catalyst.views.relations(parsed)
        return frozenset(names[name] for name in written if name in names)

    def query(self, parsed: Any, versions: "Mapping[str, Version]", at: Instant) -> ViewQuery:
        """Return the query over the current tables. Raise ConfigError."""
        sources = self._sources
        plan = self._analysed(parsed, versions)
        self._require_one_answer(plan)
        keys = dict[str, dict[str, Any]]()
        for name, version in versions.items():
            key, columns = sources.key(name, at), version.columns
            if others := sorted({*key}.difference(columns.names)):
                raise ConfigError(
                    f"the key of {name} now has other columns than at this cut:"
                    f" {', '.join(others)}",
                    where=self._where,
                    remedy="run `millrace merge views`",
                )
            keys[name] = {
                column: self.catalyst.type_of(columns[column].dataType.json()) for column in key
            }
        with self.explained():
            return QueryReader(self.catalyst, keys).read(plan)

    def _analysed(self, parsed: Any, versions: "Mapping[str, Version]") -> Any:
        sources, views = self._sources, self.catalyst.views
        schemas = {name: sources.schema(version, name) for name, version in versions.items()}
        with self.explained():
            return views.analysed(self.catalyst.session, parsed, sources.names, schemas)

    def casts(self, parsed: Any, versions: "Mapping[str, Version]") -> tuple[str, ...]:
        """Return texts that the query implicitly uses as numbers, with their places."""
        plan = self._analysed(parsed, versions)
        casts = (_fields(str(text)) for text in self.catalyst.views.casts(plan))
        return tuple(f"{sql}{_place(line, column)}" for _, sql, line, column in casts)

    def _require_one_answer(self, plan: Any) -> None:
        for text in self.catalyst.views.expressions(plan, list(_OPEN)):
            kind, sql, line, column = _fields(str(text))
            place = _place(line, column)
            raise ConfigError(
                f"{sql} has several valid results",
                where=f"{self._where}{place}",
                remedy=f"write {_OPEN[kind]}"
                if kind in _OPEN
                else "use functions with the same result each time",
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn Spark's exceptions in the block into an error with a remedy."""
        try:
            yield
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"Spark can't parse the query: {first_line(error)}",
                where=f"{self._where}{_place_in(full_text(error))}",
                remedy="write Spark SQL over captured tables, their histories, changes(table), and"
                " other views; `millrace views check` shows what each view reads",
            ) from None
        except ConfigError as error:
            raise ConfigError(
                error.what, where=error.where or self._where, remedy=error.remedy
            ) from None
        except (PySparkException, Py4JError) as error:
            if spark_ended(error):
                raise  # an error of all views
            raise spark_error(
                "can't evaluate the view",
                error,
                where=self._where,
                remedy="correct the expression: try_cast, try_divide and similar functions return"
                " null for an invalid value",
            ) from None


def _place_in(text: str) -> str:
    """Return the place in Spark's error."""
    match = _TOLD.search(text)
    return _place(match[1], match[2]) if match is not None else ""


def _fields(text: str) -> tuple[str, str, str, str]:
    """Return Java's fields of an expression: kind, SQL, which may have tabs, line and column."""
    kind, _, rest = text.partition("\t")
    sql, line, column = rest.rsplit("\t", 2)
    return kind, sql, line, column


def _place(line: str, column: str) -> str:
    """Return a place in the SQL, for people."""
    return f", line {line}, column {int(column) + 1}" if int(line) else ""
