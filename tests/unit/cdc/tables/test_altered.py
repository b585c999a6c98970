"""Two versions of a table's columns → the columns in which DDL changed rows' values."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings.modes import ColumnModes
from cdc.tables.schemas import altered_columns, numbered
from cdc.wal.messages import Relation, RelationColumn
from sinks.changes.generations import generations
from tests.fixtures.made_changes import NATIVE, patterns
from tests.fixtures.made_tables import COLUMNS, RELATION, tables
from tests.fixtures.spark import column, table_schema


def version(number: int, **columns: tuple[str, int, int]) -> TableSchema:
    """Each column has a type, its modifier, and a number."""
    oids = {"text": 25, "varchar": 1043, "int4": 23, "int8": 20, "numeric": 1700}
    made = [
        column(name, kind, number=attnum, modifier=modifier).model_copy(
            update={"type_oid": oids[kind]}
        )
        for name, (kind, modifier, attnum) in columns.items()
    ]
    return table_schema("p", "t", *made, version=number, oid=7)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


def all_of_them(_oid: int, names: Sequence[str]) -> Collection[str]:
    return names


@pytest.mark.parametrize(
    ("was", "now", "keeps"),
    [
        (("varchar", 14), ("varchar", 24), True),
        (("varchar", 14), ("text", -1), True),
        (("text", -1), ("varchar", 14), False),
        (("varchar", 24), ("varchar", 14), False),
        (("numeric", numeric(10, 2)), ("numeric", numeric(12, 2)), True),
        (("numeric", numeric(10, 2)), ("numeric", -1), True),
        (("numeric", numeric(10, 2)), ("numeric", numeric(6, 2)), False),
        (("numeric", numeric(10, 2)), ("numeric", numeric(12, 3)), False),
        (("numeric", -1), ("numeric", numeric(12, 3)), False),
        (("int4", -1), ("int8", -1), False),
    ],
)
def test_values_stay_where_a_type_only_has_more_room(
    was: tuple[str, int], now: tuple[str, int], *, keeps: bool
) -> None:
    before, after = version(1, c=(*was, 1)), version(2, c=(*now, 1))
    assert altered_columns(before, after, all_of_them) == ([] if keeps else ["c"])


@pytest.mark.parametrize(
    ("was", "now", "array", "keeps"),
    [
        (numeric(10, 2), numeric(12, 2), False, True),
        (numeric(10, 2), -1, False, False),
        (numeric(10, 2), numeric(39, 2), False, False),
        (numeric(39, 2), numeric(40, 2), False, True),
        (numeric(39, 2), -1, False, True),
        (numeric(10, 2), numeric(12, 2), True, False),
    ],
)
def test_a_key_is_read_again_where_derived_tables_tell_rows_apart_by_another_type(
    was: int, now: int, *, array: bool, keeps: bool
) -> None:
    """A decimal that becomes text: none of the two says that on its own."""
    before, after = (
        made.model_copy(
            update={
                "columns": tuple(
                    each.model_copy(update={"key": 1, "array": array}) for each in made.columns
                )
            }
        )
        for made in (version(1, c=("numeric", was, 1)), version(2, c=("numeric", now, 1)))
    )
    assert altered_columns(before, after, all_of_them) == ([] if keeps else ["c"])
    assert (generations([before, after]) == {1: 1, 2: 1}) is keeps


def test_a_column_is_the_one_with_its_number_where_all_have_one() -> None:
    before = version(1, a=("text", -1, 1), b=("int4", -1, 2))
    renamed = version(2, z=("text", -1, 1), b=("int4", -1, 2))
    assert altered_columns(before, renamed, all_of_them) == []
    made_anew = version(2, a=("text", -1, 3), b=("int4", -1, 2))
    assert altered_columns(before, made_anew, all_of_them) == ["a"]
    assert altered_columns(before, made_anew, lambda _oid, _names: ()) == []


def test_a_table_of_that_name_made_anew_is_read_by_others() -> None:
    before, after = version(1, a=("text", -1, 1)), version(2, a=("int4", -1, 1))
    assert altered_columns(before, after.model_copy(update={"oid": 8}), all_of_them) == []


def test_what_is_streamed_once_more_has_the_version_that_it_had() -> None:
    """A restart sees a table's earlier columns again, which are no new version."""
    schemas = tables().schemas
    one, two, three = (
        RELATION._replace(columns=(RelationColumn(True, "id", 23, -1), other))
        for other in (RelationColumn(True, name, 25, -1) for name in ("one", "two", "three"))
    )

    def streamed(relation: Relation, lsn: int) -> tuple[TableSchema, bool]:
        schema, records = schemas.streamed(relation, Position(1, Lsn(lsn), 1), lambda: COLUMNS)
        return schema, bool(records)

    first, second = streamed(one, 10)[0], streamed(two, 20)[0]
    assert streamed(two, 30) == (second, False)
    assert streamed(one, 15) == (first, False)
    third, is_new = streamed(three, 15)
    assert (third.version, is_new) == (3, True)
    changed_back, is_new = streamed(one, 30)
    assert (changed_back.version, is_new) == (4, True)


