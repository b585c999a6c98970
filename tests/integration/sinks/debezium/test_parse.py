"""Recorded topics of Debezium -> typed changes, in the columns of Millrace's own log."""

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from cdc.errors import SparkMissingError
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import DerivedTable
from sinks.changes.names import ABSENT, OP, OWN, POSITION
from sinks.changes.newest import latest
from sinks.changes.shape import derive_shape, plain_shape
from sinks.changes.types import spark_type
from sinks.debezium.described import TopicLayout
from sinks.debezium.envelope import with_avro
from sinks.debezium.parse import parse
from sinks.log.parse import parse as parse_own
from tests.fixtures.debezium_topics import (
    DEBEZIUM,
    MadeRegistry,
    Raw,
    as_avro,
    described,
    frame,
    in_avro,
    made_record,
    recorded,
)
from tests.fixtures.few import few
from tests.fixtures.spark import column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMAS = [
    ("schemas_typical", "cust"),
    ("schemas_temporal_decimal", "td"),
    ("schemas_temporal_connect_string", "td"),
    ("schemas_nanoseconds", "td"),
    ("schemas_isostring_double", "td"),
    ("null_vs_default_schemas", "nd"),
]


def rows(found: "DataFrame") -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in found.orderBy(POSITION).collect()]


def test_the_columns_are_those_of_our_own_log(spark: "SparkSession") -> None:
    columns = (column("id", "int4", 1), column("v", "text"), column("Id", "numeric"))
    value = '{"before":null,"after":{"id":1,"v":"x","Id":"1.5"},"op":"c","source":{"lsn":9}}'
    raw = frame(spark, [Raw(b'{"id":1}', value.encode())])
    topic = described(raw, DEBEZIUM, columns={one.name: one for one in columns})
    theirs = parse(raw, topic)
    own = table_schema("p", "t", *columns)
    ours = parse_own(
        spark.createDataFrame(
            [], "topic string, partition int, offset bigint, key string, value string, "
            "position string, schema_version int, filled string",
        ),
        plain_shape([own], OWN),
    )  # fmt: skip
    assert sorted(theirs.dtypes) == sorted(ours.dtypes)
    assert [one.name for one in topic.schema.key] == ["id"]


@pytest.mark.parametrize(
    ("case", "table"),
    [SCHEMAS[0], *(pytest.param(*each, marks=pytest.mark.proof) for each in SCHEMAS[1:])],
)
def test_avro_says_what_json_with_schemas_says(
    spark: "SparkSession", has_avro: None, case: str, table: str
) -> None:
    registry = MadeRegistry()
    json_frame = frame(spark, recorded(case, table))
    avro_frame = frame(spark, in_avro(case, table, registry))
    by_json = described(json_frame)
    by_avro = described(avro_frame, schema_of=registry.text_of)
    assert by_json.schema.columns == by_avro.schema.columns
    assert rows(parse(json_frame, by_json)) == rows(parse(avro_frame, by_avro))


@pytest.mark.proof
def test_temporal_values_and_decimals_mean_the_same_in_all_modes(spark: "SparkSession") -> None:
    first = {}
    for case, table in SCHEMAS[1:5]:
        raw = frame(spark, recorded(case, table))
        topic = described(raw)
        first[case] = rows(parse(raw, topic))[0]
    exact = first["schemas_temporal_decimal"]
    ten = datetime(2024, 1, 1, 10)  # noqa: DTZ001
    expected = {
        "d": date(2024, 1, 1), "t": 36_000_000_000, "t3": 36_000_000_000, "tz": "10:00:00Z",
        "ts": ten, "ts3": ten, "ts0": ten, "tsz": ten, "tsz3": ten, "iv": 86_400_000_000,
        "n": "1.5", "n52": Decimal("1.50"), "n100": Decimal(100), "m": "1.50",
        "dd": date(2024, 1, 2), "nd": Decimal("1.000"), "nf": "2.5", "da": [date(2024, 1, 1)],
        "na": [Decimal("1.50")], "tsa": [ten],
    }  # fmt: skip
    assert {name: exact[name] for name in expected} == expected
    temporal = ("d", "t", "t3", "tz", "ts", "ts3", "ts0", "tsz", "tsz3", "dd", "da", "tsa")
    for other in first.values():
        assert {name: other[name] for name in temporal} == {
            name: expected[name] for name in temporal
        }
    assert first["schemas_temporal_connect_string"]["n52"] == "1.50"
    assert first["schemas_isostring_double"]["n52"] == 1.5
    assert first["schemas_isostring_double"]["iv"] == "P0Y0M1DT0H0M0S"


