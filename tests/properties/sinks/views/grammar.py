"""A seed → a query in Spark's SQL, with nested operators, and one right answer.

Rows that are equal in an ORDER BY are equal in all columns.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.properties.sinks.views.relations import COLUMNS_MAX, Relation, Relations, Type

WHOLE: Final = ("intersect_all", "except_all", "limit", "scalar_of_all")
"""Operators that aren't followed."""
OPERATORS: Final = (
    *("filter", "project", "explode", "tumbling", "hopping", "session"),
    *("inner", "left", "right", "full", "cross", "semi", "anti", "in", "not_in", "exists"),
    *("not_exists", "exists_or", "scalar", "scalar_count", "group", "having", "global", "distinct"),
    *("count_distinct", "rollup", "cube", "grouping_sets", "row_number", "rank", "lag", "rows_sum"),
    *("range_sum", "union_all", "union", "intersect", "except", "cte", "self_join", *WHOLE),
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, the operators it is made of, and the tables that it reads."""

    sql: str
    operators: frozenset[str]
    tables: frozenset[str]


@dataclass(slots=True)
class Grammar(Relations):
    """Makes one query."""

    operators: set[str] = field(default_factory=set)

    def relation(self, wanted: Sequence[str], depth: int) -> Relation:
        """A relation whose operators are the ``wanted`` ones, outermost first, then any others."""
        if depth == 0:
            return self._table()
        if wanted:
            name, rest = wanted[0], wanted[1:]
        else:
            name, rest = (
                self.random.choices(OPERATORS, [1 if o in WHOLE else 6 for o in OPERATORS])[0],
                (),
            )
        self.operators.add(name)
        own = self.relation(rest, depth - 1)
        made: Relation = getattr(self, f"_{name}")(own, depth - 1)
        return made

    def _other(self, depth: int) -> Relation:
        """The other side of an operator."""
        return self.relation((), self.random.randint(0, max(depth - 1, 0)))

    # Rows by themselves

    def _filter(self, own: Relation, depth: int) -> Relation:
        return self._select(own.columns, f"FROM {self._from(own)[0]} WHERE {self._condition(own)}")

    def _project(self, own: Relation, depth: int) -> Relation:
        number, real = self._of(own, "int"), self._of(own, "double")
        made: list[tuple[str, Type]] = [
            (f"{number} + 1", "int"),
            (f"{number} % 2", "int"),
            (f"coalesce({number}, 1)", "int"),
            (f"CASE WHEN {number} > 1 THEN {real} END", "double"),
            (f"-{real}", "double"),
        ]
        columns = [*self._some(own), *self.random.sample(made, 2)]
        return self._select(columns[-COLUMNS_MAX:], f"FROM {self._from(own)[0]}")

    def _explode(self, own: Relation, depth: int) -> Relation:
        outer = self.random.choice(("", "OUTER "))
        element, place = self._name("e"), self._name("p")
        listed = self._of(own, "list")
        kept = self._some(own, 3)
        if self.random.random() < 0.5:
            call = f"LATERAL VIEW {outer}explode({listed}) t AS {element}"
            return self._select([*kept, (element, "int")], f"FROM {self._from(own)[0]} {call}")
        call = f"LATERAL VIEW {outer}posexplode({listed}) t AS {place}, {element}"
        columns: list[tuple[str, Type]] = [*kept, (element, "int"), (place, "int")]
        return self._select(columns, f"FROM {self._from(own)[0]} {call}")

    # Windows of time

    def _in_time(self, own: Relation, window: str, *, key: bool) -> Relation:
        name = self._of(own, "int")
        by = f", {name}" if key else ""
        columns: list[tuple[str, Type]] = [(f"{window}.start", "time")]
        columns += [("CAST(count(*) AS int)", "int")]
        columns += [(f"max({self._of(own, 'double')})", "double")]
        columns += [(name, "int")] if key else []
        return self._select(columns, f"FROM {self._from(own)[0]} GROUP BY {window}{by}")

    def _tumbling(self, own: Relation, depth: int) -> Relation:
        window = f"window({self._time(own)}, '10 minutes')"
        return self._in_time(own, window, key=self.random.random() < 0.5)

    def _hopping(self, own: Relation, depth: int) -> Relation:
        window = f"window({self._time(own)}, '30 minutes', '10 minutes')"
        return self._in_time(own, window, key=self.random.random() < 0.5)

    def _session(self, own: Relation, depth: int) -> Relation:
        window = f"session_window({self._time(own)}, '10 minutes')"
        return self._in_time(own, window, key=self.random.random() < 0.9)

    def _time(self, own: Relation) -> str:
        return self._of(own, "time")

    # Joins

    def _join(self, own: Relation, depth: int, kind: str) -> Relation:
        other = self._other(depth)
        left, one = self._from(own)
        right, two = self._from(other)
        on = self._equal(own, one, other, two)
        columns = [*self._some(own, 3), *self._some(other, 2)]
        return self._select(columns, f"FROM {left} {kind} JOIN {right} ON {on}")

    def _inner(self, own: Relation, depth: int) -> Relation:
        return self._join(own, depth, "INNER")

    def _left(self, own: Relation, depth: int) -> Relation:
        return self._join(own, depth, "LEFT")

    def _right(self, own: Relation, depth: int) -> Relation:
        return self._join(own, depth, "RIGHT")

    def _full(self, own: Relation, depth: int) -> Relation:
        return self._join(own, depth, "FULL")

    def _cross(self, own: Relation, depth: int) -> Relation:
        other = self._other(depth)
        columns = [*self._some(own, 3), *self._some(other, 2)]
        where = f" WHERE {self._of(own, 'int')} < {self._of(other, 'int')}"
        where = where if self.random.random() < 0.7 else ""
        return self._select(columns, f"FROM {self._from(own)[0]}, {self._from(other)[0]}{where}")

    def _semi(self, own: Relation, depth: int, kind: str = "SEMI") -> Relation:
        other = self._other(depth)
        left, one = self._from(own)
        right, two = self._from(other)
        on = self._equal(own, one, other, two)
        return self._select(own.columns, f"FROM {left} LEFT {kind} JOIN {right} ON {on}")

    def _anti(self, own: Relation, depth: int) -> Relation:
        return self._semi(own, depth, "ANTI")

    def _in(self, own: Relation, depth: int, word: str = "IN") -> Relation:
        other = self._other(depth)
        type_: Type = self.random.choice(("int", "int", "double"))
        theirs = f"SELECT {self._of(other, type_)} FROM {self._from(other)[0]}"
        where = f"WHERE {self._of(own, type_)} {word} ({theirs})"
        return self._select(own.columns, f"FROM {self._from(own)[0]} {where}")

    def _not_in(self, own: Relation, depth: int) -> Relation:
        return self._in(own, depth, "NOT IN")

    def _exists(self, own: Relation, depth: int, word: str = "EXISTS", more: str = "") -> Relation:
        other = self._other(depth)
        left, one = self._from(own)
        right, two = self._from(other)
        where = f"{word} (SELECT 1 FROM {right} WHERE {self._equal(own, one, other, two)})"
        return self._select(own.columns, f"FROM {left} WHERE {where}{more}")

    def _not_exists(self, own: Relation, depth: int) -> Relation:
        return self._exists(own, depth, "NOT EXISTS")

    def _exists_or(self, own: Relation, depth: int) -> Relation:
        return self._exists(
            own, depth, self.random.choice(("EXISTS", "NOT EXISTS")), f" OR {self._condition(own)}"
        )

    def _scalar(self, own: Relation, depth: int, call: str = "max") -> Relation:
        other = self._other(depth)
        left, _ = self._from(own)
        right, _ = self._from(other)
        of = self._of(other, "int")
        made = f"CAST(count({of}) AS int)" if call == "count" else f"{call}({of})"
        equal = f"{self._of(other, 'int')} = {self._of(own, 'int')}"
        query = f"(SELECT {made} FROM {right} WHERE {equal})"
        return self._select([*self._some(own, 4), (query, "int")], f"FROM {left}")

    def _scalar_count(self, own: Relation, depth: int) -> Relation:
        return self._scalar(own, depth, "count")

    def _scalar_of_all(self, own: Relation, depth: int) -> Relation:
        other = self._other(depth)
        query = f"(SELECT max({self._of(other, 'int')}) FROM {self._from(other)[0]})"
        where = f"WHERE {self._of(own, 'int')} < {query}"
        return self._select(own.columns, f"FROM {self._from(own)[0]} {where}")

    # Groups

    def _aggregates(self, own: Relation) -> list[tuple[str, Type]]:
        number, real = self._of(own, "int"), self._of(own, "double")
        made: list[tuple[str, Type]] = [
            ("CAST(count(*) AS int)", "int"),
            (f"CAST(sum({number}) AS int)", "int"),
            (f"sum({real})", "double"),
            (f"avg({number})", "double"),
            (f"min({real})", "double"),
            (f"max({number})", "int"),
            (f"CAST(count(*) FILTER (WHERE {self._condition(own)}) AS int)", "int"),
        ]
        return self.random.sample(made, self.random.randint(1, 2))

    def _group(self, own: Relation, depth: int, more: str = "") -> Relation:
        keys = self._some(own, 2)
        by = ", ".join(name for name, _ in keys)
        columns = [*keys, *self._aggregates(own)]
        return self._select(columns, f"FROM {self._from(own)[0]} GROUP BY {by}{more}")

    def _having(self, own: Relation, depth: int) -> Relation:
        of = self._of(own, "int")
        more = self.random.choice(("count(*) > 1", f"max({of}) > 1", f"count({of}) = 0"))
        return self._group(own, depth, f" HAVING {more}")

    def _global(self, own: Relation, depth: int) -> Relation:
        return self._select(self._aggregates(own), f"FROM {self._from(own)[0]}")

    def _distinct(self, own: Relation, depth: int) -> Relation:
        return self._select(self._some(own, 3), f"FROM {self._from(own)[0]}", "DISTINCT ")

    def _count_distinct(self, own: Relation, depth: int) -> Relation:
        key, type_ = self._any(own)
        of, _ = self._any(own)
        columns: list[tuple[str, Type]] = [
            (key, type_),
            (f"CAST(count(DISTINCT {of}) AS int)", "int"),
        ]
        if self.random.random() < 0.4:
            columns.append((f"CAST(sum(DISTINCT {self._of(own, 'int')}) AS int)", "int"))
        return self._select(columns, f"FROM {self._from(own)[0]} GROUP BY {key}")

    def _rollup(self, own: Relation, depth: int, how: str = "ROLLUP({})") -> Relation:
        keys = self._some(own, 2)
        names = [name for name, _ in keys]
        columns = [*keys, *self._aggregates(own)]
        if self.random.random() < 0.5:
            columns.append(("CAST(grouping_id() AS int)", "int"))
        by = how.format(", ".join(names), names[0], names[-1])
        return self._select(columns, f"FROM {self._from(own)[0]} GROUP BY {by}")

    def _cube(self, own: Relation, depth: int) -> Relation:
        return self._rollup(own, depth, "CUBE({})")

    def _grouping_sets(self, own: Relation, depth: int) -> Relation:
        sets = self.random.choice(
            ("({0}), ({1})", "({0}), ()", "({1}), ({2})", "({0}), ({1}), ({1}), ()")
        )
        return self._rollup(own, depth, f"GROUPING SETS ({sets})")

    # Windows

    def _over(self, own: Relation, call: str, type_: Type, order: str, frame: str = "") -> Relation:
        by, _ = self._any(own)
        order = order or ", ".join(name for name, _ in own.columns)
        made = f"{call} OVER (PARTITION BY {by} ORDER BY {order}{frame})"
        made = f"CAST({made} AS int)" if type_ == "int" else made
        over = self._select(
            [*own.columns[: COLUMNS_MAX - 1], (made, type_)], f"FROM {self._from(own)[0]}"
        )
        if type_ == "int" and self.random.random() < 0.4:
            return self._select(
                over.columns, f"FROM {self._from(over)[0]} WHERE {over.columns[-1][0]} <= 1"
            )
        return over

    def _row_number(self, own: Relation, depth: int) -> Relation:
        return self._over(own, "row_number()", "int", "")

    def _rank(self, own: Relation, depth: int) -> Relation:
        call = self.random.choice(("rank()", "dense_rank()"))
        return self._over(own, call, "int", f"{self._any(own)[0]} DESC")

    def _lag(self, own: Relation, depth: int) -> Relation:
        call = self.random.choice(("lag", "lead"))
        type_: Type = self.random.choice(("int", "double"))
        return self._over(own, f"{call}({self._of(own, type_)})", type_, "")

    def _rows_sum(self, own: Relation, depth: int) -> Relation:
        frame = self.random.choice(
            ("1 PRECEDING AND CURRENT ROW", "UNBOUNDED PRECEDING AND 1 FOLLOWING")
        )
        return self._over(own, f"sum({self._of(own, 'int')})", "int", "", f" ROWS BETWEEN {frame}")

    def _range_sum(self, own: Relation, depth: int) -> Relation:
        real = self.random.random() < 0.5
        call = f"sum({self._of(own, 'double')})" if real else f"sum({self._of(own, 'int')})"
        frame = self.random.choice(
            ("1 PRECEDING AND CURRENT ROW", "UNBOUNDED PRECEDING AND 1 FOLLOWING")
        )
        frame = f" RANGE BETWEEN {frame}" if self.random.random() < 0.7 else ""
        order = self._of(own, "int")
        if self.random.random() < 0.3:
            order = self._of(own, "time")
            frame = " RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW"
        return self._over(own, call, "double" if real else "int", order, frame)

    # Sets

    def _set(self, own: Relation, depth: int, word: str) -> Relation:
        other = self._other(depth)
        count = self.random.randint(1, 2)
        types: list[Type] = [
            self.random.choice(("int", "int", "double", "time")) for _ in range(count)
        ]
        sides = [
            self._select(
                [(self._of(side, type_), type_) for type_ in types], f"FROM {self._from(side)[0]}"
            )
            for side in (own, other)
        ]
        left, right = (side.sql for side in sides)
        return Relation(f"{left} {word} {right}", sides[0].columns)

    def _union_all(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "UNION ALL")

    def _union(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "UNION")

    def _intersect(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "INTERSECT")

    def _except(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "EXCEPT")

    def _intersect_all(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "INTERSECT ALL")

    def _except_all(self, own: Relation, depth: int) -> Relation:
        return self._set(own, depth, "EXCEPT ALL")

    # The same relation twice

    def _twice(self, own: Relation, one: str, other: str, left: str, right: str) -> Relation:
        mine, theirs = self._any(own, "int", "double"), self._any(own, "int", "double")
        sign = "=" if mine[1] == theirs[1] else "<"
        kind = self.random.choice(("INNER", "LEFT", "FULL", "LEFT SEMI", "LEFT ANTI"))
        shown = [*((f"{one}.{name}", type_) for name, type_ in self._some(own, 3))]
        if not kind.startswith("LEFT "):
            shown += [(f"{other}.{name}", type_) for name, type_ in self._some(own, 2)]
        named = (mine[0], theirs[0])
        if any("(" in each or " " in each for each in named):
            on = "true"
        else:
            on = f"{one}.{mine[0]} {sign} {other}.{theirs[0]}"
        return self._select(shown, f"FROM {left} {kind} JOIN {right} ON {on}")

    def _self_join(self, own: Relation, depth: int) -> Relation:
        left, one = self._from(own)
        right, other = self._from(own)
        return self._twice(own, one, other, left, right)

    def _cte(self, own: Relation, depth: int) -> Relation:
        name, one, other = self._name("w"), self._name("q"), self._name("q")
        joined = self._twice(own, one, other, f"{name} {one}", f"{name} {other}")
        return Relation(f"WITH {name} AS ({own.sql}) {joined.sql}", joined.columns)

    def _limit(self, own: Relation, depth: int) -> Relation:
        order = ", ".join(name for name, _ in own.columns)
        more = self.random.choice(("LIMIT 2", "LIMIT 3", "LIMIT 2 OFFSET 1"))
        return self._select(own.columns, f"FROM {self._from(own)[0]} ORDER BY {order} {more}")


def query(seed: int, depth: int = 3) -> Query:
    """The query of a seed; consecutive seeds have each operator outermost in turn."""
    grammar = Grammar(random.Random(seed))  # noqa: S311 (repeatable is what it has to be)
    count = len(OPERATORS)
    wanted = (OPERATORS[seed % count], OPERATORS[(seed // count * 7 + seed) % count])
    made = grammar.relation(wanted, depth)
    return Query(made.sql, frozenset(grammar.operators), frozenset(grammar.tables))
