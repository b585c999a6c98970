"""Foreign changes to the Delta tables of views → right views, and no foreign data lost."""

import shutil
from unittest.mock import Mock

import pytest
from delta.exceptions import ConcurrentDeleteDeleteException
from delta.tables import DeltaTable

from cdc.settings.views import View
from sinks.changes.derived import derived_view
from sinks.run.cuts import Instant
from sinks.views.store import NewRows, ViewTable
from tests.fixtures.hand_views import DOUBLED, SUMS, Views
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column
from tests.fixtures.view_lake import follow_as_if_large
from tests.integration.sinks.delta.test_generations import read_again, rekeyed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.proof
def test_a_table_that_others_have_changed_is_right_again_and_one_of_others_stays(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow_as_if_large(monkeypatch)
    views = Views(lakehouse)
    views.define(View(name="sums", query=SUMS, history=True), doubled=DOUBLED)
    views.write((1, "a", 1), (2, "b", 5), (3, None, 7))
    views.merge_tables()
    views.merge()
    DeltaTable.forPath(lakehouse.spark, views.path("doubled")).delete()
    shutil.rmtree(views.path("sums_history"))
    views.write((1, "a", 2))
    views.merge_tables()
    views.merge()
    views.assert_right()
    assert len(views.read("sums_history")) == 3, "it begins again"

    shutil.rmtree(views.path("doubled"))
    lakehouse.spark.range(3).write.format("delta").save(views.path("doubled"))
    views.write((1, "a", 3))
    views.merge_tables()
    (refused,) = (str(each.error) for each in views.merge().tables if each.error)
    assert "that no run of views created" in refused
    assert len(views.read("doubled")) == 3


@pytest.mark.proof
def test_a_history_that_was_left_out_for_a_while_begins_again(lakehouse: Lakehouse) -> None:
    views = Views(lakehouse)
    for number, history in enumerate((True, False, True), start=1):
        views.define(View(name="sums", query=SUMS, history=history), doubled=DOUBLED)
        views.write((1, "a", number))
        views.merge_tables()
        views.merge()
    views.assert_right()
    (row,) = views.read("sums_history")
    assert row[:3] == ("a", 1, 3)


def test_a_whole_table_is_written_again_where_compaction_was_faster(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = derived_view(lakehouse.settings.require_lakehouse(), "sums")
    table = ViewTable(lakehouse.spark, "p", derived)
    begun, conflict = table.delta.transaction(1), ConcurrentDeleteDeleteException("OPTIMIZE")
    monkeypatch.setattr(table.delta, "transaction", Mock(side_effect=[conflict, begun]))
    rows = lakehouse.spark.range(3)
    written = table.replace(1, NewRows(rows, ["id"], Instant(run=1, cut=at(1), versions={})))
    assert (written.inserted, table.step()) == (3, 1)


@pytest.mark.proof
def test_a_table_with_another_key_has_its_views_built_again(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow_as_if_large(monkeypatch)
    views = Views(lakehouse)
    views.define(all="SELECT id, kind, v FROM t", some="SELECT v FROM t WHERE v > 0")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    rekeyed(views.log, 2, 20, column("id", "int4"), column("kind", "text", 1), column("v", "int4"))
    rows = [(1, "a", 1), (1, "c", 7), (2, "b", 5)]
    read_again(views.log, 20, *({"id": id_, "kind": kind, "v": v} for id_, kind, v in rows))
    views.merge_tables()
    views.merge()
    assert views.read("all") == rows
    assert views.read("some") == [(1,), (5,), (7,)]
    views.log.row("u", at(30), {"id": 1, "kind": "c", "v": 8})
    views.log.reached(at(30))
    views.merge_tables()
    views.merge()
    assert views.read("all") == [(1, "a", 1), (1, "c", 8), (2, "b", 5)]
    assert views.read("some") == [(1,), (5,), (8,)]
