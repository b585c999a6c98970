"""Spark's analysed plan of a view's query → operators, with the columns that rows are kept by.

From the tables up, every operator is given columns of its own, beside those that the query has: the
keys of all rows that one of its rows is made of, or of its group. They have numbers of their own at
each occurrence of a table, so that a join of a table with itself has no column twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import ConfigError
from sinks.views.catalyst import Catalyst, is_kind
from sinks.views.operators import (
    Constant,
    Group,
    Join,
    JoinKind,
    Operator,
    Rowwise,
    Table,
    Union,
    Whole,
    Window,
)

HIDDEN: Final = "_millrace_key_"
_SESSION: Final = "spark.sessionWindow"
_JOINS: Final[Mapping[str, JoinKind]] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
    "ExistenceJoin": "exists",
}
_LIMITS: Final = ("GlobalLimit", "LocalLimit", "Offset")
_BY_RANK: Final = ("Rank", "DenseRank", "PercentRank", "CumeDist")
"""Functions of a window that are the same for rows that are equal in its order."""
_OF_FRAME: Final = ("NthValue", "First", "Last")
"""Those that show one row of a frame."""
_UNORDERED: Final = ("MapType", "VariantType")


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """A query as operators, with the columns that come out of the topmost.

    ``columns`` are the user's by name and number, ``types`` theirs by name, ``hidden`` are those that
    rows are kept by beside them. Subqueries that stay expressions read the ``inner`` tables. ``reasons`` are why it can only be evaluated as a whole; none: it follows what changes.
    ``definite`` are the places where it had more than one right answer, and how that was decided.
    """

    top: Operator
    columns: tuple[tuple[str, int], ...]
    hidden: tuple[tuple[str, int], ...]
    types: Mapping[str, str]
    reasons: tuple[str, ...]
    definite: tuple[str, ...]
    is_timed: bool
    inner: Mapping[str, frozenset[str]]

    def used(self) -> dict[str, set[str]]:
        """The names of what it reads, and of the columns."""
        used: dict[str, set[str]] = {name: {*of} for name, of in self.inner.items()}
        for table in self.top.tables():
            used.setdefault(table.name, set()).update(table.names.values())
        return used

    def stored(self, numbers: tuple[int, ...]) -> list[str]:
        """What columns are called in the view's table."""
        names = {number: name for name, number in (*self.columns, *self.hidden)}
        return [names[number] for number in numbers]


