"""Two sets of rows for each table of the grammar, as the tables of a lakehouse at two cuts."""

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sinks.run.cuts import TableDifference
from sinks.views.operators import OLD, CutSide
from tests.properties.sinks.views.relations import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
TYPES: Final = {"int": "int", "double": "double", "time": "timestamp", "list": "array<int>"}
KEYS: Final = {name: ("id",) if columns[0][0] == "id" else () for name, columns in TABLES.items()}
DOMAIN: Final[Mapping[str, Sequence[Any]]] = {
    "int": (None, 0, 1, 2, 3),
    "double": (None, float("nan"), -0.0, 0.0, 1.5),
    "time": (None, *(dt.datetime(2024, 1, 1, 0, minute) for minute in (0, 5, 20, 50))),  # noqa: DTZ001
    "list": (None, [], [1], [1, 2], [2, 2, None]),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """A table's rows at both cuts."""

    old: tuple[Row, ...]
    new: tuple[Row, ...]

    @property
    def is_changed(self) -> bool:
        """Whether they differ."""
        return Counter(map(repr, self.old)) != Counter(map(repr, self.new))


def _row(rng: random.Random, name: str, number: int) -> Row:
    values = tuple(rng.choice(DOMAIN[kind]) for _, kind in TABLES[name])
    return (number, *values[1:]) if TABLES[name][0][0] == "id" else values


def _changed(rng: random.Random, name: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    left = list(rows)
    for _ in range(rng.randint(1, 3)):
        chance = rng.random()
        place = rng.randrange(len(left)) if left else 0
        if left and chance < 0.35:
            left.pop(place)
        elif left and chance < 0.7:
            left[place] = _row(rng, name, left[place][0])
        else:
            left.append(_row(rng, name, 100 + len(left) + rng.randint(0, 5) * 10))
    own = {row[0]: row for row in left} if TABLES[name][0][0] == "id" else None
    return tuple(own.values() if own is not None else left)


def data(seed: str, read: frozenset[str]) -> dict[str, Rows]:
    """Rows of all tables, of which one, two or more of those that are ``read`` change."""
    rng = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    changing = rng.sample(sorted(read), max(1, len(read) - (rng.random() < 0.3)))
    made = {}
    for name in TABLES:
        old = tuple(_row(rng, name, number) for number in range(rng.randint(0, 7)))
        made[name] = Rows(old, _changed(rng, name, old) if name in changing else old)
    return made


def _literal(value: Any, kind: str) -> str:
    match value:
        case None:
            return f"CAST(NULL AS {TYPES[kind]})"
        case float():
            return f"double('{value}')"
        case dt.datetime():
            return f"timestamp'{value}'"
        case list():
            inner = ", ".join(_literal(each, "int") for each in value)
            return f"CAST(array({inner}) AS array<int>)"
    return str(value)


def frame(spark: "SparkSession", name: str, rows: Sequence[Row]) -> "DataFrame":
    """Rows as a table of Spark's."""
    columns = TABLES[name]
    listed = ", ".join(
        "("
        + ", ".join(_literal(value, kind) for value, (_, kind) in zip(row, columns, strict=True))
        + ")"
        for row in rows or [(None,) * len(columns)]
    )
    names = ", ".join(column for column, _ in columns)
    return spark.sql(
        f"SELECT * FROM VALUES {listed} AS t({names})" + (" LIMIT 0" if not rows else "")
    )


@dataclass(frozen=True, slots=True)
class TwoCuts:
    """A table at two cuts, which returns no row more than it is asked for."""

    spark: "SparkSession"
    name: str
    of: Rows
    _read: "dict[CutSide, DataFrame]" = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """Some are read whole."""
        return len(self.of.new) % 3 == 0

    def count(self) -> int:
        """How many rows it has at the new cut."""
        return len(self.of.new)

    def rows(self, cut: CutSide) -> "DataFrame":
        """All rows, of which all occurrences of the table read the same."""
        if cut not in self._read:
            rows = self.of.old if cut == OLD else self.of.new
            self._read[cut] = frame(self.spark, self.name, rows)
        return self._read[cut]

    def rows_with(
        self, cut: CutSide, values: "DataFrame", columns: Mapping[str, str]
    ) -> "DataFrame":
        """The rows that have any of the values, or are in any of the spans."""
        from pyspark.sql import Column
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        wanted = values.select(
            *(F.col(other).alias(f"wanted_{own}") for own, other in columns.items())
        )

        def has(own: str) -> Column:
            value = F.col(f"wanted_{own}")
            if isinstance(wanted.schema[f"wanted_{own}"].dataType, StructType):
                is_within = (F.col(own) >= value["start"]) & (F.col(own) < value["end"])
                return value.isNull() | is_within
            return F.col(own).eqNullSafe(value)

        same = [has(own) for own in columns]
        return self.rows(cut).join(wanted, same, "left_semi")

    def difference(self) -> TableDifference | None:
        """The rows that only one of the cuts has."""
        gone = list(self._more(self.of.old, self.of.new))
        come = list(self._more(self.of.new, self.of.old))
        if not gone and not come:
            return None
        sides = [frame(self.spark, self.name, rows) for rows in (gone, come)]
        return TableDifference(sides[0], sides[1])

    @staticmethod
    def _more(rows: Sequence[Row], than: Sequence[Row]) -> Iterator[Row]:
        left = Counter(map(repr, than))
        for row in rows:
            if left[repr(row)]:
                left[repr(row)] -= 1
            else:
                yield row
