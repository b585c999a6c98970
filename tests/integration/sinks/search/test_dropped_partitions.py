"""A partition is dropped at the source → its rows' documents are deleted, by any way of search."""

from typing import Any

import pytest

from cdc.records.bounds import Bound
from sinks.search import ended as ended_documents
from tests.fixtures.ended_rows import between, ended, listed
from tests.fixtures.few import few
from tests.fixtures.indexes import Indexes
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]
COLUMNS = (
    column("moment", "timestamp", 1, number=1),
    column("at", "timestamptz", 2, number=2),
    column("sum", "numeric", 3, number=3, modifier=(20 << 16 | 2) + 4),
    column("day", "date", 4, number=4),
    column("n", "int8", 5, number=5),
    column("place", "text", 6, number=6),
    column("a", "text", number=7),
)
OTHERS = {
    "moment": 0,
    "at": "2026-01-01T00:00:00Z",
    "sum": "0.00",
    "day": 0,
    "n": 0,
    "place": "nowhere",
}
MOMENT = 1_600_000_000_123_450
BOUNDS: dict[str, Bound] = {
    "moment": between("moment", [MOMENT + 5], [MOMENT + 6]),
    "at": between("at", ["2026-02-03T04:05:06.000004Z"], ["2026-02-03T04:05:06.000005Z"]),
    "sum": between("sum", ["123456789012345678.01"], ["123456789012345678.02"]),
    "day": between("day n", [19_000, "min"], [19_000, 5]),
    "n": between("n", [50], [100]),
    "place": listed("place", "here"),
    "long place": listed("place", "x" * 300),
}
GOING: dict[str, list[Any]] = {
    "moment": [MOMENT + 5],
    "at": ["2026-02-03T04:05:06.000004Z"],
    "sum": ["123456789012345678.01"],
    "day": [19_000],
    "n": [50, 99, 60],
    "place": ["here", "x" * 300],
}
STAYING: dict[str, list[Any]] = {
    "moment": [MOMENT + 4, MOMENT + 6],
    "at": ["2026-02-03T04:05:06.000003Z", "2026-02-03T04:05:06.000005Z"],
    "sum": ["123456789012345678.00", "123456789012345678.02"],
    "day": [18_999, 19_001],
    "n": [6, 100, 500],
    "place": ["her", "Here"],
}
"""Values that fields hold as they hold those that go, or that compare otherwise as texts."""


def kept(indexes: Indexes) -> dict[str, str]:
    """A field of each document."""
    return {key: document["a"] for key, document in indexes.documents().items()}


@pytest.mark.parametrize("is_rebuilt", few([False, True], False), ids=["applied", "rebuilt"])
def test_exactly_the_documents_within_the_bounds_go(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool
) -> None:
    monkeypatch.setattr(ended_documents, "_PAGE", 4)
    indexes.define(indexes=[{"table": "public.t", "mapping": {"n": {"type": "keyword"}}}])
    schema = table_schema(indexes.prefix, "t", *COLUMNS, oid=7)
    log = HandLog(indexes.kafka, indexes.prefix, schema)
    rows = [
        {**OTHERS, name: value, "a": a}
        for a, values in (("goes", GOING), ("stays", STAYING))
        for name in values
        for value in values[name]
    ]
    for row in rows:
        log.row("r", at(100, 0), row)
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().tables[0].inserted == len(rows)

    for index, row in enumerate(rows[:2]):
        log.row("c", at(200, index), {**row, "a": "in the next partition"})
    for bound in BOUNDS.values():
        log.drop(at(300, 0), ended(at(199), bound))
    log.reached(at(300, 0))
    (merged,) = indexes.merge().tables
    gone = sum(map(len, GOING.values())) - 2
    assert merged.deleted == gone
    old, documents = indexes.index(), kept(indexes)
    assert sorted(documents.values()) == ["in the next partition"] * 2 + ["stays"] * (
        len(rows) - gone - 2
    )
    if not is_rebuilt:
        return
    monkeypatch.setattr("sinks.search.steps.STEP_RECORDS", 10)
    indexes.merge(rebuilt=frozenset({"public.t"}))
    assert indexes.index() != old, "it was loaded in several steps"
    assert kept(indexes) == documents
