"""Events that a daemon wrote again, after newer ones → unchanged tables."""

from typing import Any

import pytest

from sinks.changes.names import END, POSITION
from sinks.delta.keyed import SMALL_BYTES
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def first(log: HandLog) -> None:
    for key in (1, 2, 3):
        log.row("c", at(20, key), {"id": key, "n": 1})


def second(log: HandLog) -> None:
    log.row("u", at(30), {"id": 1, "n": 2})
    log.row("d", at(30, 2), None, {"id": 2})
    log.tombstone(at(30, 2), {"id": 2})


@pytest.mark.parametrize("small_bytes", [pytest.param(0, marks=pytest.mark.proof), SMALL_BYTES])
def test_events_that_come_again_change_nothing(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", small_bytes)
    lakehouse.configure(kinds=["current", "history"])
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))

    def tables() -> list[list[tuple[Any, ...]]]:
        """Current rows, and versions of rows, but for what the last run has brought."""
        columns = {
            "public.t": ["id", "n", POSITION],
            "public.t_history": ["id", "n", POSITION, END],
        }
        read = [lakehouse.read(name, *columns[name]) for name in columns]
        return [sorted((row for row in table if row[0] < 9), key=str) for table in read]

    log.row("r", at(10, 0), {"id": 0, "n": 0})
    log.table(10)
    first(log)
    second(log)
    log.reached(at(30, 2))
    lakehouse.merge()
    before = tables()
    assert [row[:2] for row in before[0]] == [(0, 0), (1, 2), (3, 1)]
    first(log)
    log.row("c", at(40), {"id": 9, "n": 1})
    log.reached(at(40))
    assert [table.error for table in lakehouse.merge().tables] == [None] * 2
    assert tables() == before
