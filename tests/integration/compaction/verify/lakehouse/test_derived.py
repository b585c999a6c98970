"""A lakehouse at an instant between two commits: with all earlier changes, and no later ones."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from cdc.records.position import Position
from compaction.verify.lakehouse.derived import LakehouseAtInstant, lakehouse_at
from sinks.run.options import RunContext, RunOptions
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column
from tests.integration.sinks.run.test_retention import begun, forget

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.proof]


@contextmanager
def brought_to(lakehouse: Lakehouse, instant: Position) -> Iterator[LakehouseAtInstant]:
    context = RunContext(
        lakehouse.settings, lambda _records=0: lakehouse.spark, lambda _: None, RunOptions()
    )
    with lakehouse_at(context, instant, None) as there:
        yield there.brought()


def rows_at(lakehouse: Lakehouse, instant: Position) -> list[tuple[Any, ...]]:
    with brought_to(lakehouse, instant) as brought:
        assert brought.missing == {}
        rows = brought.tables["public.t"].rows(lakehouse.spark)
        return sorted(tuple(row)[:2] for row in rows.collect())


@pytest.mark.parametrize("vectors", [True, False])
def test_what_the_log_has_behind_the_cut_is_applied_up_to_the_instant(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, *, vectors: bool
) -> None:
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", 0)  # which would be written anew
    lakehouse.configure(deletion_vectors=vectors)
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    for number in range(5):
        log.row("r", at(10, 0), {"id": number, "n": 0})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    for lsn in range(20, 70, 10):
        log.row("u", at(lsn), {"id": lsn // 10 - 2, "n": lsn})
        log.row("c", at(lsn, 2), {"id": lsn, "n": lsn})
        log.reached(at(lsn, 2))
        if lsn == 30:
            lakehouse.merge()
    abandoned = lakehouse.folder / "_millrace" / "verify" / "1-of a killed one"
    abandoned.mkdir(parents=True)
    version = lakehouse.version(log.schema)
    first = [(0, 20), (1, 30), (2, 0), (3, 0), (4, 0), (20, 20), (30, 30)]
    assert rows_at(lakehouse, Position(1, at(40).commit_lsn, 0)) == first, "not what begins there"
    lakehouse.merge()
    assert rows_at(lakehouse, Position(1, at(45).commit_lsn, 0)) == sorted(
        [*(row for row in first if row[0] != 2), (2, 40), (40, 40)]
    ), "an older cut leads there"
    assert lakehouse.version(log.schema) == version + 1, "the table itself is left alone"
    assert [*abandoned.parent.iterdir()] == [], "nothing is left"


def test_a_table_whose_cut_is_older_than_the_log_cannot_be_compared(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, kinds=["current"])
    forget(lakehouse, log)
    log.row("u", at(20), {"id": 1, "a": "changed", "n": 2}, filled=["a"])
    log.reached(at(20))
    time.sleep(1.1)
    lakehouse.promise(timedelta(seconds=1))
    with brought_to(lakehouse, Position(1, at(30).commit_lsn, 0)) as brought:
        assert brought.tables == {}
        assert "the log no longer has all changes since its cut" in brought.missing["public.t"]
