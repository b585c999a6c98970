"""The documents that a search for a dropped partition's rows returns, and the deleted ones."""

from typing import Any

import pytest
from opensearchpy import OpenSearch

from cdc.errors import SinkUnreachableError
from cdc.records.bounds import Bound
from cdc.records.schema import Column
from sinks.changes.ended import BoundColumn
from sinks.changes.names import OWN
from sinks.changes.shape import plain_shape
from sinks.search.documents import mapping
from sinks.search.ended import _hits, _InDocuments, _names
from tests.fixtures.ended_rows import between, listed
from tests.fixtures.spark import column, table_schema

DAY = column("day", "date", 1, number=1)
NUMBER = column("n", "int8", 2, number=2)
SUM = column("sum", "numeric", 3, number=3)
PLACE = column("place", "text", 4, number=4)
MAPPING = mapping(table_schema("p", "t", DAY, NUMBER, SUM, PLACE))["properties"]


def of(bound: Bound, *columns: Column) -> _InDocuments:
    return _InDocuments([[each.name] for each in columns], list(columns), bound)


@pytest.mark.parametrize(
    ("bound", "columns", "document", "holds"),
    [
        (between("n", [5], [10]), [NUMBER], {"n": 5}, True),
        (between("n", [5], [10]), [NUMBER], {"n": 10}, False),
        (between("n", ["min"], [10]), [NUMBER], {"n": -100}, True),
        (between("n", [5], ["max"]), [NUMBER], {}, False),
        (between("sum", ["9.5"], ["10.0"]), [SUM], {"sum": "9.50"}, True),
        (between("sum", ["9.5"], ["10.0"]), [SUM], {"sum": "10.00"}, False),
        (between("day n", ["2026-01-01", 5], ["2026-01-02", "min"]), [DAY, NUMBER],
         {"day": "2026-01-01", "n": 4}, False),
        (between("day n", ["2026-01-01", 5], ["2026-01-02", "min"]), [DAY, NUMBER],
         {"day": "2026-01-01", "n": 6}, True),
        (between("day n", ["2026-01-01", 5], ["2026-01-02", "min"]), [DAY, NUMBER],
         {"day": "2026-01-02", "n": 6}, False),
        (listed("place", "a", None), [PLACE], {}, True),
        (listed("place", "a", None), [PLACE], {"place": "b"}, False),
    ],
)  # fmt: skip
def test_a_documents_key_tells_whether_its_row_was_in_the_partition(
    bound: Bound, columns: list[Column], document: dict[str, Any], holds: bool
) -> None:
    assert of(bound, *columns).holds(document) is holds


def test_a_search_goes_by_the_first_column_where_its_field_is_ours() -> None:
    days = of(between("day n", ["2026-01-01", 5], ["2026-01-02", "min"]), DAY, NUMBER)
    assert days.clause(MAPPING) == [{"range": {"day": {"gte": "2026-01-01", "lte": "2026-01-02"}}}]
    assert days.clause({**MAPPING, "day": {"type": "keyword"}}) == []
    assert of(between("n", ["min"], ["max"]), NUMBER).clause(MAPPING) == []
    places = of(listed("place", "a", "b"), PLACE)
    assert places.clause(MAPPING) == [{"terms": {"place.keyword": ["a", "b"]}}]
    assert of(listed("place", "a", None), PLACE).clause(MAPPING) == []
    assert of(listed("place", "a" * 257), PLACE).clause(MAPPING) == []


def test_documents_of_before_a_rename_have_the_older_name() -> None:
    renamed = DAY.model_copy(update={"name": "the.day"})
    versions = [
        table_schema("p", "t", DAY, oid=7),
        table_schema("p", "t", renamed, oid=7, version=2),
    ]
    (field,) = plain_shape(versions, OWN).fields
    names = _names(BoundColumn(field, renamed))
    assert names == ["the_day", "day"]
    bound = _InDocuments([names], [renamed], between("the.day", ["2026-01-01"], ["2026-01-02"]))
    assert bound.holds({"day": "2026-01-01"})
    assert not bound.holds({"the_day": "2026-01-02", "day": "2026-01-01"})
    assert bound.clause(MAPPING) == []


class Pages(OpenSearch):
    """A server whose search has some pages, and of whose index some shards are gone."""

    def __init__(self, pages: list[list[dict[str, Any]]], failed: int = 0) -> None:
        self._pages = [*pages, []]
        self._failed = failed
        self.closed = False

    def search(self, **_: Any) -> Any:
        return self.scroll()

    def scroll(self, **_: Any) -> Any:
        hits = {"hits": self._pages.pop(0)}
        return {"_scroll_id": "s", "hits": hits, "_shards": {"failed": self._failed}}

    def clear_scroll(self, **_: Any) -> Any:
        self.closed = True


def test_all_pages_are_read_and_the_search_is_closed() -> None:
    server = Pages([[{"_id": "1"}, {"_id": "2"}], [{"_id": "3"}]])
    assert [hit["_id"] for hit in _hits(server, "i", {}, [])] == ["1", "2", "3"]
    assert server.closed


def test_a_part_of_the_index_that_does_not_answer_ends_the_run() -> None:
    server = Pages([[{"_id": "1"}]], failed=1)
    with pytest.raises(SinkUnreachableError, match="1 shards"):
        list(_hits(server, "i", {}, []))
    assert server.closed
