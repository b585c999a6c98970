"""Nodes of Spark's plan → operators: row by row, groups, windows and joins."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.errors import ConfigError
from sinks.views.catalyst import Catalyst, is_kind
from sinks.views.node_reader import NodeReader
from sinks.views.operators import (
    Constant,
    Group,
    Join,
    JoinKind,
    Operator,
    Rowwise,
    Table,
    Whole,
    Window,
)
from sinks.views.query import HIDDEN

_SESSION: Final = "spark.sessionWindow"
_SPAN: Final = "spark.timeWindow"
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
_BY_RANK: Final = ("Rank", "DenseRank", "PercentRank", "CumeDist")
"""Window functions with equal results for rows that are equal in its order."""
_OF_FRAME: Final = ("NthValue", "First", "Last")
"""Functions that show one row of a frame."""


def local(reader: NodeReader, node: Any) -> Operator:
    """Read a table's leaf, or rows in the query itself."""
    spark = reader.catalyst
    name = spark.views.table(node)
    if name is None:
        return constant(reader, node)
    output = spark.by_number(node)
    wanted = [number for number in output if number in reader.wanted] or [*output][:1]
    names = {number: str(output[number].name()) for number in wanted}
    reader.types |= {number: each.dataType() for number, each in output.items()}
    keys = reader.keys.get(name, {})
    numbers = tuple(int(spark.new_number().id()) for _ in keys)
    names |= dict(zip(numbers, keys, strict=True))
    reader.types |= dict(zip(numbers, keys.values(), strict=True))
    reader.texts |= {
        number: f"rows of {name}" if key.startswith(HIDDEN) else f"{name}.{key}"
        for number, key in zip(numbers, keys, strict=True)
    }
    return Table(lambda: node, tuple(names), numbers or None, numbers, name=str(name), names=names)


def one_row(reader: NodeReader, node: Any) -> Operator:
    """Read SELECT without FROM: one row without columns."""
    del reader
    return Constant(lambda: node, (), (), ())


def constant(reader: NodeReader, node: Any) -> Operator:
    """Read rows in the query itself."""
    return Constant(lambda: node, reader.catalyst.numbers(node), None, ())


def project(reader: NodeReader, node: Any) -> Operator:
    """Read SELECT: columns and expressions."""
    spark = reader.catalyst
    child = reader.operator(node.child())
    columns = [each for each in spark.each(node.projectList()) if reader.wants(each)]
    passed: dict[int, int] = {}
    for column in columns:
        if is_kind(column, "AttributeReference"):
            passed[spark.number(column)] = spark.number(column)
        elif is_kind(column, "Alias") and is_kind(column.child(), "AttributeReference"):
            passed[spark.number(column)] = spark.number(column.child())
    made = [column for column in columns if is_kind(column, "Alias") and is_span(column)]
    spans = [(column, time_in(spark, column.child())) for column in made]
    within = {spark.number(column): time for column, time in spans if time is not None}
    own = {spark.number(column) for column in columns}
    kept = [number for number in reader.kept(child) if number not in own]
    passed |= {number: number for number in kept}

    def make(below: Any) -> Any:
        there = spark.by_number(below)
        return spark.project([*columns, *(there[number] for number in kept)], below)

    numbers = (*own, *kept)
    return Rowwise(
        make, numbers, child.row_key, child.group, child=child, passed=passed, within=within
    )


def is_span(column: Any) -> bool:
    """Whether ``window()`` makes it: tumbling or hopping, it includes its time."""
    return bool(column.metadata().contains(_SPAN))


def time_in(spark: Catalyst, expression: Any) -> int | None:
    """Return the number of the only column in an expression that uses it directly as a time."""
    if is_kind(expression, "PreciseTimestampConversion"):
        inner = expression.child()
        if is_kind(inner, "AttributeReference"):
            return spark.number(inner)
    if expression.references().size() != 1:
        return None
    below = [time_in(spark, each) for each in spark.each(expression.children())]
    times = {each for each in below if each is not None}
    return times.pop() if len(times) == 1 else None


def filtered(reader: NodeReader, node: Any) -> Operator:
    """Read WHERE and HAVING."""
    child = reader.operator(node.child())
    condition = node.condition()
    return Rowwise(
        lambda below: reader.catalyst.filter(condition, below),
        child.columns,
        child.row_key,
        child.group,
        child=child,
        passed={number: number for number in child.columns},
    )


