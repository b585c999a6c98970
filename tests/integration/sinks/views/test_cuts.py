"""A view at a cut: by the cut's time, and by the existing views."""

import time

import pytest

from cdc.errors import ExitCode
from cdc.settings.views import View
from tests.fixtures.hand_views import DOUBLED, SUMS, Views
from tests.fixtures.indexes import forget_records
from tests.fixtures.spark import at

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_the_time_is_the_cuts_and_the_runs_where_no_commit_was_seen(views: Views) -> None:
    started = int(time.time())
    query = "SELECT id, v FROM t WHERE v * 100000000L < unix_seconds(now())"
    views.define(View(name="past", query=query, history=True))
    views.write((1, "a", 1), (2, "b", 5), (3, "c", 999))
    views.merge_tables()
    views.merge()
    assert views.read("past") == [(1, 1), (2, 5)]
    kept = views.lakehouse.spark.read.format("delta").load(views.path("past_history"))
    assert kept.selectExpr("min(unix_seconds(valid_from)) AS began").collect()[0].began >= started

    views.log.committed_us = 300_000_000 * 1_000_000
    views.write((4, "d", 2))
    views.merge_tables()
    views.merge()
    assert views.read("past") == [(1, 1), (4, 2)], "a row goes by time alone"


@pytest.mark.proof
def test_a_view_over_one_that_was_removed_fails_alone(views: Views) -> None:
    views.define(sums=SUMS, doubled=DOUBLED, kinds="SELECT kind FROM sums")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.define(doubled=DOUBLED, kinds="SELECT kind FROM sums")
    views.write((3, "c", 7))
    views.merge_tables()
    done = {each.name: each for each in views.merge().tables}
    assert "views.sums, which is no longer a view" in str(done["kinds"].error)
    assert (done["doubled"].error, len(views.read("doubled"))) == (None, 2)


@pytest.mark.proof
def test_a_view_waits_with_a_table_that_comes_too_late_and_follows_its_new_read(
    views: Views,
) -> None:
    log = views.log
    log.table(0, cleanup="delete")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.write((2, "b", -1))
    forget_records(views.lakehouse.kafka, log.schema.topic, log.partitions)
    views.write((3, "a", 7))
    assert views.lakehouse.merge().exit_code == ExitCode.LOG_FORGOTTEN
    views.merge()
    assert views.read("sums") == [("a", 1, 1), ("b", 1, 5)]
    log.truncate(at(30, 0))
    for id_, v in ((1, 1), (3, 7)):
        log.row("r", at(30), {"id": id_, "kind": "a", "v": v})
    log.table(30, cleanup="delete")
    log.reached(at(30))
    assert views.lakehouse.merge().exit_code == ExitCode.REBUILT
    assert views.merge().exit_code == ExitCode.OK
    assert views.read("sums") == [("a", 2, 8)]
    assert views.read("doubled") == [(3, 14)]