@pytest.mark.proof
def test_text_is_a_decimal_where_that_was_told(spark: "SparkSession") -> None:
    raw = frame(spark, recorded("schemas_temporal_connect_string", "td"))
    topic = described(raw, types={"n52": "numeric(5,2)", "na": "numeric(5,2)[]", "n": "numeric"})
    first = rows(parse(raw, topic))[0]
    assert (first["n52"], first["na"], first["n"]) == (Decimal("1.50"), [Decimal("1.50")], "1.50")


TOAST = {
    "id": "int", "n": "int", "t": "text", "vc": "varchar", "jb": "jsonb", "j": "json",
    "ba": "bytea", "ta": "text[]", "ia": "int[]", "hs": "hstore", "nn": "text",
}  # fmt: skip


@pytest.mark.parametrize("case", few(["toast_default", "toast_placeholder_hex"], "toast_default"))
def test_placeholders_are_absent(spark: "SparkSession", case: str) -> None:
    from tests.integration.cdc.values.test_values_against_golden import modes

    raw = frame(spark, recorded(case, "to_default"))
    topic = described(raw, modes(case), types=TOAST)
    found = rows(parse(raw, topic))
    patchy = {"t", "vc", "jb", "j", "ba", "ta", "ia", "hs", "nn"}
    assert [set(row[ABSENT]) for row in found[:4]] == [set(), set(), patchy, patchy - {"t"}]
    updated = found[2]
    assert (updated["n"], {updated[name] for name in patchy}) == (100, {None})
    assert found[3]["t"] == "now short"
    assert found[0]["ba"] == b"\xab" * 3_000
    assert [row[OP] for row in found[-2:]] == ["delete", "delete"]
    assert found[-1]["id"] == 2


