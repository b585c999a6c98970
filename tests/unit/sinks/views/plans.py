"""A seed → nested operators, over tables with some rows at each of two cuts."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, get_args

from sinks.views.operators import (
    NEW,
    OLD,
    Constant,
    CutSide,
    Group,
    Join,
    JoinKind,
    Operator,
    Rowwise,
    Table,
    Union,
    Window,
)
from tests.unit.sinks.views.plain import Matching, PlainAlgebra, Row, Rows, join_of, same

NAN: Final = float("nan")
DOMAIN: Final = (None, NAN, -0.0, 0.0, 1.0)
TABLES: Final[Mapping[str, tuple[int, bool]]] = {"a": (3, True), "b": (2, True), "k": (2, False)}
"""How many columns they have, and whether the first is a key."""
SESSION_GAP: Final = 1


def _order(values: Any) -> str:
    return repr(same(values))


@dataclass(slots=True)
class Plans:
    """Makes a plan."""

    random: random.Random
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def new(self) -> int:
        """The number of a new column."""
        return next(self._numbers)

    def operator(self, depth: int) -> Operator:
        """An operator whose deepest table is that deep below it."""
        if depth == 0:
            return self.constant() if self.random.random() < 0.05 else self.table()
        makes: tuple[Callable[[int], Operator], ...] = (
            *(self.filter, self.project, self.explode, self.expand),
            *(self.join, self.join, self.join, self.join, self.self_join),
            *(self.group, self.group, self.session, self.window, self.window, self.union),
        )
        return self.random.choice(makes)(depth)

    def below(self, depth: int) -> Operator:
        """Another one below, that is less deep or as deep as it may be."""
        return self.operator(self.random.randint(0, depth - 1))

    def table(self) -> Operator:
        """An occurrence of a table."""
        name = self.random.choice([*TABLES])
        width, keyed = TABLES[name]
        names = {self.new(): str(place) for place in range(width)}
        key = next(iter(names))
        return Table(
            list,
            tuple(names),
            (key,) if keyed else None,
            (key,) if keyed else (),
            name=name,
            names=names,
        )

    def constant(self) -> Operator:
        """Rows of the query's own."""
        columns = (self.new(), self.new())
        rows = [{each: self.random.choice(DOMAIN) for each in columns} for _ in range(2)]
        return Constant(lambda: rows, columns, None, ())

    def some(self, columns: tuple[int, ...], most: int = 2) -> tuple[int, ...]:
        """One or some of the columns."""
        return tuple(self.random.sample(columns, self.random.randint(1, min(most, len(columns)))))

    def predicate(self) -> Callable[[Any], bool]:
        """Whether a value is one of some."""
        chosen = {same(value) for value in DOMAIN if self.random.random() < 0.5}
        rest = self.random.random() < 0.5
        known = {same(value) for value in DOMAIN}
        return lambda value: same(value) in chosen if same(value) in known else rest

    def filter(self, depth: int) -> Operator:
        """WHERE."""
        child = self.operator(depth - 1)
        column, holds = self.random.choice(child.columns), self.predicate()
        return Rowwise(
            lambda rows: [row for row in rows if holds(row[column])],
            child.columns,
            None,
            (),
            child=child,
            passed={each: each for each in child.columns},
        )

    def project(self, depth: int) -> Operator:
        """Some of the columns, some under new numbers, and one that is made of another."""
        child = self.operator(depth - 1)
        kept = self.some(child.columns, 4)
        passed = {each if self.random.random() < 0.5 else self.new(): each for each in kept}
        made, of, holds = self.new(), self.random.choice(child.columns), self.predicate()

        def make(rows: Rows) -> Rows:
            return [
                {**{out: row[each] for out, each in passed.items()}, made: holds(row[of]) or None}
                for row in rows
            ]

        return Rowwise(make, (*passed, made), None, (), child=child, passed=passed)

    def explode(self, depth: int) -> Operator:
        """No, one or two rows of each, with their number."""
        child = self.operator(depth - 1)
        place, of, one, two = (
            self.new(),
            self.random.choice(child.columns),
            self.predicate(),
            self.predicate(),
        )

        def make(rows: Rows) -> Rows:
            return [
                {**row, place: float(number)}
                for row in rows
                for number in range(one(row[of]) + two(row[of]))
            ]

        passed = {each: each for each in child.columns}
        return Rowwise(make, (*child.columns, place), None, (), child=child, passed=passed)

    def expand(self, depth: int) -> Operator:
        """Each row, and once more without some of its values: ROLLUP."""
        child = self.operator(depth - 1)
        lost, place = self.some(child.columns), self.new()
        nulls = dict.fromkeys(lost)

        def make(rows: Rows) -> Rows:
            return [
                {**row, **more, place: number}
                for row in rows
                for number, more in enumerate(({}, nulls))
            ]

        passed = {each: each for each in child.columns if each not in lost}
        return Rowwise(make, (*child.columns, place), None, (), child=child, passed=passed)

    def join(self, depth: int) -> Operator:
        """A join of any kind, of two sides that differ."""
        sides = self.operator(depth - 1), self.below(depth)
        return self.joined(*self.random.sample(sides, 2))

    def self_join(self, depth: int) -> Operator:
        """A join of an operator with itself."""
        state = self.random.getstate()
        left = self.operator(depth - 1)
        self.random.setstate(state)
        return self.joined(left, self.operator(depth - 1))

    def joined(self, left: Operator, right: Operator) -> Operator:
        """A join of any kind."""
        kind: JoinKind = self.random.choice(get_args(JoinKind))
        pairs = tuple(
            (self.random.choice(left.columns), self.random.choice(right.columns))
            for _ in range(self.random.choice((0, 1, 1, 1, 2)))
        )
        more = self.compared(left, right) if not pairs or self.random.random() < 0.3 else None
        columns = {
            "semi": left.columns,
            "anti": left.columns,
            "exists": (*left.columns, self.new()),
        }
        made = Join(
            lambda one, other: join_of(made, one, other),
            columns.get(kind, (*left.columns, *right.columns)),
            None,
            (),
            kind=kind,
            left=left,
            right=right,
            pairs=pairs,
            condition=Matching(pairs, self.random.random() < 0.3, more),
        )
        return made

    def compared(self, left: Operator, right: Operator) -> Callable[[Row, Row], bool]:
        """A condition that isn't an equality."""
        one, other = self.random.choice(left.columns), self.random.choice(right.columns)
        mine, theirs = self.predicate(), self.predicate()
        return lambda row, of: mine(row[one]) and theirs(of[other])

    def group(self, depth: int) -> Operator:
        """GROUP BY, at times without any key, DISTINCT."""
        child = self.operator(depth - 1)
        by = () if self.random.random() < 0.1 else self.some(child.columns)
        keys = {each if self.random.random() < 0.5 else self.new(): each for each in by}
        made = {} if by and self.random.random() < 0.3 else {self.new(): self.aggregate(child)}

        def make(rows: Rows) -> Rows:
            groups: dict[tuple[Any, ...], Rows] = {} if by else {(): []}
            for row in rows:
                groups.setdefault(tuple([same(row[each]) for each in by]), []).append(row)
            return [
                {**dict(zip(keys, key, strict=True)), **{out: of(each) for out, of in made.items()}}
                for key, each in groups.items()
            ]

        return Group(make, (*keys, *made), tuple(keys), tuple(keys), child=child, keys=keys, by=by)

    def session(self, depth: int) -> Operator:
        """GROUP BY a key and a session, which is all that follows within a gap."""
        child = self.operator(depth - 1)
        by, time = self.random.choice(child.columns), self.random.choice(child.columns)
        key, start, made, of = self.new(), self.new(), self.new(), self.aggregate(child)

        def make(rows: Rows) -> Rows:
            timed = [row for row in rows if isinstance(row[time], float) and row[time] == row[time]]
            sessions: list[tuple[Any, float, Rows]] = []
            for row in sorted(timed, key=lambda row: (_order(row[by]), row[time])):
                if (
                    sessions
                    and sessions[-1][0] == same(row[by])
                    and row[time] - sessions[-1][2][-1][time] <= SESSION_GAP
                ):
                    sessions[-1][2].append(row)
                else:
                    sessions.append((same(row[by]), row[time], [row]))
            return [{key: value, start: began, made: of(each)} for value, began, each in sessions]

        keys = {key: by, start: time}
        return Group(
            make, (key, start, made), (key, start), (key,), child=child, keys=keys, by=(by,)
        )

    def aggregate(self, child: Operator) -> Callable[[Rows], Any]:
        """What is made of the rows of a group."""
        column, holds = self.random.choice(child.columns), self.predicate()
        return self.random.choice(
            (
                lambda rows: float(sum(holds(row[column]) for row in rows) % 3),
                lambda rows: min((same(row[column]) for row in rows), key=repr, default=None),
                lambda rows: repr(sorted(_order(row[column]) for row in rows)),
            )
        )

    def window(self, depth: int) -> Operator:
        """A column that depends on the rows of the same partition."""
        child = self.operator(depth - 1)
        by, made, of = self.some(child.columns), self.new(), self.aggregate(child)
        order = self.random.sample(child.columns, len(child.columns))
        ranked = self.random.random() < 0.4

        def make(rows: Rows) -> Rows:
            partitions: dict[tuple[Any, ...], Rows] = {}
            for row in rows:
                partitions.setdefault(tuple([same(row[each]) for each in by]), []).append(row)
            shown = []
            for each in partitions.values():
                if ranked:
                    each.sort(key=lambda row: [_order(row[column]) for column in order])
                value = of(each)
                shown += [
                    {**row, made: float(n) if ranked else value} for n, row in enumerate(each)
                ]
            return shown

        return Window(
            make, (*child.columns, made), None, by, child=child, by={each: each for each in by}
        )

    def union(self, depth: int) -> Operator:
        """UNION ALL."""
        branches = [self.operator(depth - 1), self.below(depth)]
        self.random.shuffle(branches)
        width = min(len(branch.columns) for branch in branches)
        shown = [self.random.sample(branch.columns, width) for branch in branches]
        columns = tuple(self.new() for _ in range(width))
        passed = tuple(dict(zip(columns, each, strict=True)) for each in shown)

        def make(*rows: Rows) -> Rows:
            return [
                {out: row[below] for out, below in of.items()}
                for of, each in zip(passed, rows, strict=True)
                for row in each
            ]

        return Union(make, columns, None, (), branches=tuple(branches), passed=passed)


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, whose ``group`` columns are any of its columns, and tables."""

    top: Operator
    algebra: PlainAlgebra


def _rows(rng: random.Random, name: str) -> Rows:
    width, keyed = TABLES[name]
    rows = []
    for number in range(rng.randint(0, 4)):
        row = {place: rng.choice(DOMAIN) for place in range(width)}
        rows.append({**row, 0: float(number)} if keyed else row)
    return rows


def _changed(rng: random.Random, name: str, rows: Rows) -> Rows:
    keyed = TABLES[name][1]
    rows = list(rows)
    for _ in range(rng.randint(1, 2)):
        chance, place = rng.random(), rng.randrange(max(1, len(rows)))
        fresh = {each: rng.choice(DOMAIN) for each in range(TABLES[name][0])}
        if rows and chance < 0.35:
            rows.pop(place)
        elif rows and chance < 0.7:
            rows[place] = {**fresh, 0: rows[place][0]} if keyed else fresh
        else:
            rows.append(
                {**fresh, 0: float(10 + len(rows) + rng.randint(0, 9) * 10)} if keyed else fresh
            )
    return list({row[0]: row for row in rows}.values()) if keyed else rows


def case(seed: int, depth: int = 4) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    top = Plans(rng).operator(rng.randint(1, depth))
    groups = rng.sample(top.columns, rng.randint(0, min(2, len(top.columns))))
    changing = rng.sample([*TABLES], rng.randint(1, 3))
    data: dict[str, dict[CutSide, Rows]] = {}
    for name in TABLES:
        old = _rows(rng, name)
        data[name] = {OLD: old, NEW: _changed(rng, name, old) if name in changing else old}
    small = frozenset(name for name in TABLES if rng.random() < 0.2)
    return Case(replace(top, group=tuple(groups)), PlainAlgebra(data, small))
