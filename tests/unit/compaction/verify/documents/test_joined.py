"""Joined documents → their compared parts, and the tables compared for them."""

from typing import Any

from cdc.records.position import Lsn
from cdc.settings import Settings
from compaction.verify.documents.joined import ShownDocuments
from compaction.verify.options import VerifyOptions, compared_names
from sinks.search.joined.tree import Node

PARTS = Node("parts", "public.part", {}, (), many=True, gone=frozenset({"colour"}))
ITEMS = Node("", "public.item", {}, (), computed=(("a", "1"), ("b", "2")), embeds=(PARTS,))
BOOKS: dict[str, Any] = {
    "name": "books",
    "table": "public.book",
    "embed": [{"field": "writer", "table": "public.author", "on": {"id": "author"}}],
}


def line(document: dict[str, Any], version: int = 5) -> bytes:
    return ShownDocuments.of(ITEMS, {"b": "it depends on the time"}, Lsn(5)).line(
        "1", version, document
    )


def test_nulls_and_fields_of_dropped_columns_count_for_nothing() -> None:
    plain = line({"a": 1, "parts": [{"n": 1}, {"n": 2}]})
    assert plain == b'1\t1\t[{"n": 1}, {"n": 2}]\t\\N\n'
    parts = [{"n": 1, "colour": "red"}, {"n": 2, "name": None}]
    assert line({"parts": parts, "a": 1, "b": 7, "c": None}) == plain
    assert line({"a": 1, "parts": None}) == line({"a": 1})


def test_an_embedded_row_in_another_place_or_of_another_kind_is_a_difference() -> None:
    rows = [{"n": 1}, {"n": 2}]
    lines = [line({"parts": rows}), line({"parts": rows[::-1]}), line({"parts": ["n"]})]
    assert len({*lines, line({"parts": [{"n": "1"}, {"n": 2}]})}) == 4


def test_a_document_above_its_cut_has_its_version_told() -> None:
    assert line({}, 6) == b"1\t\\N\t\\N\t6\n"


def test_tables_that_documents_are_made_of_are_compared_whichever_sink_is_asked_for() -> None:
    settings = Settings.model_validate({
        "source": {},
        "capture": {"topic.prefix": "p"},
        "kafka": {"bootstrap.servers": "nowhere:1"},
        "lakehouse": {"path": "/nowhere"},
        "search": {"url": "http://nowhere:1", "documents": [BOOKS]},
    })  # fmt: skip

    def names(*tables: str, sinks: tuple[Any, ...] = ()) -> Any:
        return compared_names(settings, VerifyOptions(frozenset(tables), frozenset(sinks)))

    made_of = {"public.book", "public.author"}
    assert names() == {"lakehouse": None, "search": None}
    assert names(sinks=("search",)) == {"search": None, "lakehouse": made_of}
    assert names("books") == {"lakehouse": {"books"} | made_of, "search": {"books"}}
    assert names("public.tag", sinks=("search",)) == {"search": {"public.tag"}}