ID = ("int4", -1, 2)
TEXT = ("text", -1)
BEFORE = version(1, id=ID, a=(*TEXT, 4), b=(*TEXT, 5))


def without_numbers(schema: TableSchema) -> TableSchema:
    columns = (column.model_copy(update={"number": None}) for column in schema.columns)
    return schema.model_copy(update={"columns": tuple(columns)})


@pytest.mark.parametrize(
    ("between", "now", "numbers"),
    [
        ({"z": TEXT, "b": TEXT}, {"z": 4, "a": 5}, [2, 4, 5]),
        ({"z": TEXT, "a": TEXT}, {"b": 4, "a": 5}, [2, 4, 5]),
        ({"a": TEXT, "b": TEXT}, {"a": 4, "z": 5, "b": 6}, [2, 4, 5]),
        ({"z": TEXT}, {"y": 4}, [2, 4]),
        ({"z": TEXT, "b": TEXT}, {"z": 4}, [None] * 3),
        ({"z": TEXT}, {"z": 4, "b": 5}, [None] * 2),
        ({"z": TEXT, "b": ("int4", -1)}, {"z": 4, "b": 5}, [None] * 3),
    ],
    ids=[
        "renamed",
        "swapped",
        "named as one was",
        "dropped before",
        "dropped later",
        "less",
        "type",
    ],
)
def test_columns_in_between_are_those_that_were_there_before_and_are_there_now(
    between: dict[str, tuple[str, int]], now: dict[str, int], numbers: list[int | None]
) -> None:
    columns = version(2, id=ID, **{name: (*kind, 0) for name, kind in between.items()})
    listed = version(3, id=ID, **{name: (*TEXT, number) for name, number in now.items()}).columns
    told = numbered(without_numbers(columns).columns, BEFORE, described(listed))
    assert [column.number for column in told] == numbers
    assert [column.name for column in told] == ["id", *between]


def described(columns: tuple[Column, ...]) -> TableDescription:
    """What the catalog says of the table by now."""
    return TableDescription(
        7, TableName("public", "t"), columns, (), "d", frozenset(), partitioned=False, leaves=(),
        rows_estimated=0, block_bytes=8192, row_filter=None, signature="", entry=9,
    )  # fmt: skip


def test_rows_are_read_again_where_columns_may_have_been_renamed_and_nothing_tells() -> None:
    between = without_numbers(version(2, id=ID, b=(*TEXT, 0), a=(*TEXT, 0)))
    assert altered_columns(BEFORE, between, lambda *_: ()) == ["id", "b", "a"]
    after = version(3, id=ID, c=(*TEXT, 5), a=(*TEXT, 4))
    assert altered_columns(between, after, lambda *_: ()) == ["id", "c", "a"]
    same = version(3, id=ID, b=(*TEXT, 4), a=(*TEXT, 5))
    assert altered_columns(between, same, lambda *_: ()) == []


def test_a_column_that_is_left_out_is_another_version_and_read_once_it_is_not() -> None:
    mail = ColumnModes(exclude=patterns("public.t.email"))
    old, _ = tables().schemas.streamed(RELATION, Position(1, Lsn(10), 1), lambda: COLUMNS)
    made = tables(replace(NATIVE, columns=mail), schemas=(old,)).schemas
    new, records = made.streamed(RELATION, Position(1, Lsn(20), 1), lambda: COLUMNS)
    assert (new.version, len(records)) == (old.version + 1, 1)
    assert [column.name for column in new.event_columns] == ["id"]
    assert [column.name for column in new.columns] == ["id", "email"]
    assert made.streamed(RELATION, Position(1, Lsn(30), 1), lambda: COLUMNS) == (new, [])
    assert altered_columns(new, old, lambda *_: ()) == ["email"]
