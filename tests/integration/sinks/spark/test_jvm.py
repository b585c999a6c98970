"""Results of our own Java classes → the same as JSON's, a header's and Spark's own cast."""

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.spark.jvm import header_fields, json_rows, timestamp_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "`0:i` int, `1:I` bigint, `2:s` string, `3:a` array<string>, `4:d` double, `5:b` boolean, "
    "`6:h` smallint, _millrace_missing array<int>, _millrace_broken string"
)
NAMES = ["i", "I", "s", "a", "d", "b", "h"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "I": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | TEXTS,
        "a": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "d": st.none() | NUMBERS,
        "b": st.none() | st.booleans(),
        "h": st.none() | st.integers(-(2**15), 2**15 - 1),
        "other": st.recursive(
            st.none() | TEXTS | NUMBERS, lambda values: st.lists(values, max_size=3)
        ),
    },
)


@given(rows=st.lists(ROWS, min_size=1, max_size=40), escaped=st.booleans())
@settings(max_examples=10)
def test_a_row_has_its_values_and_says_what_it_lacks(
    spark: "SparkSession", rows: list[dict[str, Any]], escaped: bool
) -> None:
    texts = [(json.dumps(row, ensure_ascii=escaped),) for row in rows]
    frame = spark.createDataFrame(texts, "text string")
    for row, (parsed,) in zip(
        rows, frame.select(json_rows(frame["text"], SCHEMA)).collect(), strict=True
    ):
        assert [parsed[number] for number in range(len(NAMES))] == [row.get(name) for name in NAMES]
        lacking = {number for number, name in enumerate(NAMES) if name not in row}
        assert set(parsed["_millrace_missing"] or ()) == lacking
        assert parsed["_millrace_broken"] is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"i":1,"s":{"x": [1, 2]},"a":[[1,[2]],1.50,true]}', (1, '{"x": [1, 2]}')),
        ('{"i":2147483648,"s":"x"}', (None, "x")),
        ('{"i":1.0,"s":"x"}', (None, "x")),
        ('{"i":"1","s":"x"}', (None, "x")),
        ('{"b":0,"s":"x"}', (None, "x")),
        ('{"a":"x","s":"x"}', (None, "x")),
        ('{"I":9223372036854775808,"s":"x"}', (None, "x")),
        ('{"i":1,"s":"x"} {}', (1, "x")),
        ('{"i":1,"s":"x"', (None, None)),
        ("[]", (None, None)),
        ("null", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_is_of_another_type_is_broken(
    spark: "SparkSession", text: str, kept: tuple[object, object] | None
) -> None:
    frame = spark.createDataFrame([(text,)], "text string")
    ((parsed,),) = frame.select(json_rows(frame["text"], SCHEMA)).collect()
    whole = "[2]" in text
    assert parsed["_millrace_broken"] == (None if whole else text)
    assert (parsed["0:i"], parsed["2:s"]) == kept
    if whole:
        assert parsed["3:a"] == ["[1,[2]]", "1.50", "true"]


def test_timestamps_are_those_of_sparks_cast(spark: "SparkSession") -> None:
    draw = random.Random(1)  # noqa: S311 (texts to try, no secret)
    whole = "2024-02-29T23:59:59.123456Z"
    texts = [whole, "infinity", "", "Z", "2023-02-29T00:00:00Z", "0000-01-01T00:00:00Z"]
    texts += ["290308-12-21T19:59:27.6Z", "-0044-03-15T00:00:00Z", "2024-01-01T24:00:00Z"]
    for _ in range(2_000):
        year, month, day = draw.randint(0, 9999), draw.randint(0, 13), draw.randint(0, 32)
        hour, minute, second = draw.randint(0, 24), draw.randint(0, 60), draw.randint(0, 60)
        digits = draw.choice(["", ".", ".5", ".000001", ".123456", ".1234567"])
        text = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{digits}Z"
        if draw.random() < 0.2:
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(" 0x-:+Z") + text[at + draw.randint(0, 1) :]
        texts.append(text)
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    cast = frame["text"].try_cast("timestamp")
    differing = frame.where(~timestamp_of(frame["text"]).eqNullSafe(cast)).collect()
    assert differing == []
    assert frame.where(cast.isNotNull()).count() > len(texts) // 3


def test_headers_say_where_a_record_stands(spark: "SparkSession") -> None:
    position = "00000001.00000000000000ff.0000000000000003"
    others = [("x", b"y"), ("millrace.position", None)]
    expected = {
        f"{position}/7": (position, 255, 7, None, None),
        f"{position}/7/1,3": (position, 255, 7, "1,3", None),
        position: (position, 255, None, None, None),
        f"{position}/x": (position, 255, None, None, None),
        position.upper() + "/7": (None, None, 7, None, None),
        position.replace("00000001", "1") + "/7": (None, None, 7, None, None),
        position.replace(".00", ".ff", 1) + "/7": (
            position.replace(".00", ".ff", 1),
            None,
            7,
            None,
            None,
        ),
        "": (None, None, None, None, None),
    }
    rows: list[tuple[Any]] = [
        ([*others, ("millrace.position", text.encode())],) for text in expected
    ]
    rows += [(None,), ([],), ([("millrace.claim", b"c/1")],)]
    frame = spark.createDataFrame(rows, "headers array<struct<key string, value binary>>")
    fields = [row[0] for row in frame.select(header_fields(frame["headers"])).collect()]
    assert fields[-3] is None
    assert [tuple(row) for row in fields if row is not None] == [
        *expected.values(),
        (None, None, None, None, None),
        (None, None, None, None, "c/1"),
    ]
