"""A captured table that is gone at the source → its derived tables and index are emptied."""

from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode
from cdc.records.state import Doubt
from sinks.changes.names import END, IS_CURRENT
from sinks.job import run_lakehouse
from sinks.run.engine import Run
from sinks.run.summary import RunSummary
from tests.fixtures.few import few
from tests.fixtures.indexes import Indexes, loaded
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import SYSTEM, HandLog, at, column, run_once
from tests.integration.sinks.run.test_contract import Killed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
COLUMNS = (column("id", "int4", 1), column("a", "text"))
MARKED = {"source": "public.t", "name": "public.marked", "deletes": "mark"}
DELETE: dict[str, Any] = {"table.drop.policy": "delete", "table.drop.delay.ms": 500}


def drop(log: HandLog, *, gone_ms: int, now_ms: int, lsn: int) -> None:
    """The daemon has seen that the table is gone, and has come to where its clock shows ``now``."""
    log.table(100, gone_ms=gone_ms, gone_system=SYSTEM, gone_watched_ms=gone_ms)
    log.now_ms = now_ms
    log.reached(at(lsn, 0))


@pytest.mark.parametrize("more", few([(), (MARKED,)], ()), ids=["usual", "marked"])
def test_derived_tables_of_a_dropped_table_are_emptied_once(
    lakehouse: Lakehouse, more: tuple[dict[str, Any], ...]
) -> None:
    said = list[str]()

    def merge() -> RunSummary:
        said.clear()
        return run_once(run_lakehouse, lakehouse.settings, lakehouse.spark, said.append)

    lakehouse.configure(kinds=["current", "history"], tables=more, **DELETE)
    log = lakehouse.log(*COLUMNS)
    for number in range(3):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}"})
    drop(log, gone_ms=1_000, now_ms=1_499, lsn=100)
    assert merge().exit_code == ExitCode.OK
    assert len(lakehouse.read("public.t", "id")) == 3, "the delay hasn't passed"

    drop(log, gone_ms=1_000, now_ms=1_500, lsn=200)
    with patch.object(Run, "_apply", side_effect=Killed), pytest.raises(Killed):
        merge()
    named = {line.partition(":")[0] for line in said if "its 3 rows are deleted" in line}
    assert len(lakehouse.read("public.t", "id")) == 3, "what goes is named first"
    emptied = merge()
    assert emptied.exit_code == ExitCode.OK
    assert {table.name for table in emptied.tables} == named
    assert len(named) == 2 + len(more)
    assert lakehouse.read("public.t", "id") == []
    for marked in (table["name"] for table in more):
        assert lakehouse.read(marked, "_millrace_deleted") == [(True,)] * 3
    assert lakehouse.read("public.t_history", IS_CURRENT, END) == [(False, str(at(200, 0)))] * 3

    log.reached(at(300, 0))
    version = lakehouse.version(log.schema)
    assert merge().exit_code == ExitCode.NOTHING_TO_DO
    assert lakehouse.version(log.schema) == version


@pytest.mark.proof
def test_what_was_emptied_is_filled_by_the_next_table_of_the_name(lakehouse: Lakehouse) -> None:
    said = list[str]()

    def merge() -> RunSummary:
        said.clear()
        return run_once(run_lakehouse, lakehouse.settings, lakehouse.spark, said.append)

    lakehouse.configure(kinds=["current", "history"], **DELETE)
    log = lakehouse.log(*COLUMNS)
    for number in range(3):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}"})
    for now_ms, lsn in (1_499, 100), (1_500, 200):
        drop(log, gone_ms=1_000, now_ms=now_ms, lsn=lsn)
        assert merge().exit_code == ExitCode.OK
    assert lakehouse.read("public.t", "id") == []

    log.row("u", at(350, 0), {"id": 1, "a": "of the table that is back"})
    doubt = Doubt(reason="it was gone", since_ms=1, replaces=True, refused="it is too large")
    log.table(100, doubt=doubt)
    log.reached(at(350, 0))
    assert merge().exit_code == ExitCode.SINK
    assert any(line.endswith("millrace snapshot --reset public.t") for line in said)
    assert lakehouse.read("public.t", "id") == [], "without the other rows it would be wrong"

    log.truncate(at(400, 0))  # another table has the name, and was read
    log.row("r", at(401, 0), {"id": 1, "a": "other"})
    log.table(401)
    log.reached(at(401, 0))
    assert merge().exit_code == ExitCode.OK
    assert lakehouse.read("public.t", "id", "a") == [(1, "other")]
    history = lakehouse.read("public.t_history", "id", "a", IS_CURRENT)
    assert [row[:2] for row in history if row[2]] == [(1, "other")]


@pytest.mark.proof
@pytest.mark.opensearch
def test_an_index_of_a_dropped_table_is_emptied_and_no_rebuild_brings_rows_back(
    indexes: Indexes,
) -> None:
    indexes.define(**DELETE)
    log = loaded(indexes)
    drop(log, gone_ms=1_000, now_ms=1_500, lsn=100)  # no position later than the rows'
    result = indexes.merge().tables[0]
    assert (result.events, result.deleted) == (0, 5)
    assert any("its 5 rows are deleted" in line for line in indexes.said)
    assert indexes.documents() == {}
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO
    old = indexes.index()
    assert indexes.merge(rebuilt=frozenset({"public.t"})).exit_code == ExitCode.OK
    assert indexes.index() != old
    assert indexes.documents() == {}
    indexes.client.indices.delete(index=indexes.index())
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {}
