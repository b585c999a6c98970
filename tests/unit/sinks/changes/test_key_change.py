"""Schema versions → those with the same identity of rows: another key begins a new generation."""

import pytest

from cdc.errors import SinkError
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import DerivedTable
from sinks.changes.ends import RowsEnd
from sinks.changes.generations import (
    begins_read,
    earlier_shapes,
    forgotten_end,
    generations,
    require_one,
)
from sinks.changes.names import OWN
from sinks.changes.shape import TableShape, derive_shape, plain_shape
from sinks.run.rekeyed import has_other_key, versions_at
from tests.fixtures.spark import at, column, table_schema


def version(number: int, *columns: tuple[str, str, int | None, int]) -> TableSchema:
    """Columns by name, type, place in the key, and PostgreSQL's number; from LSN 100 on, 200 …."""
    made = (column(name, kind, key=key, number=place) for name, kind, key, place in columns)
    schema = table_schema("p", "t", *made, version=number, oid=7)
    return schema.model_copy(update={"since": str(at(100 * number))})


BEGUN = version(1, ("id", "int4", 1, 1), ("code", "text", None, 2))
SAME = {
    "as it was": (("id", "int4", 1, 1), ("code", "text", None, 2)),
    "renamed": (("ident", "int4", 1, 1), ("code", "text", None, 2)),
    "widened": (("id", "int8", 1, 1), ("code", "text", None, 2)),
    "another column": (("id", "int4", 1, 1), ("v", "text", None, 3)),
}
OTHER = {
    "another column's": (("id", "int4", None, 1), ("code", "text", 1, 2)),
    "more": (("id", "int4", 1, 1), ("code", "text", 2, 2)),
    "of another type": (("id", "text", 1, 1), ("code", "text", None, 2)),
    "another one by that name": (("id", "int4", 1, 5), ("code", "text", None, 2)),
    "none": (("id", "int4", None, 1), ("code", "text", None, 2)),
}
CODE = OTHER["another column's"]


@pytest.mark.parametrize("columns", SAME.values(), ids=SAME)
def test_a_key_that_holds_the_same_values_is_the_same(
    columns: tuple[tuple[str, str, int | None, int], ...],
) -> None:
    versions = [BEGUN, version(2, *columns)]
    assert generations(versions) == {1: 1, 2: 1}
    assert not has_other_key(versions, 1)
    require_one(versions)


@pytest.mark.parametrize("columns", OTHER.values(), ids=OTHER)
def test_another_key_begins_a_new_generation(
    columns: tuple[tuple[str, str, int | None, int], ...],
) -> None:
    versions = [BEGUN, version(2, *columns), version(3, *columns)]
    assert generations(versions) == {1: 1, 2: 2, 3: 2}
    assert has_other_key(versions, 1)
    assert not has_other_key(versions, 2)
    with pytest.raises(SinkError, match="the table's key has changed"):
        require_one(versions)


def test_a_key_that_is_changed_back_is_a_third_one() -> None:
    other = version(2, *OTHER["more"])
    versions = [BEGUN, other, version(3, *SAME["as it was"])]
    assert generations(versions) == {1: 1, 2: 2, 3: 3}
    assert has_other_key(versions, 1)


def test_the_order_of_a_key_is_part_of_it() -> None:
    one = version(1, ("id", "int4", 1, 1), ("code", "text", 2, 2))
    other = version(2, ("id", "int4", 2, 1), ("code", "text", 1, 2))
    assert generations([one, other]) == {1: 1, 2: 2}
    assert plain_shape([one, other], OWN).keys == ["code", "id"]


def test_a_cut_has_no_generation_that_begins_behind_it() -> None:
    renamed, other = version(2, *SAME["renamed"]), version(3, *OTHER["more"])
    versions = [BEGUN, renamed, other]
    assert versions_at(versions, at(150)) == [BEGUN, renamed], "a record may be of that"
    assert versions_at(versions, at(299)) == [BEGUN, renamed]
    assert versions_at(versions, at(300)) == versions
    assert versions_at([BEGUN, renamed], at(150)) == [BEGUN, renamed]


def test_rows_are_of_the_new_key_once_all_have_ended_since_it_came() -> None:
    versions = [BEGUN, version(2, *OTHER["more"])]
    assert not begins_read(versions, [])
    assert not begins_read(versions, [RowsEnd(position=at(150), ts_us=0)])
    assert begins_read(versions, [RowsEnd(position=at(200).just_before(), ts_us=0)])
    assert begins_read(versions, [RowsEnd(position=at(250), ts_us=0)])


def test_a_key_is_in_every_record_though_the_column_was_one_that_an_update_may_lack() -> None:
    begun = version(1, ("id", "int4", 1, 1), ("code", "text", None, 2), ("v", "text", None, 3))
    other = version(2, ("id", "int4", None, 1), ("code", "text", 1, 2), ("v", "text", None, 3))
    back = version(3, *((c.name, c.type, c.key, c.number or 0) for c in begun.columns))
    assert plain_shape([begun], OWN).patchy == ["code", "v"]
    assert plain_shape([begun, other], OWN).patchy == ["v"]
    now = plain_shape([begun, other, back], OWN)
    assert now.patchy == ["code", "v"]
    options = DerivedTable.model_construct(source="public.t")
    (_, between) = earlier_shapes(now, 1, {}, options, 1)
    assert (between.keys, between.patchy) == (["code"], ["v"])


@pytest.mark.parametrize("hidden", [{"mask": {"id": "null"}}, {"unfit": {"id": "null"}}])
def test_a_history_tells_rows_of_before_apart_by_columns_that_are_not_null(
    hidden: dict[str, dict[str, str]],
) -> None:
    versions = [BEGUN, version(2, *CODE)]

    def earlier(**more: object) -> list[TableShape]:
        options = DerivedTable.model_validate({"source": "public.t", "kind": "history", **more})
        shape = derive_shape(versions, 1, options, OWN)
        return earlier_shapes(shape, 1, {}, options, 1)

    with pytest.raises(SinkError, match="were in the key up to schema version 1 can't be null: id"):
        earlier(**hidden)
    assert earlier(mask={"id": "hash"})[0].keys == ["id"]
    (left_out,) = earlier(exclude=["id"], **hidden)
    assert left_out.keys == ["_millrace_key_1"]
    assert not any(field.nulled or field.unfit_is_null for field in left_out.fields)


def test_a_topic_without_versions_names_both_keys_by_their_types() -> None:
    with pytest.raises(SinkError, match=r"changed: id \(int4\) → id \(text\)"):
        require_one([BEGUN, version(2, *OTHER["of another type"])])


def test_rows_under_an_earlier_key_end_before_the_next_one_whose_read_the_log_has_forgotten() -> (
    None
):
    """Compaction keeps the last TRUNCATE, which is of the third key's read."""
    versions = [BEGUN, version(2, *CODE), version(3, *SAME["as it was"])]
    first, second, third = versions
    last = RowsEnd(position=at(350), ts_us=0)
    assert forgotten_end(versions, first, [last]) == at(200).just_before()
    assert forgotten_end(versions, second, [last]) is None
    assert forgotten_end(versions, third, [last]) is None
    kept = RowsEnd(position=at(250), ts_us=0)
    assert forgotten_end(versions, first, [kept, last]) is None
