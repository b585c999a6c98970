"""Values that a record lacks → distinguished from its nulls, with any column names."""

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from cdc.records.position import Lsn, Position
from cdc.records.schema import Column
from sinks.changes.names import ABSENT, OWN
from sinks.changes.shape import plain_shape
from sinks.log.parse import parse
from sinks.log.records import RAW
from tests.fixtures.spark import column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SEPARATORS = {"compact": (",", ":"), "spaced": (", ", ": ")}
SOURCE = {"version": "0", "name": "p", "txId": None, "xmin": None, "origin": None}


def changes(
    spark: "SparkSession",
    columns: list[Column],
    rows: list[dict[str, Any]],
    separators: tuple[str, str] = (",", ":"),
    before: dict[str, Any] | None = None,
) -> "DataFrame":
    """Updates to these rows, parsed."""
    place = str(Position(1, Lsn(1), 1))
    records: list[tuple[Any, ...]] = []
    for row in rows:
        envelope = {
            "before": before,
            "after": row,
            "source": SOURCE,
            "transaction": None,
            "op": "u",
        }
        value = json.dumps(envelope, separators=separators, ensure_ascii=False)
        records.append(("t", 0, len(records), '{"id":1}', value, place, 1, 1, None, None, 0))
    schema = table_schema("p", "t", *columns)
    return parse(spark.createDataFrame(records, RAW), plain_shape([schema], OWN))


@pytest.mark.parametrize("form", SEPARATORS)
@pytest.mark.parametrize(
    "name",
    ["v", "origin", "after", "transaction", "source", "xmin", 'q"uote', "Größe", "a.b", "op"],
)
def test_a_null_is_no_absent_value_nor_the_other_way_round(
    spark: "SparkSession", name: str, form: str
) -> None:
    columns = [column("id", "int4", 1), column(name, "text"), column("other", "text")]
    rows: list[dict[str, Any]] = [
        {"id": 1, name: None, "other": f'"{name}":null'},
        {"id": 1, "other": f'"{name}":null'},
        {"id": 1, name: "x", "other": None},
        {"id": 1, name: "", "other": 'a "after":{"b":1}'},
    ]
    nulls = {"id": None, name: None, "other": None}  # of a key that changed
    parsed = changes(spark, columns, rows, SEPARATORS[form], before=nulls).collect()
    assert [row[ABSENT] for row in parsed] == [[], [name], [], []]
    assert [row[name] for row in parsed] == [None, None, "x", ""]
    assert [row["other"] for row in parsed] == [row["other"] for row in rows]


def test_a_column_that_had_the_name_before_may_have_had_any_type(spark: "SparkSession") -> None:
    """It was dropped, and made again: of its values nothing is wanted."""
    key = column("id", "int4", 1, number=1)
    again = [column("c", "text", number=2), column("c", "int4", number=3)]
    versions = [
        table_schema("p", "t", key, each, version=number, oid=7)
        for number, each in enumerate(again, 1)
    ]
    place = str(Position(1, Lsn(1), 1))
    rows = [(1, "x"), (2, 5)]
    records = [
        (
            "t", 0, number, f'{{"id":{number}}}',
            json.dumps({"after": {"id": number, "c": value}, "op": "c"}), place, 1, number,
            None, None, 0,
        )
        for number, value in rows
    ]  # fmt: skip
    parsed = parse(spark.createDataFrame(records, RAW), plain_shape(versions, OWN)).collect()
    assert [(row["id"], row["c"]) for row in parsed] == [(1, None), (2, 5)]


def test_values_come_as_what_they_are(spark: "SparkSession") -> None:
    columns = [
        column("id", "int8", 1),
        column("b", "bool"),
        column("s", "int2"),
        column("f", "float4"),
        column("d", "float8"),
        column("l", "text", array=True),
        column("i", "int4", array=True),
        column("t", "text"),
    ]
    whole: dict[str, Any] = {
        "id": 2**62,
        "b": False,
        "s": -3,
        "f": 0.1,
        "d": "NaN",
        "l": ["a", None],
        "i": [1],
    }
    others: dict[str, Any] = {
        "id": -1,
        "b": None,
        "s": None,
        "f": None,
        "d": 1e300,
        "l": [],
        "i": None,
    }
    first, second = changes(spark, columns, [whole | {"t": "7"}, others | {"t": ""}]).collect()
    assert (first["id"], first["b"], first["s"], first["t"]) == (2**62, False, -3, "7")
    assert (first["d"] != first["d"], second["d"], second["t"]) == (True, 1e300, "")
    assert (first["l"], first["i"], second["l"], second["i"]) == (["a", None], [1], [], None)
    assert first["f"] == pytest.approx(0.1)


@pytest.mark.parametrize("value", ["text", 1.5, 2**70, True, [1]])
def test_a_value_of_another_type_is_no_null(spark: "SparkSession", value: object) -> None:
    columns = [column("id", "int4", 1), column("n", "int4")]
    with pytest.raises(PySparkException, match="millrace: "):
        changes(spark, columns, [{"id": 1, "n": value}]).collect()
