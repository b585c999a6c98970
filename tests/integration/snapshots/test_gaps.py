"""The catalog check's state before a change → the start of the gap that a read leaves."""

import pytest

from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import (
    CASES,
    MakePipeline,
    make,
    wait_until_checked,
)
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def test_a_gap_begins_where_the_table_was_right_before_the_daemon_was_stopped(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    make(database, {"label": CASES["label"]})
    made = pipeline()
    daemon = made.start_broken("tests.fixtures.frequent_checks")
    made.wait_until_logged(made.wal_end(), daemon)
    right = wait_until_checked(made, database, "label")
    assert made.stop(daemon) == 0
    before = made.wal_end()
    run(database, *(step.replace("{t}", "label") for step in CASES["label"].steps))
    daemon = made.start_broken("tests.fixtures.frequent_checks")
    wait_for(lambda: any(state.gaps for state in made.tables()))
    assert made.stop(daemon) == 0
    (state,) = made.tables()
    (gap,) = state.gaps
    assert right < gap.start.commit_lsn <= before < gap.end.commit_lsn
    assert (state.doubt, state.gaps_total, gap.reason) == (
        None,
        1,
        "labels of enum public.label_type were renamed",
    )
