"""Gaps in a table's state → marks in its derived tables, by the run that reaches them."""

import json
import shutil
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from cdc.errors import ExitCode, SinkError
from cdc.records.schema import TableName
from cdc.records.state import Gap
from compaction.lakehouse import compact_lakehouse
from deploy.status.sinks import lakehouse_status
from sinks.changes.derived import table_path
from sinks.changes.names import END, OP, POSITION
from sinks.delta import target
from sinks.run.wanted import CapturedTables
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
DERIVED = ("public.t_history", "public.t_changes")
FIRST = Gap(start=at(15), end=at(20), reason='it\'s a "rewrite"', ts_ms=20, number=1)
SECOND = Gap(start=at(25), end=at(30), reason="labels were renamed", ts_ms=30, number=2)


def path(lakehouse: Lakehouse, name: str) -> str:
    return table_path(str(lakehouse.folder), TableName.parse(name))


def listed(lakehouse: Lakehouse, name: str) -> list[Gap]:
    """What a reader without Spark sees of the table's gaps."""
    properties = DeltaTable(path(lakehouse, name)).metadata().configuration
    return [Gap.model_validate(gap) for gap in json.loads(properties.get("millrace.gaps", "[]"))]


def rows_of(lakehouse: Lakehouse) -> list[tuple[Any, ...]]:
    """The archive's rows about gaps."""
    rows = lakehouse.read("public.t_changes", OP, POSITION, END)
    return sorted((start, end) for op, start, end in rows if op == "gap")


def as_rows(*gaps: Gap) -> list[tuple[str, str]]:
    return [(str(gap.start), str(gap.end)) for gap in gaps]


def merged_up_to_the_first(lakehouse: Lakehouse, *kinds: str) -> HandLog:
    """A run dies that has reached the end of the first gap, and the next one marks it."""
    lakehouse.configure(kinds=kinds)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"))
    log.row("r", at(10, 0), {"id": 1, "a": "a"})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK

    log.row("r", at(20), {"id": 1, "a": "b"})
    log.table(10, gaps=(FIRST, SECOND))  # a state may be newer than the cut
    log.reached(at(20))
    with patch.object(target, "_mark_gaps", side_effect=SinkError("killed before that")):
        lakehouse.merge()
    assert rows_of(lakehouse) == as_rows(FIRST)
    assert [listed(lakehouse, name) for name in DERIVED] == [[], []]
    lakehouse.merge()
    assert [listed(lakehouse, name) for name in DERIVED] == [[FIRST]] * 2
    assert rows_of(lakehouse) == as_rows(FIRST)
    return log


def test_a_gap_is_marked_once_by_the_run_that_reaches_its_end(lakehouse: Lakehouse) -> None:
    merged_up_to_the_first(lakehouse, "history", "changes")
    status = lakehouse_status(lakehouse.settings, None, [], CapturedTables.of((), {}))
    assert status is not None
    assert status.gaps == {name: [FIRST] for name in DERIVED}
    assert "public.t_history: changes may be missing between 0/F and 0/14" in status.gap_texts()[1]


@pytest.mark.proof
def test_gaps_stay_marked_whatever_becomes_of_the_tables(lakehouse: Lakehouse) -> None:
    log = merged_up_to_the_first(lakehouse, "current", "history", "changes")
    assert listed(lakehouse, "public.t") == []

    log.reached(at(30))  # the table was empty when it was read again
    lakehouse.merge()
    lakehouse.merge()
    list(compact_lakehouse(lakehouse.settings, lambda: lakehouse.spark))
    assert rows_of(lakehouse) == as_rows(FIRST, SECOND)
    assert [listed(lakehouse, name) for name in DERIVED] == [[FIRST, SECOND]] * 2
    status = lakehouse_status(lakehouse.settings, None, [], CapturedTables.of((), {}))
    assert status is not None
    assert status.gaps == {name: [FIRST, SECOND] for name in DERIVED}
    assert "public.t_history: changes may be missing between 0/19 and 0/1E" in status.gap_texts()[1]

    for name in DERIVED:
        shutil.rmtree(path(lakehouse, name))
    log.row("u", at(31), {"id": 1, "a": "c"})
    log.reached(at(31))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert rows_of(lakehouse) == as_rows(FIRST, SECOND)
    assert [listed(lakehouse, name) for name in DERIVED] == [[FIRST, SECOND]] * 2
