"""Events without a key that a connector that crashed wrote again -> each is there once."""

from typing import TYPE_CHECKING

import pytest

from cdc.errors import SinkError
from sinks.debezium.duplicates import LastEvents, last_events, without_repeated_records
from tests.fixtures.debezium_topics import Raw, described, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def event(word: str, offset: int) -> Raw:
    """An event by its letter and LSN; each LSN is that of a commit two seconds after the last."""
    lsn = int(word[1:])
    before = "null" if word[0] in "cr" else '{"v":"x"}'
    after = "null" if word[0] in "dt" else '{"v":"x"}'
    source = f'"schema":"public","table":"t","lsn":{lsn},"ts_ms":{lsn * 2_000}'
    value = f'{{"before":{before},"after":{after},"op":"{word[0]}","source":{{{source}}}}}'
    return Raw(None, value.encode(), offset=offset)


CASES = {
    # What each run reads; what it applies.
    "in a run": ("c1 d2 c3 d2 c3 u4", "c1 d2 c3 u4"),
    "in the next run": ("c1 d2 c3 | d2 c3 u4", "c1 d2 c3 | u4"),
    "behind new ones": ("c1 d2 | c3 c1 d2 c3 u4", "c1 d2 | c3 u4"),
    "the last one alone": ("c1 d2 | d2 c3", "c1 d2 | c3"),
    "with a TRUNCATE": ("c1 t2 c3 | t2 c3 c4 t2 c3 c4", "c1 t2 c3 | c4"),
    "rows of one COPY, in parts": ("c1 c2 c2 | c2 c3 c1 c2 c2 c2 c3", "c1 c2 c2 | c2 c3"),
    "a COPY that was cut off": ("c1 c2 c1 c2 c2 c3", "c1 c2 c2 c3"),
    "all of it, and nothing more": ("c1 d2 | c3 u4 d2 c3 u4", "c1 d2 | c3 u4"),
    "a snapshot": ("r1 r1 r1 | c2 c2", "r1 r1 r1 | c2 c2"),
}


@pytest.mark.parametrize("what", CASES)
def test_what_is_repeated_is_there_once(spark: "SparkSession", what: str) -> None:
    before: LastEvents | None = None
    found, written = [], CASES[what][0].split(" | ")
    for run, words in enumerate(written):
        events = [event(word, 100 * run + n) for n, word in enumerate(words.split())]
        raw = frame(spark, events)
        topic = described(raw, types={"v": "text"})
        kept = {
            row["offset"] % 100 for row in without_repeated_records(raw, topic, before).collect()
        }
        found.append(" ".join(word for n, word in enumerate(words.split()) if n in kept))
        before = last_events(raw, topic, before)
    assert sorted(" ".join(found).split()) == sorted(CASES[what][1].replace(" | ", " ").split())
    assert [len(one.split()) for one in found] == [
        len(one.split()) for one in CASES[what][1].split(" | ")
    ]


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("c1 d2 c3 c1", None),
        ("c1 d2 c3 c1 d2", None),
        ("c3 c4 c3", LastEvents(2, 4_000_000, 1)),
        ("c1 c1 d2 c1", None),
        ("c1 c2 c2 c1 c2", None),
    ],
)
def test_a_run_that_ends_among_what_is_repeated_is_put_off(
    spark: "SparkSession", words: str, before: LastEvents | None
) -> None:
    raw = frame(spark, [event(word, n) for n, word in enumerate(words.split())])
    with pytest.raises(SinkError, match="has begun to repeat events"):
        last_events(raw, described(raw, types={"v": "text"}), before)


def test_a_run_that_begins_among_what_is_repeated_is_put_off(spark: "SparkSession") -> None:
    raw = frame(spark, [event("c1", 9)])
    topic = described(raw, types={"v": "text"})
    with pytest.raises(Exception, match="has begun to repeat events"):
        without_repeated_records(raw, topic, LastEvents(3, 6_000_000, 1)).collect()