def aggregate(reader: NodeReader, node: Any) -> Operator:
    """Read GROUP BY: one row for each group, or for all."""
    spark = reader.catalyst
    child = reader.operator(node.child())
    grouping = [each for each in spark.each(node.groupingExpressions()) if not each.foldable()]
    if any(not is_kind(each, "AttributeReference") for each in grouping):
        return reader.whole(node, "it groups by an expression that isn't a column")
    for each in grouping:
        if not spark.is_binary(each.dataType()):
            raise ConfigError(
                f"{each.name()}: its collation treats different texts as equal, so a group shows"
                " an arbitrary one of them",
                remedy="group by lower(…), or by it COLLATE UTF8_BINARY",
            )
    aggregates = spark.each(node.aggregateExpressions())
    own = {spark.number(each): spark.number(each) for each in grouping}
    keys = [spark.alias(each, f"key_{place}") for place, each in enumerate(grouping)]
    sessions = {spark.number(each) for each in grouping if each.metadata().contains(_SESSION)}
    if sessions and len(sessions) == len(grouping):
        return reader.whole(node, "its session windows have no other column to group by")
    by = tuple(number for number in own if number not in sessions)
    out = {
        reader.named(key, str(each.name())): spark.number(each)
        for key, each in zip(keys, grouping, strict=True)
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


def window(reader: NodeReader, node: Any) -> Operator:
    """Read functions over the rows of a partition."""
    spark = reader.catalyst
    partition = spark.each(node.partitionSpec())
    child = reader.operator(node.child())
    make = _ordered(reader, node, child)
    windows = tuple(map(spark.number, spark.each(node.windowExpressions())))
    if not all(is_kind(each, "AttributeReference") for each in partition) or not partition:
        reason = "a window " + (
            "over an expression that isn't a column" if partition else "without PARTITION BY"
        )
        reader.reasons.append(reason)
        columns = (*child.columns, *windows)
        return Whole(make, columns, child.row_key, (), below=(child,), reason=reason)
    aliases = [spark.alias(each, f"key_{place}") for place, each in enumerate(partition)]
    names = [str(each.name()) for each in partition]
    group = tuple(map(reader.named, aliases, names))
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
    return Window(make, (*below.columns, *windows), child.row_key, group, child=below, by=by)


def _ordered(reader: NodeReader, node: Any, child: Operator) -> Callable[[Any], Any]:
    """Return how to make the windows, with rows that are equal in their order as one."""
    spark = reader.catalyst
    by, order = spark.each(node.partitionSpec()), spark.each(node.orderSpec())
    windows = spark.each(node.windowExpressions())
    if not order and any(is_kind(each.child().windowFunction(), "RowNumber") for each in windows):
        raise ConfigError(  # Spark made it from a LIMIT, and left ORDER BY below
            "a subquery has a LIMIT for each row of the query around it",
            remedy="number its rows with row_number() OVER (PARTITION BY … ORDER BY …), and filter"
            " by the number",
        )
    open_ = [each for each in windows if _is_by_row(each)]
    if not open_:
        return lambda below: spark.windowed(windows, by, order, below)
    names = ", ".join(str(each.name()) for each in open_)
    reader.definite.append(f"{names}: rows that are equal in ORDER BY are ordered by their key")
    settled = [each for each in windows if each not in open_]
    key = child.row_key if child.row_key is not None else child.columns

    def make(below: Any) -> Any:
        there = spark.by_number(below)
        more = [spark.ascending(there[number]) for number in key]
        rows = spark.windowed(open_, by, [*order, *more], below)
        return spark.windowed(settled, by, order, rows) if settled else rows

    return make


def _is_by_row(window: Any) -> bool:
    """Whether the result depends on the order of rows that are equal in ORDER BY."""
    call = window.child() if is_kind(window, "Alias") else window
    function = call.windowFunction()
    if is_kind(function, *_BY_RANK):
        return False
    frame = str(call.windowSpec().frameSpecification())
    inner = function.aggregateFunction() if is_kind(function, "AggregateExpression") else function
    if "RangeFrame" in frame and is_kind(inner, *_OF_FRAME):
        raise ConfigError(
            f"{function.sql()} has several valid results: rows of its frame are equal in ORDER BY",
            remedy="give it a frame of rows: ROWS BETWEEN … AND …",
        )
    return "RowFrame" in frame


def join(reader: NodeReader, node: Any) -> Operator:
    """Read a join of two, of any kind that the rules support."""
    spark = reader.catalyst
    left, right = reader.operator(node.left()), reader.operator(node.right())
    type_ = node.joinType()
    name = str(type_.getClass().getSimpleName()).removesuffix("$")
    if name not in _JOINS:
        return reader.whole(node, f"a join of kind {type_.sql()}")
    kind = _JOINS[name]
    if kind == "full" and left.row_key is not None:
        left = _marked(reader, left, left.row_key)
    condition = node.condition()
    wanted = condition.get() if condition.isDefined() else None
    pairs = spark.pairs(wanted, set(left.columns), set(right.columns))

    own = (*left.columns, *right.columns)
    types = {number: reader.types[number] for number in own if number in reader.types}
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


def _marked(reader: NodeReader, side: Operator, key: tuple[int, ...]) -> Operator:
    """Add a column that is null if the side has no row, as its keys may be null anyway."""
    spark = reader.catalyst
    mark = spark.alias(spark.integer(1), "left")
    number = reader.named(mark, "whether the left side has a row")
    return Rowwise(
        lambda rows: spark.project([*spark.output(rows), mark], rows),
        (*side.columns, number),
        (number, *key),
        side.group,
        child=side,
        passed={each: each for each in side.columns},
    )


def unknown(reader: NodeReader, node: Any) -> Operator:
    """Read a node that the rules don't follow, or that reads other data."""
    if is_kind(node, "Sample"):
        raise ConfigError(
            "TABLESAMPLE has several valid results",
            remedy="choose rows by their key: WHERE pmod(xxhash64(id), 100) < 5",
        )
    if node.children().isEmpty():
        raise ConfigError(
            f"the query reads {node.nodeName()}, which isn't a table of the lakehouse",
            remedy="read captured tables, their histories, their changes, and other views",
        )
    return reader.whole(node, f"{node.nodeName()} isn't supported")
