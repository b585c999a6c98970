"""Kafka stops while a table is set aside → the daemon waits, as it does with all tables whole."""

from collections.abc import Callable

import pytest

from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_publication import END_STREAM, ITEM, is_logged, reasons
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.stops_kafka, pytest.mark.proof]


def test_a_table_that_is_set_aside_ends_no_wait_for_kafka(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, kafka: Kafka
) -> None:
    """Only the log tells that this is no first start, which refuses such a table."""
    run(database, *ITEM)
    made = pipeline()
    daemon = made.catch_up()
    run(database, "CREATE TABLE copied AS SELECT 1 AS id")
    wait_for(lambda: "copied" in reasons(made))
    kafka.stop()
    try:
        run(database, END_STREAM, "INSERT INTO item VALUES (6, 6, 'g')")
        daemon.wait_until(lambda: daemon.command.log.read_text().count("starting over") > 1, 150)
    finally:
        kafka.start()
    wait_for(lambda: is_logged(made, database, "item") or not daemon.running)
    assert daemon.running, daemon.command.log_end()
    assert made.stop(daemon) == 0
