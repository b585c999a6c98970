"""A key → its slice, the same in Python, SQL and Spark."""

import re
import subprocess
from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.records.schema import Column
from compaction.verify.slices import Slice, SlicedKeys, sliced_keys
from sinks.changes.shape import plain_shape
from tests.fixtures.spark import column, table_schema

SLICES = [Slice(number, 7) for number in range(1, 8)]


def sliced(*key: Column) -> SlicedKeys | str:
    return sliced_keys(Slice(3, 7), plain_shape([table_schema("t", "t", *key)], ()))


@pytest.mark.parametrize("texts", [("1",), ("a", "b"), ("",), (None, "é"), ("\ud800",)])
def test_each_key_is_in_one_slice(texts: tuple[str | None, ...]) -> None:
    assert sum(slice_.holds(texts) for slice_ in SLICES) == 1


def test_slices_have_the_same_size_and_leave_nothing_out() -> None:
    counts = [sum(slice_.holds([str(number)]) for number in range(7000)) for slice_ in SLICES]
    assert sum(counts) == 7000
    assert all(900 < count < 1100 for count in counts)
    bounds = [slice_.bounds for slice_ in SLICES]
    assert bounds[0][0] == "0" * 16
    assert [end for _, end in bounds] == [*(first for first, _ in bounds[1:]), None]


def test_the_only_slice_has_all_rows() -> None:
    assert Slice.parse("1/1").bounds == ("0" * 16, None)


@pytest.mark.parametrize("text", ["0/7", "8/7", "3", "3/0", "a/b", "-1/7", "3/1000000", "3/7 "])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="isn't a slice"):
        Slice.parse(text)


def test_a_key_is_sliced_by_texts_that_both_sides_have() -> None:
    keys = sliced(column("id", "int4", 2), column("day", "date", 1), column("n", "int4"))
    assert isinstance(keys, SlicedKeys)
    assert keys.sources == ("day", "id")
    assert keys.at_source() == (
        'left(md5(convert_to(concat_ws(E\'\\x1f\', "day", "id"), \'UTF8\')), 16) COLLATE "C"'
        " >= '4924924924924925' AND"
        ' left(md5(convert_to(concat_ws(E\'\\x1f\', "day", "id"), \'UTF8\')), 16) COLLATE "C"'
        " < '6db6db6db6db6db7'"
    )


@pytest.mark.parametrize("kind", ["float8", "time", "timetz", "money"])
def test_a_key_that_has_another_text_here_cannot_be_sliced(kind: str) -> None:
    assert sliced(column("k", kind, 1)) == (
        "its key can't be compared by slice: k has another text here"
    )


def test_a_table_without_a_key_cannot_be_sliced() -> None:
    assert sliced(column("k", "int4")) == "it has no key, so it can't be compared by slice"


@pytest.mark.parametrize("winter_night", [0, 3], ids=["one time all year", "in October"])
def test_the_crontab_in_the_guide_names_each_slice_once_in_so_many_nights(
    winter_night: int,
) -> None:
    """At 02:30 in Helsinki: UTC+3 in the first nights, UTC+2 in the others."""
    guide = Path(__file__).parents[4] / "docs/guides/verify.md"
    (line,) = re.findall(
        r"verify --slice (\S.*)/7$", guide.read_text(encoding="utf-8"), re.MULTILINE
    )
    command = line.replace("\\%", "%").replace("$(date +%s)", "$NOW")
    named = [
        subprocess.run(
            ["/bin/sh", "-c", f"echo {command}/7"],
            env={"NOW": str(night * 86_400 + (-1_800 if night - 20_000 < winter_night else 1_800))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for night in range(20_000, 20_007)
    ]
    assert {Slice.parse(text) for text in named} == {*SLICES}
