"""Documents → PostgreSQL's texts, and the documents in a wrong place."""

import hashlib
from typing import Any

import pytest

from cdc.records.position import Lsn
from cdc.records.schema import Column
from compaction.verify.documents.document_rules import compared_documents, field_of
from sinks.changes.shape import plain_shape
from tests.fixtures.spark import column, table_schema

OTHER = "\0"
"""What begins a text that no value has."""


def line(
    columns: list[Column], source: dict[str, Any], id_: str = "1", version: int = 5
) -> list[str]:
    """A document's line, cut into its fields."""
    schema = table_schema("log", "t", *columns)
    rules = compared_documents(plain_shape([schema], ()), {})
    return rules.line(source, id_, version, Lsn(5)).decode().rstrip("\n").split("\t")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int8", 9007199254740993, "9007199254740993"),
        ("int8", "1", None),
        ("int4", True, None),
        ("float4", 0.1, "0.1"),
        ("float8", "NaN", "NaN"),
        ("bool", False, "f"),
        ("bool", "false", None),
        ("numeric", "1.50", "1.50"),
        ("numeric", 1.5, None),
        ("text", "tab\there", "tab\\there"),
        ("text", 7, None),
        ("date", "2024-02-29", "2024-02-29"),
        ("timestamp", "2024-02-29T13:14:15.500000", "2024-02-29 13:14:15.5"),
        ("timestamp", "2024-02-29 13:14:15.500000", None),
        ("timestamptz", "2024-02-29T13:14:15.000000Z", "2024-02-29 13:14:15+00"),
        ("timestamptz", "2024-02-29T13:14:15.000000", None),
        ("time", "24:00:00.000000", "24:00:00"),
        ("bytea", "AP9c", "\\\\x00ff5c"),
        ("bytea", "?", None),
        ("point", "POINT (1.5 2)", "(1.5,2)"),
        ("point", "(1.5,2)", None),
        ("text", None, "\\N"),
    ],
)
def test_a_value_becomes_what_postgresql_prints(kind: str, value: Any, text: str | None) -> None:
    fields = line([column("id", "int4", 1), column("v", kind)], {"id": 1, "v": value})
    assert fields[0] == "1"
    assert fields[1] == text if text is not None else fields[1].startswith(OTHER)
    assert fields[2:] == ["\\N", "\\N"]


def test_an_array_has_its_elements_in_quotes() -> None:
    columns = [column("id", "int4", 1), column("v", "text", array=True)]
    assert line(columns, {"id": 1, "v": ["a", None, 'q"']})[1] == '{"a",NULL,"q\\\\""}'
    assert line(columns, {"id": 1, "v": []})[1] == "{}"
    assert line(columns, {"id": 1, "v": "a"})[1].startswith(OTHER)


@pytest.mark.parametrize(
    ("kinds", "values", "id_"),
    [
        (["text"], ["a"], "a"),
        (["bool"], [True], "true"),
        (["int4", "text"], [1, 'é"'], '["1","é\\""]'),
        (["text"], [""], "sha256:" + hashlib.sha256(b"").hexdigest()),
        (["text"], ["x" * 513], "sha256:" + hashlib.sha256(b"x" * 513).hexdigest()),
        (["text"], ["sha256:"], "sha256:" + hashlib.sha256(b"sha256:").hexdigest()),
    ],
)
def test_an_id_is_that_of_the_key(kinds: list[str], values: list[Any], id_: str) -> None:
    columns = [column(f"k{at}", kind, at + 1) for at, kind in enumerate(kinds)]
    source = {f"k{at}": value for at, value in enumerate(values)}
    assert line(columns, source, id_)[-2:] == ["\\N", "\\N"]
    assert line(columns, source, "another", 6)[-2:] == ["another", "6"], "nor of behind the instant"


@pytest.mark.parametrize(
    ("name", "field"), [("a.b", "a_b"), ("_id", "x_id"), (" ", "x "), (".a", "x_a"), ("ok", "ok")]
)
def test_a_column_has_one_field(name: str, field: str) -> None:
    assert field_of(name) == field
