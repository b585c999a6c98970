"""Random bounds of dropped partitions, and rows → the ended rows are those of a model.

The model is plain Python over the values of records. Spark's functions get the parsed values, with
the names and types of the derived table.
"""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cdc.events.fields import plan
from cdc.records.bounds import Bound
from cdc.records.fingerprint import PartitionLevel
from cdc.records.position import Position
from cdc.tables.ended import json_bounds
from sinks.changes.ended import changed, first_end, older, without_ended
from sinks.changes.ends import RowsEnd
from sinks.changes.names import OWN, POSITION
from sinks.changes.shape import TableShape, plain_shape
from sinks.changes.types import from_text, spark_type
from tests.fixtures.ended_rows import between, is_within, listed
from tests.fixtures.examples import examples
from tests.fixtures.made_changes import NATIVE
from tests.fixtures.spark import at, column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
KEY = (
    column("n", "int4", 1, number=1),
    column("day", "date", 2, number=2),
    column("moment", "timestamp", 3, number=3),
    column("at", "timestamptz", 4, number=4),
    column("sum", "numeric", 5, number=5, modifier=(4 << 16 | 2) + 4),
    column("where", "text", 6, number=6),
)
CHANGED = {"day": {"name": "date of it"}, "n": {"type": "int8"}}
"""Columns that are called otherwise by now, or have another type."""
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-3, 3),
    "day": st.integers(-400, 400),
    "moment": st.integers(-3, 3).map(lambda micros: 1_600_000_000_000_000 + micros),
    "at": st.integers(0, 5).map(lambda micros: f"2026-02-03T04:05:06.00000{micros}Z"),
    "sum": st.sampled_from(["-1.50", "0.00", "0.25", "9.99", "10.00"]),
    "where": st.sampled_from(["", "a", "b", "ä", "%", None]),
}
MODEL = {"sum": float}
"""Columns whose values don't compare as they are in records."""
POSITIONS = st.builds(at, st.integers(1, 9), st.integers(0, 2))
ROWS = st.lists(st.tuples(POSITIONS, st.fixed_dictionaries(VALUES)), min_size=1, max_size=60)


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    """A range over one or two columns, which may be empty, or a list of one column."""
    name = draw(st.sampled_from(list(VALUES)))
    if name == "where" or draw(st.integers(0, 3)) == 0:
        return listed(name, *draw(st.lists(VALUES[name], min_size=1, max_size=3)))
    names = [name, "n"] if name != "n" and draw(st.booleans()) else [name]
    ends = []
    for beyond in ("min", "max"):
        values = [draw(VALUES[column]) for column in names]
        known = draw(st.integers(0, len(values))) if draw(st.booleans()) else len(values)
        ends.append([*values[:known], *[beyond] * (len(values) - known)])
    return between(" ".join(names), *ends)


ENDS = st.lists(
    st.tuples(POSITIONS, st.lists(bounds(), max_size=2).map(tuple)), min_size=1, max_size=4
)


def compared(bound: Bound) -> Bound:
    """A bound with values that compare in Python as they do in PostgreSQL."""

    def value_of(name: str, value: Any) -> Any:
        return value if value is None else MODEL.get(name, lambda same: same)(value)

    def edges(of: Any) -> Any:
        pairs = zip(bound.columns, of, strict=False)
        return tuple(edge._replace(value=value_of(name, edge.value)) for name, edge in pairs)

    values = bound.values and tuple(value_of(bound.columns[0], value) for value in bound.values)
    return Bound(
        columns=bound.columns, lower=edges(bound.lower), upper=edges(bound.upper), values=values
    )


