"""Times of any zone and year in a view's table → the same ones, to the microsecond."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sinks.changes.derived import derived_view
from sinks.run.cuts import Instant
from sinks.views.pinned import pinned
from sinks.views.store import NewRows, ViewTable
from tests.fixtures.spark import at, merge_settings
from tests.integration.sinks.views.comparison import bag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deploy.local.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

STORED = """
SELECT CAST(unix_micros AS timestamp) AS k, map('a', timestamp_micros({micros})) AS m,
    parse_json('1') AS j, 'k' AS _millrace_key_1
  FROM (SELECT explode(array(
    timestamp'2024-10-27T00:30:00Z', timestamp'2024-10-27T01:30:00Z',
    timestamp'+20000-01-01T00:00:00Z', timestamp'-0044-03-15T00:00:00Z')) AS unix_micros)
"""
"""Two instants that are one in Berlin's time, and two of years that Python doesn't have."""


def test_times_are_kept_to_the_microsecond_in_any_zone_and_year(
    spark: "SparkSession", kafka: "Kafka", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.views.store.SMALL_BYTES", 0)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        lake = merge_settings(kafka, "p", tmp_path).require_lakehouse()
        own = pinned(spark)
        table = ViewTable(own, "p", derived_view(lake, "times"))
        for step in (1, 2):
            rows = own.sql(STORED.format(micros=step)).repartition(4, "k").localCheckpoint()
            keys = rows.select("k").localCheckpoint()
            new = NewRows(rows, ["k"], Instant(run=step, cut=at(step), versions={}))
            if step == 1:
                table.replace(step, new)
            else:
                done = table.change(step, new._replace(groups=keys, columns={"k": "k"}))
                assert (done.inserted, done.updated, done.deleted) == (0, 4, 0)
        stored = own.read.format("delta").load(table.delta.path)
        shown = [stored, own.sql(STORED.format(micros=2))]
        one, other = (bag(each.selectExpr("unix_micros(k)", "unix_micros(m.a)")) for each in shown)
        assert one == other
    finally:
        monkeypatch.undo()
        time.tzset()
