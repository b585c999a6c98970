"""A query, and rows at two cuts → errors of its recomputed groups, if there are any."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sinks.spark.session import tune
from sinks.views.catalyst import Catalyst
from sinks.views.evaluate import Evaluation
from sinks.views.operators import NEW, OLD
from sinks.views.pinned import pinned
from sinks.views.query import ViewQuery
from sinks.views.reading import QueryReader
from tests.properties.sinks.views.relations import TABLES
from tests.properties.sinks.views.tables import KEYS, Rows, TwoCuts, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIGITS: Final = 9


def shown(value: Any) -> str:
    """A value as text, that is equal where the values are: -0 is 0, and NaN is one value."""
    if isinstance(value, float):
        return repr(round(value, DIGITS) + 0.0)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)


def bag(rows: "Iterable[Sequence[Any]]") -> Counter[str]:
    """Rows, and how often there are."""
    return Counter(map(shown, rows))


@dataclass(slots=True)
class Comparison:
    """Compares in one session, whose tables are those of the grammar."""

    spark: "SparkSession"
    catalyst: Catalyst = field(init=False)

    def __post_init__(self) -> None:
        self.catalyst = Catalyst(self.spark)

    def read(self, sql: str) -> ViewQuery:
        """A query's operators."""
        catalyst = self.catalyst
        frames = {name: frame(self.spark, name, ()) for name in TABLES}
        plan = catalyst.views.analysed(
            catalyst.session,
            catalyst.views.parsed(catalyst.session, sql),
            {name: name for name in TABLES},
            {name: of.schema.json() for name, of in frames.items()},
        )
        keys = {
            name: {key: catalyst.type_of(frames[name].schema[key].dataType.json()) for key in of}
            for name, of in KEYS.items()
        }
        return QueryReader(catalyst, keys).read(plan)

    def own(self, sql: str, rows: Mapping[str, Rows]) -> "list[Any]":
        """What Spark itself makes of it at the new cut."""
        for name, of in rows.items():
            frame(self.spark, name, of.new).createOrReplaceTempView(name)
        # By this rule Spark fails on a scalar subquery over a UNION ALL: key not found.
        rule = "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion"
        self.spark.conf.set("spark.sql.optimizer.excludedRules", rule)
        try:
            return self.spark.sql(sql).collect()
        finally:
            self.spark.conf.unset("spark.sql.optimizer.excludedRules")
            for name in rows:
                self.spark.catalog.dropTempView(name)

    def fault(self, sql: str, query: ViewQuery, rows: Mapping[str, Rows]) -> str | None:
        """What is wrong; None: nothing is."""
        tables = {name: TwoCuts(self.spark, name, of) for name, of in rows.items()}
        evaluation = Evaluation(self.catalyst, query, tables)
        whole = evaluation.whole(NEW).collect()
        own, count = self.own(sql, rows), len(query.columns)
        if bag(row[:count] for row in whole) != bag(own):
            return f"the whole is {bag(row[:count] for row in whole)}, and Spark's own {bag(own)}"
        places = self._places(query)
        key = [places[name] for name in query.stored(query.top.row_key or ())]
        if twice := [
            row for row, n in bag([row[i] for i in key] for row in whole).items() if n > 1
        ]:
            return f"the row key isn't unique: {twice}"
        if query.reasons:
            return None
        got = self._replaced(evaluation, query)
        if got != bag(whole):
            return f"missing {bag(whole) - got}, too many {got - bag(whole)}"
        return None

    @staticmethod
    def _places(query: ViewQuery) -> dict[str, int]:
        return {name: place for place, (name, _) in enumerate((*query.columns, *query.hidden))}

    def _replaced(self, evaluation: Evaluation, query: ViewQuery) -> Counter[str]:
        """The old rows, with the groups that may be others computed again."""
        old, groups = evaluation.whole(OLD).collect(), evaluation.groups()
        if groups is None:
            return bag(old)
        again = evaluation.of_groups(groups).collect()
        if not groups.columns:
            return bag(again)
        frame_, names = evaluation.names(groups)
        touched = bag(frame_.select(*names.values()).collect())
        by = [self._places(query)[name] for name in names]
        left = [row for row in old if not touched[shown([row[place] for place in by])]]
        return bag([*left, *again])


def compared(spark: "SparkSession") -> Comparison:
    """A comparison in a session like those that views have."""
    own = pinned(spark)
    tune(own, 0)
    return Comparison(own)