def text_of(value: Any) -> str | None:
    """A value as parsing gets it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def derived_shape() -> TableShape:
    """The table's columns, as the bounds' version and the newest have them."""
    now = [each.model_copy(update=CHANGED.get(each.name, {})) for each in KEY]
    versions = [
        table_schema("p", "t", *KEY, oid=7),
        table_schema("p", "t", *now, version=2, oid=7),
    ]
    return plain_shape(versions, OWN)


@settings(
    max_examples=examples(6),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes too long
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, ends=ENDS)
def test_rows_are_over_as_in_the_model(
    spark: "SparkSession",
    rows: list[tuple[Position, dict[str, Any]]],
    ends: list[tuple[Position, tuple[Bound, ...]]],
) -> None:
    from pyspark.sql import functions as F

    shape = derived_shape()
    planned = [
        RowsEnd(position=position, ts_us=number, bounds=within, schema_version=1)
        for number, (position, within) in enumerate(ends)
    ]
    texts = [
        (number, str(position), *(text_of(row[name]) for name in VALUES))
        for number, (position, row) in enumerate(rows)
    ]
    fields = sorted(shape.fields, key=lambda field: field.column.key or 0)
    names = [f"text_{number}" for number in range(len(fields))]
    raw = spark.createDataFrame(
        texts, f"number int, {POSITION} string, {', '.join(f'{name} string' for name in names)}"
    )
    parsed = raw.select(
        "number",
        POSITION,
        *(
            from_text(field.sources[1], F.col(text), field.type).alias(field.name)
            for field, text in zip(fields, names, strict=True)
        ),
    ).localCheckpoint()

    def ends_of(position: Position, row: dict[str, Any]) -> list[Position]:
        values = {name: MODEL.get(name, lambda same: same)(value) for name, value in row.items()}
        return [
            end.position
            for end in planned
            if position <= end.position and is_within([*map(compared, end.bounds)], values)
        ]

    expected = {number: min(ends_of(*row), default=None) for number, row in enumerate(rows)}
    over = older(planned, shape)
    assert over is not None
    found = parsed.select(
        "number",
        F.coalesce(over.goes(changed), F.lit(False)),
        over.deleted_at(changed),
        first_end(planned, shape, changed)["position"],
    ).collect()
    assert {number: position for number, _, position, _ in found} == {
        number: None if position is None else str(position) for number, position in expected.items()
    }
    assert all(goes == (position is not None) for _, goes, position, _ in found)
    left = without_ended(parsed, shape, planned).select("number").collect()
    assert sorted(row["number"] for row in left) == [
        number for number, position in expected.items() if position is None
    ]


def test_a_key_that_is_hashed_or_text_that_is_ordered_is_refused(spark: "SparkSession") -> None:
    from cdc.errors import SinkError

    del spark
    shape = derived_shape()
    end = RowsEnd(
        position=at(1), ts_us=1, bounds=(between("where", ["a"], ["b"]),), schema_version=1
    )
    with pytest.raises(SinkError, match="where"):
        older([end], shape)
    hashed = tuple(replace(field, hashed=True, type="string") for field in shape.fields)
    end = end.model_copy(update={"bounds": (listed("where", "a"),)})
    assert older([end], shape) is not None
    with pytest.raises(SinkError, match="mask"):
        older([end], replace(shape, fields=hashed))
    end = end.model_copy(update={"bounds": (listed("of no key", "a"),)})
    with pytest.raises(SinkError, match="isn't in the key") as raised:
        older([end], shape)
    assert "millrace snapshot --reset public.t;" in raised.value.remedy


YEARS = st.sampled_from([-4_711, 0, 1, 9_999, 10_000]) | st.integers(-4_711, 294_276)
MOMENTS = {"day": "", "moment": " 23:59:59.999999", "at": " 00:00:00+00"}


@settings(
    max_examples=examples(6),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(YEARS, st.sampled_from(["01-01", "12-31"])), min_size=9, max_size=40))
def test_bounds_are_said_that_derived_tables_can_hold(
    spark: "SparkSession", days: list[tuple[int, str]]
) -> None:
    from pyspark.sql import functions as F

    schema = table_schema("p", "t", *KEY, oid=7)
    fields = {field.name: field for field in plan(schema, NATIVE).key}
    columns = {column.name: column for column in KEY}
    texts = [
        (name, f"{year if year > 0 else 1 - year:04}-{day}{time}{'' if year > 0 else ' BC'}")
        for name, time in MOMENTS.items()
        for year, day in days
    ]
    rows = [(*each, text_of(fields[each[0]].of_text(each[1].encode()))) for each in texts]
    held = F.coalesce(
        *(
            F.when(
                F.col("name") == name,
                from_text(columns[name], F.col("value"), kind, unfit_is_null=True).isNotNull(),
            )
            for name, kind in ((name, spark_type(columns[name])) for name in MOMENTS)
        )
    )
    made = spark.createDataFrame(rows, "name string, text string, value string")
    for name, text, is_held in made.select("name", "text", held).collect():
        number = columns[name].number
        assert number is not None
        level = PartitionLevel(9, (number,), f"FOR VALUES IN ('{text}')")
        assert (json_bounds(schema, fields.values(), [level]) is not None) == is_held, text
