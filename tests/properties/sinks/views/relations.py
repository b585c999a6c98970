"""The parts of a query: relations, their columns, and conditions on them.

Each SELECT is a relation that the next one reads as a subquery. Column names are unique, and each
column has one of four types.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Type = Literal["int", "double", "time", "list"]

TABLES: Final[dict[str, tuple[tuple[str, Type], ...]]] = {
    "a": (("id", "int"), ("x", "int"), ("d", "double"), ("ts", "time")),
    "b": (("id", "int"), ("x", "int"), ("l", "list")),
    "k": (("x", "int"), ("d", "double")),
}
"""Their columns; a table has a key where it has an ``id``."""
COLUMNS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Relation:
    """A SELECT, and the names and types of its columns."""

    sql: str
    columns: tuple[tuple[str, Type], ...]


@dataclass(slots=True)
class Relations:
    """Makes relations of random columns, and notes the tables that they read."""

    random: random.Random
    tables: list[str] = field(default_factory=list)
    _names: int = 0

    def _table(self) -> Relation:
        unread = [name for name in TABLES if name not in self.tables]
        name = self.random.choice(unread or list(TABLES))
        self.tables.append(name)
        columns = [(self._name("c"), of, kind) for of, kind in TABLES[name]]
        shown = ", ".join(f"{of} AS {new}" for new, of, _ in columns)
        return Relation(
            f"SELECT {shown} FROM {name}", tuple((new, kind) for new, _, kind in columns)
        )

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _of(self, relation: Relation, type_: Type) -> str:
        """A column of a type, or a value that is made of another one."""
        there = [name for name, kind in relation.columns if kind == type_]
        if there:
            return self.random.choice(there)
        match type_:
            case "int":
                name, kind = self.random.choice(relation.columns)
                made = {
                    "double": f"CASE WHEN {name} > 0 THEN 2 WHEN {name} IS NULL THEN 0 END",
                    "time": f"minute({name})",
                    "list": f"size({name})",
                }
                return made[kind]
            case "double":
                return f"CAST({self._of(relation, 'int')} AS double)"
            case "list":
                number = self._of(relation, "int")
                return f"array({number}, 1, {number})"
            case "time":
                minutes = f"coalesce({self._of(relation, 'int')}, 0)"
                return f"timestamp'2024-01-01 00:00:00' + make_dt_interval(0, 0, {minutes} * 7)"

    def _any(self, relation: Relation, *types: Type) -> tuple[str, Type]:
        there = [each for each in relation.columns if not types or each[1] in types]
        return self.random.choice(there) if there else (self._of(relation, "int"), "int")

    def _some(self, relation: Relation, most: int = COLUMNS_MAX) -> list[tuple[str, Type]]:
        """Some of the columns, in their order."""
        count = self.random.randint(1, min(most, len(relation.columns)))
        places = sorted(self.random.sample(range(len(relation.columns)), count))
        return [relation.columns[place] for place in places]

    def _select(
        self, columns: Sequence[tuple[str, Type]], source: str, distinct: str = ""
    ) -> Relation:
        """SELECT these expressions, each under a new name."""
        new = [(self._name("c"), expression, type_) for expression, type_ in columns]
        shown = ", ".join(f"{expression} AS {name}" for name, expression, _ in new)
        return Relation(
            f"SELECT {distinct}{shown} {source}", tuple((name, type_) for name, _, type_ in new)
        )

    def _from(self, relation: Relation) -> tuple[str, str]:
        """How a relation is read, and by which name."""
        alias = self._name("q")
        return f"({relation.sql}) {alias}", alias

    def _condition(self, relation: Relation) -> str:
        name, type_ = self._any(relation)
        choices = {
            "int": [
                f"{name} > 0",
                f"{name} IN (0, 2)",
                f"{name} % 2 = 0",
                f"{name} <=> NULL",
                f"NOT {name} = 1",
            ],
            "double": [
                f"{name} > 0",
                f"{name} = 0",
                f"isnan({name})",
                f"{name} IS NOT NULL",
                f"NOT {name} <=> double('NaN')",
            ],
            "time": [f"{name} > '2024-01-01 00:05:00'", f"{name} IS NULL"],
            "list": [f"size({name}) > 1", f"array_contains({name}, 1)", f"{name} IS NOT NULL"],
        }[type_]
        one = self.random.choice(choices)
        return f"{one} OR {self._condition(relation)}" if self.random.random() < 0.3 else one

    def _equal(self, left: Relation, one: str, right: Relation, other: str) -> str:
        """A condition that two sides match by."""
        type_: Type = self.random.choice(("int", "int", "double"))
        mine, theirs = self._of(left, type_), self._of(right, type_)
        sign = self.random.choice(("=", "=", "=", "<=>"))
        equal = f"{mine} {sign} {theirs}"
        if self.random.random() < 0.3:
            sign = self.random.choice(("<", ">=", "<>"))
            more = f"{self._of(left, 'int')} {sign} {self._of(right, 'int')}"
            return f"{equal} AND {more}"
        return equal