@pytest.mark.proof
@pytest.mark.usefixtures("has_avro")
def test_placeholders_in_avro_are_absent(spark: "SparkSession") -> None:
    word = "__debezium_unavailable_value"
    fields: dict[str, tuple[dict[str, Any], Any]] = {
        "id": ({"type": "int32"}, 1),
        "t": ({"type": "string"}, word),
        "b": ({"type": "bytes"}, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        "ta": ({"type": "array", "items": {"type": "string", "optional": True}}, [word]),
        "ia": ({"type": "array", "items": {"type": "int32", "optional": True}}, [*word.encode()]),
        "ba": (
            {"type": "array", "items": {"type": "bytes", "optional": True}},
            ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="],
        ),
        "ua": (
            {
                "type": "array",
                "items": {"type": "string", "optional": True, "name": "io.debezium.data.Uuid"},
            },
            ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        ),
        "h": (
            {
                "type": "map",
                "keys": {"type": "string", "optional": False},
                "values": {"type": "string", "optional": True},
            },
            {word: word},
        ),
        "kept": ({"type": "string"}, "here"),
    }  # fmt: skip
    registry = MadeRegistry()
    for raw, schema_of in (
        (frame(spark, [made_record(fields)]), None),
        (frame(spark, [as_avro(made_record(fields), registry)]), registry.text_of),
    ):
        topic = described(raw, schema_of=schema_of)
        (row,) = rows(parse(raw, topic))
        assert set(row[ABSENT]) == {"t", "b", "ta", "ia", "ba", "ua", "h"}
        assert row["kept"] == "here"


@pytest.mark.parametrize(
    ("table", "types", "left"),
    [
        (
            "pk_simple",
            {"id": "int", "v": "text"},
            {(10, "one"), (20, "TWO"), (5, "again")},
        ),
        pytest.param(
            "pk_comp",
            {"a": "int", "b": "text", "v": "text"},
            {(1, "xx", "v"), (3, "z", None)},
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "pk_full",
            {"id": "int", "v": "text"},
            {(10, "one"), (20, "TWO")},
            marks=pytest.mark.proof,
        ),
    ],
)
def test_changed_keys_leave_the_rows_that_the_source_has(
    spark: "SparkSession", table: str, types: dict[str, str], left: set[tuple[Any, ...]]
) -> None:
    raw = frame(spark, recorded("pk_update", table))
    topic = described(raw, types=types)
    newest = latest(parse(raw, topic), plain_shape([topic.schema], OWN)).where(f"{OP} = 'upsert'")
    assert {tuple(row) for row in newest.select(*types).collect()} == left


def test_positions_sort_by_the_offset_and_tell_the_lsn(spark: "SparkSession") -> None:
    raw = frame(
        spark,
        [one._replace(offset=place * 1_000) for place, one in enumerate(
            recorded("incremental_snapshot", "inc_a")
        )],
    )  # fmt: skip
    topic = described(raw, types={"id": "int", "v": "text"})
    found = rows(parse(raw, topic))
    positions = [row[POSITION].split(".") for row in found]
    assert [int(offset, 16) for _, offset, _ in positions] == [
        place * 1_000 for place in range(len(found))
    ]
    assert {epoch for epoch, _, _ in positions} == {"00000001"}
    rest = [lsn for row, (_, _, lsn) in zip(found, positions, strict=True) if row[OP] == "upsert"]
    assert rest == sorted(rest), "rows of an incremental snapshot come behind what was read then"
    assert int(rest[0], 16) > 0


@pytest.mark.proof
def test_numbers_keep_their_digits(spark: "SparkSession") -> None:
    raw = frame(spark, recorded("decimal_format_numeric", "dn"))
    types = {"k": "numeric(6,2)", "a": "numeric(10,3)", "f": "numeric", "m": "money"}
    topic = described(raw, types=types, decimal_numbers=True)
    found = rows(parse(raw, topic))
    first = {name: found[0][name] for name in types}
    assert first == {"k": Decimal("1.50"), "a": Decimal("2.125"), "f": "3.5", "m": "4.00"}
    value = (
        '{"before":null,"after":{"k":1.00,"a":1234567890123456789012345678.9012345678},"op":"c"}'
    )
    wide = frame(spark, [Raw(b'{"k":1.00}', value.encode())])
    types = {"k": "numeric(6,2)", "a": "numeric(38,10)"}
    topic = described(wide, types=types, decimal_numbers=True)
    assert rows(parse(wide, topic))[0]["a"] == Decimal("1234567890123456789012345678.9012345678")


def test_schemas_that_change_within_a_run(spark: "SparkSession") -> None:
    old = {
        "id": ({"type": "int32"}, 1),
        "v": ({"type": "string"}, "x"),
        "n": ({"type": "int32"}, 5),
    }
    new = {
        "id": ({"type": "int32"}, 2),
        "n": ({"type": "int64"}, 2**40),
        "added": ({"type": "string"}, "y"),
    }  # fmt: skip
    raw = frame(spark, [made_record(old), made_record(new)])
    topic = described(raw)
    assert {one.name: spark_type(one) for one in topic.schema.columns} == {
        "id": "int", "v": "string", "n": "bigint", "added": "string",
    }  # fmt: skip
    found = [(row["id"], row["v"], row["n"], row["added"]) for row in rows(parse(raw, topic))]
    assert found == [(1, "x", 5, None), (2, None, 2**40, "y")]
    assert all(row[ABSENT] == [] for row in rows(parse(raw, topic)))


@pytest.mark.proof
@pytest.mark.usefixtures("has_avro")
def test_a_topic_that_changed_from_json_to_avro(spark: "SparkSession") -> None:
    fields = {"id": ({"type": "int32"}, 1), "v": ({"type": "string"}, "x")}
    registry = MadeRegistry()
    without = b'{"before":null,"after":{"id":1,"v":"plain"},"op":"r"}'
    raw = frame(
        spark,
        [
            Raw(b'{"id":1}', without),
            made_record(fields),
            as_avro(made_record(fields | {"v": ({"type": "string"}, "z")}), registry),
        ],
    )
    types = {"id": "int", "v": "text"}
    topic = described(raw, types=types, schema_of=registry.text_of)
    assert [row["v"] for row in rows(parse(raw, topic))] == ["plain", "x", "z"]
    assert [layout.encoding for layout in topic.values] == ["plain", "json", "avro"]


def test_avro_without_a_decoder_says_what_is_missing(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_arguments: object) -> object:
        raise AnalysisException("[AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE] Cannot call FROM_AVRO")

    registry = MadeRegistry()
    fields = {"id": ({"type": "int32"}, 1), "v": ({"type": "string"}, "x")}
    raw = frame(spark, [as_avro(made_record(fields), registry)])
    topic = described(raw, schema_of=registry.text_of)
    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.withColumns", missing)
    with pytest.raises(SparkMissingError, match="Avro decoder"):
        with_avro(raw, topic)


BAD = {
    "not JSON": Raw(b'{"id":1}', b"garbage"),
    "no envelope": Raw(b'{"id":1}', b'{"id":1,"v":"x"}'),
    "an unknown operation": Raw(b'{"id":1}', b'{"before":null,"after":{"id":1},"op":"m"}'),
    "no row": Raw(b'{"id":1}', b'{"before":null,"after":null,"op":"c"}'),
    "another key": Raw(b'{"other":1}', b'{"before":null,"after":{"id":1},"op":"c"}'),
    "no key": Raw(None, b'{"before":null,"after":{"id":1},"op":"c"}'),
    "a member that nobody told": Raw(b'{"id":1}', b'{"after":{"id":1,"x":1},"op":"c"}'),
    "an Avro schema that wasn't seen": Raw(b'{"id":1}', b"\0\0\0\0\x07abc"),
}


@pytest.mark.parametrize("what", few(BAD, "not JSON"))
def test_what_is_no_record_of_the_table_ends_the_job(spark: "SparkSession", what: str) -> None:
    good = Raw(b'{"id":1}', b'{"before":null,"after":{"id":1,"v":"x"},"op":"c"}')
    topic = described(frame(spark, [good]), types={"id": "int", "v": "text"})
    raw = frame(spark, [good, BAD[what]])
    with pytest.raises(
        Exception, match=r"millrace: record at p[.]public[.]t:0:1 isn't a Debezium record"
    ):
        parse(raw, topic).collect()


VALUES = {
    "n": ("numeric(3,1)", '"AYaf"'),
    "d": ("date", "2147483647"),
    "ts": ("timestamp", "9223372036825200000"),
    "b": ("bytea", '"%%%"'),
    "f": ("numeric", '{"scale":0,"value":"' + "A" * 2_000 + '"}'),
    "b8": ("bit(8)", '"sQE="'),
    "b9": ("bit(9)", '"%%%"'),
}


@pytest.mark.parametrize("name", few(VALUES, "ts"))
def test_a_value_that_the_lakehouse_has_no_room_for_ends_the_job(
    spark: "SparkSession", name: str
) -> None:
    type_, value = VALUES[name]
    said = f'{{"before":null,"after":{{"id":1,"{name}":{value}}},"op":"c"}}'
    raw = frame(spark, [Raw(b'{"id":1}', said.encode())])
    topic = described(raw, types={"id": "int", name: type_})
    with pytest.raises(Exception, match=f"millrace: column {name} .* can't hold"):
        parse(raw, topic).collect()


@pytest.mark.parametrize("name", few(["n", "a"], "n"))
def test_a_message_tells_nothing_of_what_is_masked(spark: "SparkSession", name: str) -> None:
    types = {"id": "int", "n": "date", "a": "date[]"}
    values = {"n": "1", "a": "[1,null]"} | {name: "2147483647" if name == "n" else "[2147483647]"}
    members = ",".join(f'"{member}":{value}' for member, value in values.items())
    said = f'{{"before":null,"after":{{"id":1,{members}}},"op":"c"}}'
    raw = frame(spark, [Raw(b'{"id":1}', said.encode())])
    topic = described(raw, types=types)
    options = DerivedTable(source="public.t", mask={"n": "hash", "a": "hash"})
    masked = derive_shape([topic.schema], topic.schema.version, options, OWN, salt="s")
    with pytest.raises(Exception, match=f"masked column {name} .*") as error:
        parse(raw, topic, masked).collect()
    assert "214748" not in str(error.value).partition("JVM stacktrace")[0]


@pytest.mark.proof
def test_the_schema_of_an_earlier_run_reads_tombstones(spark: "SparkSession") -> None:
    types = {"id": "int", "v": "text"}
    first = described(
        frame(spark, [Raw(b'{"id":1}', b'{"after":{"id":1,"v":"x"},"op":"c"}')]), types=types
    )
    raw = frame(spark, [Raw(b'{"id":1}', None)])
    later: TopicLayout = described(raw, before=first.schema)
    stored = TableSchema.model_validate_json(first.schema.model_dump_json())
    assert later.schema == stored
    (row,) = rows(parse(raw, later))
    assert (row["id"], row["v"], row[OP]) == (1, None, "delete")
