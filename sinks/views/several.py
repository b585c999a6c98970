"""Nodes of Spark's plan → operators: those with several rows per row, or several tables."""

from typing import Any, Final

from sinks.views.catalyst import is_kind
from sinks.views.node_reader import NodeReader
from sinks.views.nodes import is_span, time_in
from sinks.views.operators import (
    Operator,
    Rowwise,
    Union,
    Whole,
)

LIMITS: Final = ("GlobalLimit", "LocalLimit", "Offset")


def union(reader: NodeReader, node: Any) -> Operator:
    """Read every branch with its number, and nulls for the keys that only others have."""
    spark = reader.catalyst
    nodes = spark.each(node.children())
    branches = [reader.operator(each) for each in nodes]
    keys = [(place, key) for place, each in enumerate(branches) for key in reader.kept(each)]
    made = tuple(
        _branch(reader, branch, spark.output(of), place, keys)
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
    reader: NodeReader, branch: Operator, output: list[Any], place: int, keys: list[tuple[int, int]]
) -> Operator:
    """Return a branch with the columns of the union. ``keys`` are those of all branches."""
    spark = reader.catalyst
    mark = spark.alias(spark.integer(place), "branch")
    added = [(of == place, key, spark.new_number()) for of, key in keys]

    def make(below: Any) -> Any:
        there = spark.by_number(below)
        columns = [
            spark.alias(there[key] if own else spark.null(reader.types[key]), "key", number)
            for own, key, number in added
        ]
        return spark.project([*output, mark, *columns], below)

    numbers = [int(number.id()) for _, _, number in added]
    reader.types[spark.number(mark)] = spark.integers
    reader.texts[spark.number(mark)] = "which branch of the UNION"
    for number, (_, key) in zip(numbers, keys, strict=True):
        reader.types[number] = reader.types[key]
        reader.texts[number] = reader.texts.get(key, "")
    shown = tuple(map(spark.number, output))
    passed = {each: each for each in shown} | {
        int(number.id()): key for own, key, number in added if own
    }
    columns = (*shown, spark.number(mark), *numbers)
    return Rowwise(make, columns, None, (), child=branch, passed=passed)


def generate(reader: NodeReader, node: Any) -> Operator:
    """Read EXPLODE, for example. The number of an element is part of its key."""
    spark = reader.catalyst
    child = reader.operator(node.child())
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
        reader.named(column, "the place of the element")
    return Rowwise(
        lambda below: spark.generated(generator, node, listed, below),
        (*child.columns, *map(spark.number, listed)),
        key if place is not None else None,
        child.group,
        child=child,
        passed={number: number for number in child.columns},
    )


def expand(reader: NodeReader, node: Any) -> Operator:
    """Read several rows of each row (ROLLUP, overlapping windows), with their numbers."""
    spark = reader.catalyst
    child = reader.operator(node.child())
    places = [n for n, each in enumerate(spark.output(node)) if reader.wants(each)]
    output = [node.output().apply(n) for n in places]
    projections = [[row.apply(n) for n in places] for row in spark.each(node.projections())]
    own = list(map(spark.number, output))
    kept = [number for number in reader.kept(child) if number not in own]
    place = spark.attribute("place", spark.integers)
    passed = {number: number for number in kept}
    for index, number in enumerate(own):
        of = {_attribute(reader, projection[index]) for projection in projections}
        if len(of) == 1 and (below := of.pop()) is not None:
            passed[number] = below

    within = _times(reader, output, projections[0])

    def make(below: Any) -> Any:
        there = spark.by_number(below)
        more = [there[number] for number in kept]
        rows = [
            spark.sequence([*projection, *more, spark.integer(index)])
            for index, projection in enumerate(projections)
        ]
        return spark.expanded(rows, [*output, *more, place], below)

    number = reader.named(place, "which of several rows")
    key = None if child.row_key is None else (*child.row_key, number)
    return Rowwise(
        make,
        (*own, *kept, number),
        key,
        child.group,
        child=child,
        passed=passed,
        within=within,
    )


def _times(reader: NodeReader, output: list[Any], made: list[Any]) -> dict[int, int]:
    """Return the columns that are spans of time, and each one's time below."""
    spark = reader.catalyst
    times = {
        spark.number(column): time_in(spark, expression)
        for column, expression in zip(output, made, strict=True)
        if is_span(column)
    }
    return {span: time for span, time in times.items() if time is not None}


def _attribute(reader: NodeReader, expression: Any) -> int | None:
    """Return the number of a column. None: it isn't one."""
    if is_kind(expression, "AttributeReference"):
        return reader.catalyst.number(expression)
    return None


def limit(reader: NodeReader, node: Any) -> Operator:
    """Read LIMIT, with the rows in one order."""
    spark = reader.catalyst
    chain, below = [node], node.child()
    while is_kind(below, *LIMITS, "Project"):
        chain.append(below)
        below = below.child()
    order: list[Any] = []
    if is_kind(below, "Sort"):
        order, below = spark.each(below.order()), below.child()
    else:
        while is_kind(chain[-1], "Project"):
            below = chain.pop()
    child = reader.operator(below)
    key = child.row_key if child.row_key is not None else child.columns
    kept = reader.kept(child)
    reader.reasons.append("LIMIT")
    reader.definite.append("LIMIT: rows that are equal in ORDER BY are ordered by their key")

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
