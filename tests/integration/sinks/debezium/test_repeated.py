"""Events that a crashed connector wrote again -> a history has them once."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sinks.changes.names import OP, OWN
from sinks.changes.shape import plain_shape
from sinks.changes.versions import versions
from sinks.debezium.changes import without_repeated_changes
from sinks.debezium.parse import parse
from tests.fixtures.debezium_topics import Raw, described, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Event(NamedTuple):
    """An upsert to a text; a delete where there is none; a tombstone where there is no LSN."""

    lsn: int = 0
    text: str | None = None
    minute: int = 1

    def of(self, key: str) -> Raw:
        said = json.dumps({"id": key}).encode()
        if not self.lsn:
            return Raw(said, None)
        row = {"id": key, "v": self.text}
        before, after = (row, None) if self.text is None else (None, row)
        source = {"lsn": self.lsn, "ts_ms": self.minute * 60_000}
        op = "d" if self.text is None else "u"
        value = {"before": before, "after": after, "op": op, "source": source}
        return Raw(said, json.dumps(value).encode())


class Case(NamedTuple):
    """Events of one key in two runs, and what of the second's is new."""

    first: Iterable[Event] = ()
    second: Iterable[Event] = ()
    new: Iterable[str | None] = ()


A, B, C = Event(1, "a"), Event(2, "b"), Event(3, "c", 2)
GONE, DEAD, BACK = Event(4), Event(), Event(5, "e")
CASES = {
    "twice in a run": Case((), (A, B, A, B), ["a", "b"]),
    "with a delete": Case((), (A, GONE, DEAD, BACK, A, GONE, DEAD, BACK), ["a", None, "e"]),
    "in the next run": Case((A, B), (A, B, C), ["c"]),
    "in the next run, twice": Case((A, B), (B, A, B, C, B, C), ["c"]),
    "of a row that is gone": Case((A, GONE, DEAD), (A, GONE, DEAD, BACK), ["e"]),
    "what made no version": Case((A, Event(2, "a"), C), (Event(2, "a"), C, BACK), ["e"]),
    "what a run ends with": Case((A, B), (A,), ["a"]),
    "a restored source": Case((A, B, C), (Event(2, "x", 9), Event(3, "y", 9)), ["x", "y"]),
    "a tombstone alone": Case((A,), (DEAD,), [None]),
}  # fmt: skip


@pytest.mark.proof
def test_a_history_has_each_event_once(spark: "SparkSession") -> None:
    def parsed(which: str) -> "DataFrame":
        events = [one.of(key) for key, case in CASES.items() for one in getattr(case, which)]
        places = [one._replace(offset=place) for place, one in enumerate(events)]
        if which == "second":
            places = [one._replace(offset=1_000 + place) for place, one in enumerate(events)]
        return parse(frame(spark, places), topic, shape, timed=True)

    raw = frame(spark, [A.of("any")])
    topic = described(raw, types={"id": "text", "v": "text"})
    shape = plain_shape([topic.schema], OWN)
    history = versions(
        without_repeated_changes(parsed("first"), shape, None), None, shape, ()
    ).localCheckpoint()
    found: dict[str, list[str | None]] = {key: [] for key in CASES}
    news = without_repeated_changes(parsed("second"), shape, history).orderBy("_millrace_position")
    for row in news.collect():
        found[row["id"]].append(row["v"] if row[OP] == "upsert" else None)
    assert found == {key: case.new for key, case in CASES.items()}
