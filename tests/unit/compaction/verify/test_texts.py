"""Texts that verify reads by its own rules: keys in COPY's form, arrays, times with zones."""

import pytest

from compaction.verify.arrays import Nested, elements
from compaction.verify.hashed import key_texts
from compaction.verify.rules import _money, _timetz


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1", ("1",)),
        (b"1\ta\\tb\\\\n", ("1", "a\tb\\n")),
        (b"\\N\t", (None, "")),
        (b"", ("",)),
    ],
)
def test_a_key_is_what_copy_has_written(text: bytes, expected: tuple[str | None, ...]) -> None:
    assert key_texts(text) == expected


@pytest.mark.parametrize(
    ("text", "delimiter", "expected"),
    [
        ("{}", ",", []),
        ('{1,NULL,"NULL","a\\"b\\\\c",""}', ",", ["1", None, "NULL", 'a"b\\c', ""]),
        ("{{1,2},{3,NULL}}", ",", [["1", "2"], ["3", None]]),
        ("{(1,2),(0,0);(3,4),(0,0)}", ";", ["(1,2),(0,0)", "(3,4),(0,0)"]),
    ],
)
def test_an_array_is_its_elements(text: str, delimiter: str, expected: Nested) -> None:
    assert elements(text, delimiter) == expected


@pytest.mark.parametrize("text", ["", "1", "{1", '{"1}', "{1}x", "[2:3]={7,8}", "{1}{2}"])
def test_what_is_no_array_of_usual_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        elements(text)


def test_other_forms_are_those_that_the_log_has() -> None:
    assert _timetz(b"13:14:15.5+02") == b"13:14:15.5+02:00"
    assert _timetz(b"13:14:15+00") == b"13:14:15Z"
    assert _timetz(b"13:14:15-03:30") == b"13:14:15-03:30"
    assert _money(b"-$1,234.50") == b"-1234.50"
