"""What others do to the Delta tables of views → right views, and nothing of others is lost."""

import shutil

import pytest
from delta.tables import DeltaTable

from cdc.settings.views import View
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.view_lake import follow_as_if_large
from tests.integration.sinks.views.test_commits import DOUBLED, SUMS, Views

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


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
    assert "which no run of views made" in refused
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