@dataclass(slots=True)
class QueryReader:
    """Reads plans; ``keys`` are those of the tables by their names: columns, and their types."""

    catalyst: Catalyst
    keys: Mapping[str, Mapping[str, Any]]
    reasons: list[str] = field(default_factory=list)
    definite: list[str] = field(default_factory=list)
    _types: dict[int, Any] = field(default_factory=dict)

    def read(self, plan: Any) -> ViewQuery:
        """An analysed plan's operators."""
        spark = self.catalyst
        shown = [(str(each.name()), spark.number(each)) for each in spark.output(plan)]
        is_timed = bool(spark.views.asksForTime(plan))
        if is_timed:
            self.reasons.append("it asks for the time")
        top = self._operator(plan)
        top, columns = self._shown(top, plan, shown)
        if top.row_key is None:
            top = self._copies(top, plan, columns)
        kept = dict.fromkeys((*top.row_key, *top.group)) if top.row_key is not None else {}
        own = {number for _, number in columns}
        hidden = [number for number in kept if number not in own]
        return ViewQuery(
            top,
            tuple(columns),
            tuple((f"{HIDDEN}{place}", number) for place, number in enumerate(hidden, 1)),
            self._shown_types(plan),
            tuple(dict.fromkeys(self.reasons)),
            tuple(dict.fromkeys(self.definite)),
            is_timed,
            self._inner(plan),
        )

    def _shown_types(self, plan: Any) -> dict[str, str]:
        return {
            str(each.name()): str(each.dataType().simpleString())
            for each in self.catalyst.output(plan)
        }

    def _inner(self, plan: Any) -> dict[str, frozenset[str]]:
        """The tables of subqueries that stay expressions, with all of their columns."""
        columns: dict[str, frozenset[str]] = {}
        for text in self.catalyst.views.innerColumns(plan):
            name, _, column = str(text).partition("\t")
            columns[name] = columns.get(name, frozenset()) | {column}
        return columns

    def _shown(
        self, top: Operator, plan: Any, shown: list[tuple[str, int]]
    ) -> tuple[Operator, list[tuple[str, int]]]:
        """The topmost operator with each of the user's columns under a number of its own."""
        spark, seen, columns, added = (
            self.catalyst,
            set[int](),
            list[tuple[str, int]](),
            list[Any](),
        )
        passed = {number: number for number in top.columns}
        for attribute, (name, number) in zip(spark.output(plan), shown, strict=True):
            new = number
            if number in seen:
                alias = spark.alias(attribute, "again")
                added.append(alias)
                new = spark.number(alias)
                passed[new] = number
            seen.add(new)
            columns.append((name, new))
        if not added:
            return top, columns

        def make(child: Any) -> Any:
            return spark.project([*spark.by_number(child).values(), *added], child)

        return Rowwise(
            make, tuple(passed), top.row_key, top.group, child=top, passed=passed
        ), columns

    def _copies(self, top: Operator, plan: Any, columns: list[tuple[str, int]]) -> Operator:
        """Equal rows, told apart by a number: where there is no key, all columns are one."""
        spark = self.catalyst
        output = spark.by_number(plan)
        for name, number in columns:
            kind = output[number].dataType() if number in output else None
            if kind is not None and spark.has_type(kind, *_UNORDERED):
                raise ConfigError(
                    f"the query has rows without a key, and column {name} can't be compared",
                    remedy="select the keys of its tables from tables that have one, or leave the"
                    " column out",
                )
        copies = spark.new_number()

        def make(child: Any) -> Any:
            there = spark.by_number(child)
            return spark.numbered([there[each] for _, each in columns], copies, child)

        group = tuple(each for _, each in columns)
        copy = int(copies.id())
        by = {each: each for each in group}
        return Window(make, (*top.columns, copy), (*group, copy), group, child=top, by=by)

    def _operator(self, node: Any) -> Operator:
        reads: Mapping[str, Callable[[Any], Operator]] = {
            "Project": self._project,
            "Filter": self._filter,
            "Aggregate": self._aggregate,
            "Window": self._window,
            "Join": self._join,
            "Union": self._union,
            "Generate": self._generate,
            "Expand": self._expand,
            "Sort": lambda sort: self._operator(sort.child()),
            "OneRowRelation": self._one_row,
            "LocalRelation": self._local,
            "Range": self._constant,
            **dict.fromkeys(_LIMITS, self._limit),
        }
        kind = str(node.getClass().getSimpleName()).removesuffix("$")
        return reads.get(kind, self._unknown)(node)

    def _local(self, node: Any) -> Operator:
        """A table's leaf, or rows that the query itself has."""
        spark = self.catalyst
        name = spark.views.table(node)
        if name is None:
            return self._constant(node)
        output = spark.by_number(node)
        names = {number: str(attribute.name()) for number, attribute in output.items()}
        self._types |= {number: each.dataType() for number, each in output.items()}
        keys = self.keys.get(name, {})
        numbers = tuple(int(spark.new_number().id()) for _ in keys)
        names |= dict(zip(numbers, keys, strict=True))
        self._types |= dict(zip(numbers, keys.values(), strict=True))
        return Table(
            lambda: node, tuple(names), numbers or None, numbers, name=str(name), names=names
        )

    def _one_row(self, node: Any) -> Operator:
        return Constant(lambda: node, (), (), ())

    def _constant(self, node: Any) -> Operator:
        return Constant(lambda: node, self.catalyst.numbers(node), None, ())

    def _kept(self, operator: Operator) -> list[int]:
        """The columns that rows of an operator are kept by, which have to come up."""
        return [*dict.fromkeys((*(operator.row_key or ()), *operator.group))]

    def _project(self, node: Any) -> Operator:
        spark = self.catalyst
        child = self._operator(node.child())
        columns = spark.each(node.projectList())
        self._require_no_query(node)
        passed: dict[int, int] = {}
        for column in columns:
            if is_kind(column, "AttributeReference"):
                passed[spark.number(column)] = spark.number(column)
            elif is_kind(column, "Alias") and is_kind(column.child(), "AttributeReference"):
                passed[spark.number(column)] = spark.number(column.child())
        own = {spark.number(column) for column in columns}
        kept = [number for number in self._kept(child) if number not in own]
        passed |= {number: number for number in kept}

        def make(below: Any) -> Any:
            there = spark.by_number(below)
            return spark.project([*columns, *(there[number] for number in kept)], below)

        numbers = (*own, *kept)
        return Rowwise(make, numbers, child.row_key, child.group, child=child, passed=passed)

    def _filter(self, node: Any) -> Operator:
        child = self._operator(node.child())
        self._require_no_query(node)
        condition = node.condition()
        return Rowwise(
            lambda below: self.catalyst.filter(condition, below),
            child.columns,
            child.row_key,
            child.group,
            child=child,
            passed={number: number for number in child.columns},
        )

    def _aggregate(self, node: Any) -> Operator:
        spark = self.catalyst
        child = self._operator(node.child())
        self._require_no_query(node)
        grouping = [each for each in spark.each(node.groupingExpressions()) if not each.foldable()]
        if any(not is_kind(each, "AttributeReference") for each in grouping):
            return self._whole(node, "it groups by what isn't a column")
        aggregates = spark.each(node.aggregateExpressions())
        own = {spark.number(each): spark.number(each) for each in grouping}
        keys = [spark.alias(each, f"key_{place}") for place, each in enumerate(grouping)]
        sessions = {spark.number(each) for each in grouping if each.metadata().contains(_SESSION)}
        if sessions and len(sessions) == len(grouping):
            return self._whole(node, "its session windows have no other column to group by")
        by = tuple(number for number in own if number not in sessions)
        out = {
            self._named(key): spark.number(each) for key, each in zip(keys, grouping, strict=True)
        }
        visible = {
            spark.number(each): spark.number(
                each if is_kind(each, "AttributeReference") else each.child()
            )
            for each in aggregates
            if is_kind(each, "AttributeReference")
            or (is_kind(each, "Alias") and is_kind(each.child(), "AttributeReference"))
        }
        listed = node.groupingExpressions()

        def make(below: Any) -> Any:
            return spark.aggregate(listed, [*aggregates, *keys], below)

        return Group(
            make,
            (*map(spark.number, aggregates), *out),
            tuple(out),
            tuple(key for key, number in out.items() if number in by),
            child=child,
            keys={key: number for key, number in {**visible, **out}.items() if number in own},
            by=by,
        )

    def _window(self, node: Any) -> Operator:
        spark = self.catalyst
        partition = spark.each(node.partitionSpec())
        if not partition:
            return self._whole(node, "a window without PARTITION BY")
        if any(not is_kind(each, "AttributeReference") for each in partition):
            return self._whole(node, "a window over what isn't a column")
        child = self._operator(node.child())
        aliases = [spark.alias(each, f"key_{place}") for place, each in enumerate(partition)]
        group = tuple(map(self._named, aliases))
        by = dict(zip(map(spark.number, partition), group, strict=True)) | {
            number: number for number in group
        }
        same = {number: number for number in child.columns}
        below = Rowwise(
            lambda rows: spark.project([*spark.output(rows), *aliases], rows),
            (*child.columns, *group),
            child.row_key,
            group,
            child=child,
            passed=same | dict(zip(group, map(spark.number, partition), strict=True)),
        )
        make = self._ordered(node, child)
        windows = tuple(map(spark.number, spark.each(node.windowExpressions())))
        return Window(make, (*below.columns, *windows), child.row_key, group, child=below, by=by)

    def _ordered(self, node: Any, child: Operator) -> Callable[[Any], Any]:
        """How the windows are made, with rows that are equal in their order put in one."""
        spark = self.catalyst
        by, order = spark.each(node.partitionSpec()), spark.each(node.orderSpec())
        windows = spark.each(node.windowExpressions())
        open_ = [each for each in windows if self._is_by_row(each)]
        if not open_:
            return lambda below: spark.windowed(windows, by, order, below)
        names = ", ".join(str(each.name()) for each in open_)
        self.definite.append(f"{names}: rows that are equal in ORDER BY are ordered by their key")
        settled = [each for each in windows if each not in open_]
        key = child.row_key if child.row_key is not None else child.columns

        def make(below: Any) -> Any:
            there = spark.by_number(below)
            more = [spark.ascending(there[number]) for number in key]
            rows = spark.windowed(open_, by, [*order, *more], below)
            return spark.windowed(settled, by, order, rows) if settled else rows

        return make

    def _is_by_row(self, window: Any) -> bool:
        """Whether the result depends on the order of rows that are equal in ORDER BY."""
        call = window.child() if is_kind(window, "Alias") else window
        function = call.windowFunction()
        if is_kind(function, *_BY_RANK):
            return False
        frame = str(call.windowSpec().frameSpecification())
        inner = (
            function.aggregateFunction() if is_kind(function, "AggregateExpression") else function
        )
        if "RangeFrame" in frame and is_kind(inner, *_OF_FRAME):
            raise ConfigError(
                f"{function.sql()} has several right answers: rows of its frame are equal in"
                " ORDER BY",
                remedy="give it a frame of rows: ROWS BETWEEN … AND …",
            )
        return "RowFrame" in frame

    def _join(self, node: Any) -> Operator:
        spark = self.catalyst
        self._require_no_query(node)
        left, right = self._operator(node.left()), self._operator(node.right())
        type_ = node.joinType()
        name = str(type_.getClass().getSimpleName()).removesuffix("$")
        if name not in _JOINS:
            return self._whole(node, f"a join of kind {type_.sql()}")
        kind = _JOINS[name]
        if kind == "full" and left.row_key is not None:
            left = self._marked(left, left.row_key)
        condition = node.condition()
        wanted = condition.get() if condition.isDefined() else None
        pairs = spark.pairs(wanted, set(left.columns), set(right.columns))

        own = (*left.columns, *right.columns)
        types = {number: self._types[number] for number in own if number in self._types}
        types |= {spark.number(each): each.dataType() for each in spark.output(node)}

        def make(one: Any, other: Any) -> Any:
            return spark.joined(one, other, type_, wanted)

        if kind in {"semi", "anti", "exists"}:
            flag = (spark.number(type_.exists()),) if kind == "exists" else ()
            columns, key, group = (*left.columns, *flag), left.row_key, left.group
        else:
            columns = (*left.columns, *right.columns)
            both = left.row_key is not None and right.row_key is not None
            key = (*(left.row_key or ()), *(right.row_key or ())) if both else None
            group = (*left.group, *right.group)
        return Join(
            make,
            columns,
            key,
            group,
            kind=kind,
            left=left,
            right=right,
            pairs=pairs,
            condition=wanted,
            types=types,
        )

    def _marked(self, side: Operator, key: tuple[int, ...]) -> Operator:
        """A side with a column that is null where its rows are: its keys may be null anyway."""
        spark = self.catalyst
        mark = spark.alias(spark.integer(1), "left")
        number = self._named(mark)
        return Rowwise(
            lambda rows: spark.project([*spark.output(rows), mark], rows),
            (*side.columns, number),
            (number, *key),
            side.group,
            child=side,
            passed={each: each for each in side.columns},
        )

    def _union(self, node: Any) -> Operator:
        """Every branch with its number, and nulls for the keys that only others have."""
        spark = self.catalyst
        nodes = spark.each(node.children())
        branches = [self._operator(each) for each in nodes]
        keys = [(place, key) for place, each in enumerate(branches) for key in self._kept(each)]
        made = tuple(
            self._branch(branch, spark.output(of), place, keys)
            for place, (branch, of) in enumerate(zip(branches, nodes, strict=True))
        )
        columns = made[0].columns
        mark, *own = columns[len(columns) - len(keys) - 1 :]
        number = dict(zip(keys, own, strict=True))
        parts = [*enumerate(branches)]
        keyed = all(each.row_key is not None for each in branches)
        return Union(
            lambda *rows: spark.union(rows),
            columns,
            (mark, *(number[place, key] for place, each in parts for key in each.row_key or ()))
            if keyed
            else None,
            (mark, *(number[place, key] for place, each in parts for key in each.group)),
            branches=made,
            passed=tuple(dict(zip(columns, each.columns, strict=True)) for each in made),
        )

    def _branch(
        self, branch: Operator, output: list[Any], place: int, keys: list[tuple[int, int]]
    ) -> Operator:
        """A branch with the columns of the union; ``keys`` are those of all branches."""
        spark = self.catalyst
        mark = spark.alias(spark.integer(place), "branch")
        added = [(of == place, key, spark.new_number()) for of, key in keys]

        def make(below: Any) -> Any:
            there = spark.by_number(below)
            columns = [
                spark.alias(there[key] if own else spark.null(self._types[key]), "key", number)
                for own, key, number in added
            ]
            return spark.project([*output, mark, *columns], below)

        numbers = [int(number.id()) for _, _, number in added]
        self._types[spark.number(mark)] = spark.integers
        self._types |= {
            number: self._types[key] for number, (_, key, _) in zip(numbers, added, strict=True)
        }
        shown = tuple(map(spark.number, output))
        passed = {each: each for each in shown} | {
            int(number.id()): key for own, key, number in added if own
        }
        columns = (*shown, spark.number(mark), *numbers)
        return Rowwise(make, columns, None, (), child=branch, passed=passed)

    def _generate(self, node: Any) -> Operator:
        """EXPLODE and the like; the number of an element is part of its key."""
        spark = self.catalyst
        child = self._operator(node.child())
        made = spark.each(node.generatorOutput())
        generator, place = node.generator(), None
        if is_kind(generator, "PosExplode"):
            place, listed = made[0], made
        elif is_kind(generator, "Explode"):
            place = spark.attribute("place", spark.integers)
            generator, listed = spark.pos_explode(generator.child()), [place, *made]
        else:
            listed = made
        key = child.row_key
        if place is not None and key is not None:
            key = (*key, spark.number(place))
        for column in listed:
            self._named(column)
        return Rowwise(
            lambda below: spark.generated(generator, node, listed, below),
            (*child.columns, *map(spark.number, listed)),
            key if place is not None else None,
            child.group,
            child=child,
            passed={number: number for number in child.columns},
        )

    def _expand(self, node: Any) -> Operator:
        """Several rows of each row (ROLLUP, windows that overlap), with their numbers."""
        spark = self.catalyst
        child = self._operator(node.child())
        output = spark.each(node.output())
        projections = [spark.each(each) for each in spark.each(node.projections())]
        own = list(map(spark.number, output))
        kept = [number for number in self._kept(child) if number not in own]
        place = spark.attribute("place", spark.integers)
        passed = {number: number for number in kept}
        for index, number in enumerate(own):
            of = {self._attribute(projection[index]) for projection in projections}
            if len(of) == 1 and (below := of.pop()) is not None:
                passed[number] = below

        def make(below: Any) -> Any:
            there = spark.by_number(below)
            more = [there[number] for number in kept]
            rows = [
                spark.sequence([*projection, *more, spark.integer(index)])
                for index, projection in enumerate(projections)
            ]
            return spark.expanded(rows, [*output, *more, place], below)

        number = self._named(place)
        key = None if child.row_key is None else (*child.row_key, number)
        return Rowwise(make, (*own, *kept, number), key, child.group, child=child, passed=passed)

    def _attribute(self, expression: Any) -> int | None:
        """The number of a column; None: it is something else."""
        if is_kind(expression, "AttributeReference"):
            return self.catalyst.number(expression)
        return None

    def _limit(self, node: Any) -> Operator:
        """LIMIT, with the rows in one order."""
        spark = self.catalyst
        chain, below = [node], node.child()
        while is_kind(below, *_LIMITS, "Project"):
            chain.append(below)
            below = below.child()
        order: list[Any] = []
        if is_kind(below, "Sort"):
            order, below = spark.each(below.order()), below.child()
        else:
            while is_kind(chain[-1], "Project"):
                below = chain.pop()
        child = self._operator(below)
        key = child.row_key if child.row_key is not None else child.columns
        kept = self._kept(child)
        self.reasons.append("LIMIT")
        self.definite.append("LIMIT: rows that are equal in ORDER BY are ordered by their key")

        def make(rows: Any) -> Any:
            there = spark.by_number(rows)
            more = [spark.ascending(there[number]) for number in key]
            made = spark.sorted([*order, *more], rows)
            for each in reversed(chain):
                if is_kind(each, "Project"):
                    columns = spark.each(each.projectList())
                    own = {spark.number(column) for column in columns}
                    hidden = [there[number] for number in kept if number not in own]
                    made = spark.project([*columns, *hidden], made)
                else:
                    made = each.withNewChildren(spark.sequence([made]))
            return made

        numbers = tuple(dict.fromkeys((*spark.numbers(node), *kept)))
        return Whole(make, numbers, child.row_key, (), below=(child,), reason="LIMIT")

    def _named(self, column: Any) -> int:
        """The number of a column of ours, whose type is remembered."""
        number = self.catalyst.number(column)
        self._types[number] = column.dataType()
        return number

    def _unknown(self, node: Any) -> Operator:
        if node.children().isEmpty():
            raise ConfigError(
                f"the query reads {node.nodeName()}, which isn't a table of the lakehouse",
                remedy="read captured tables, their histories, their changes, and other views",
            )
        return self._whole(node, f"{node.nodeName()} isn't followed")

    def _whole(self, node: Any, reason: str) -> Operator:
        """An operator as it is, on what its children show to the user."""
        spark = self.catalyst
        self.reasons.append(reason)
        children = spark.each(node.children())
        below = tuple(map(self._operator, children))
        shown = [spark.output(child) for child in children]

        def make(*rows: Any) -> Any:
            own = [spark.project(columns, each) for columns, each in zip(shown, rows, strict=True)]
            return node.withNewChildren(spark.sequence(own))

        return Whole(make, spark.numbers(node), None, (), below=below, reason=reason)

    def _require_no_query(self, node: Any) -> None:
        """Note where an expression has a query of its own, whose tables the rules don't follow."""
        if self.catalyst.views.hasSubquery(node):
            self.reasons.append("a scalar subquery that isn't correlated")
