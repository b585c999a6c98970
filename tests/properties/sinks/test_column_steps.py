"""Random schema versions of a table → planned steps from the existing columns to the wanted ones.

They also lead there from any state in between. A commit has all steps, but no plan checks which
are done.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SinkError
from cdc.records.schema import Column, TableSchema
from cdc.settings.lakehouse import DerivedTable
from sinks.changes.names import OWN, POSITION
from sinks.changes.shape import TableShape, derive_shape
from sinks.delta.columns import DropColumn, LoggedField, TableColumns, column_id, plan_steps
from tests.fixtures.spark import column, table_schema

NAMES = st.sampled_from(["id", "Id", "ID", "a", "A", "a__2", "b", "a__dropped1", "a b"])
TYPES = ["int2", "int4", "int8", "text"]
Columns = dict[int, Column]
OWN_FIELD: LoggedField = {"name": POSITION, "type": "string", "nullable": True, "metadata": {}}
EMPTY = TableColumns((OWN_FIELD,), (), {})


def added(columns: Columns, number: int, name: str, kind: str) -> Columns:
    if name in {column.name for column in columns.values()}:
        return columns
    return {**columns, number: column(name, kind, number=number)}


@st.composite
def changed(draw: st.DrawFn, columns: Columns, number: int) -> Columns:
    """The columns after an ALTER TABLE, a swap of names, or a column that is made again."""
    kind = draw(st.sampled_from(["add", "rename", "swap", "drop", "again", "type"]))
    if kind == "add" or len(columns) < 2:
        return added(columns, number, draw(NAMES), draw(st.sampled_from(TYPES)))
    one, other = draw(st.permutations([*columns]).map(lambda numbers: numbers[:2]))
    was = columns[one]
    rest = {key: value for key, value in columns.items() if key != one}
    match kind:
        case "drop":
            return rest
        case "again":
            return added(rest, number, was.name, draw(st.sampled_from(TYPES)))
        case "rename":
            name = draw(NAMES)
            taken = name in {column.name for column in rest.values()}
            return columns if taken else {**columns, one: was.model_copy(update={"name": name})}
        case "swap":
            names = {one: columns[other].name, other: was.name}
            renamed = {key: columns[key].model_copy(update={"name": names[key]}) for key in names}
            return {**columns, **renamed}
        case _:
            return {**columns, one: was.model_copy(update={"type": draw(st.sampled_from(TYPES))})}


@st.composite
def histories(draw: st.DrawFn) -> list[TableSchema]:
    """The versions of a table, with one or more changes between each two."""
    columns: Columns = {1: column("key", "int4", 1, number=1)}
    versions, number = [], 2
    for version in range(1, draw(st.integers(2, 6)) + 1):
        for _ in range(draw(st.integers(1, 3))):
            key = {1: columns[1]}
            others = {of: column for of, column in columns.items() if of != 1}
            columns = {**key, **draw(changed(others, number))}
            number += 1
        listed = [columns[of] for of in sorted(columns)]
        versions.append(table_schema("p", "t", *listed, version=version))
    return versions


def shape_of(versions: Sequence[TableSchema]) -> TableShape:
    options = DerivedTable(source="public.t", incompatible="new_column")
    return derive_shape(versions, 1, options, OWN)


def assert_reached(columns: TableColumns, shape: TableShape) -> None:
    """The table has what is wanted, each column under its id; and no two under one name."""
    lowered = [name.lower() for name in columns.names]
    assert len(lowered) == len({*lowered})
    assert plan_steps(columns, shape.fields) == ()
    names = {column_id(field): field["name"] for field in columns.fields}
    assert {of.id: of.name for of in shape.fields}.items() <= names.items()


@given(versions=histories(), drops=st.booleans(), data=st.data())
def test_steps_lead_to_what_is_wanted_from_wherever_a_run_has_ended(
    versions: list[TableSchema], drops: bool, data: st.DataObject
) -> None:
    columns = EMPTY.after(plan_steps(EMPTY, shape_of(versions[:1]).fields))
    for number in range(2, len(versions) + 1):
        shape = shape_of(versions[:number])
        dropped = shape.dropped if drops else ()
        steps = plan_steps(columns, shape.fields, dropped)
        if not drops:
            assert not [step for step in steps if isinstance(step, DropColumn)]
            assert len(columns.after(steps).fields) >= len(columns.fields)
        in_between = columns.after(steps[: data.draw(st.integers(0, len(steps)))])
        if data.draw(st.booleans()):  # the next run has a newer version by then
            columns = in_between
            continue
        finished = in_between.after(plan_steps(in_between, shape.fields, dropped))
        assert_reached(finished, shape)
        columns = columns.after(steps)
        assert_reached(columns, shape)
    shape = shape_of(versions)
    columns = columns.after(plan_steps(columns, shape.fields, shape.dropped if drops else ()))
    assert_reached(columns, shape)
    if drops:
        left = {column_id(field) for field in columns.fields} - {field.id for field in shape.fields}
        assert left.isdisjoint(shape.dropped), "others had another type"


def standing(*columns: Column) -> TableColumns:
    return EMPTY.after(plan_steps(EMPTY, shape_of([table_schema("p", "t", *columns)]).fields))


def test_what_cannot_be_done_is_refused_before_anything_is_changed() -> None:
    there = standing(column("id", "int4", 1, number=1), column("a", "text", number=2))
    wanted = shape_of(
        [table_schema("p", "t", column("id", "int4", 1, number=1), column("b", "int4", number=2))]
    ).fields
    other = [field for field in there.fields if field["name"] == "a"]
    foreign = TableColumns((*there.fields, {**other[0], "name": "B", "metadata": {}}), (), {})
    with pytest.raises(SinkError, match="a column b that Millrace didn't create"):
        plan_steps(foreign, wanted)
    partitioned = TableColumns(there.fields, ("a",), {})
    with pytest.raises(SinkError, match="column a must be removed, but it partitions the table"):
        plan_steps(partitioned, wanted, {"1:a"})
    bound = TableColumns(there.fields, (), {"delta.constraints.short": "length(A) < 5"})
    with pytest.raises(SinkError, match="constraint short of the table uses column a"):
        plan_steps(bound, wanted, {"1:a"})


def test_a_column_whose_type_was_another_is_no_other_one_once_its_name_was_given_away() -> None:
    key = column("id", "int4", 1, number=1)
    versions = [
        table_schema("p", "t", key, column("a", "int4", number=2)),
        table_schema(
            *("p", "t", key, column("a", "text", number=2), column("b", "int4", number=3)),
            version=2,
        ),
        table_schema(
            *("p", "t", key, column("b", "text", number=2), column("a", "int4", number=3)),
            version=3,
        ),
    ]
    ids = [[field.id for field in shape_of(versions[:upto]).fields] for upto in (2, 3)]
    assert ids == [["1:id", "2:a", "2:b"]] * 2


def test_a_type_that_does_not_widen_is_refused() -> None:
    there = standing(column("id", "int4", 1, number=1), column("a", "text", number=2))
    versions = [
        table_schema("p", "t", column("id", "int4", 1, number=1), column("a", "text", number=2))
    ]
    options = DerivedTable(source="public.t", types={"a": "int"})
    wanted = derive_shape(versions, 1, options, OWN).fields
    with pytest.raises(SinkError, match="column a has type string and can't become int"):
        plan_steps(there, wanted)


def test_a_widened_column_tells_its_older_types_unless_files_are_rewritten() -> None:
    narrow = table_schema("p", "t", column("id", "int4", 1, number=1))
    wide = table_schema("p", "t", column("id", "int8", 1, number=1), version=2)
    there = standing(*narrow.columns)
    steps = plan_steps(there, shape_of([narrow, wide]).fields)
    (_, field) = there.after(steps).fields
    assert field["type"] == "long"
    assert field["metadata"]["delta.typeChanges"] == [{"fromType": "integer", "toType": "long"}]
    (_, field) = there.after(steps, rewritten=True).fields
    assert "delta.typeChanges" not in field["metadata"]
