"""How readers end: without a broker, by a break, and after a body that took too long."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.kafka import Kafka
from millrace import changes
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run
from tests.integration.cdc.reader.members import Members

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Made = Callable[..., RunningPipeline]


@pytest.mark.proof
@pytest.mark.stops_kafka
def test_a_signal_ends_readers_soon_where_no_broker_is_there(
    pipeline: Made, database: dict[str, str], kafka: Kafka, tmp_path: Path
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    run(database, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}})
    made.catch_up()
    groups = {}
    for way in ("", "transactions"):
        (tmp_path / f"of{way}").mkdir()
        groups[way] = Members(made, tmp_path / f"of{way}", way)
    try:
        for group in groups.values():
            group.start()
        for group in groups.values():
            group.wait(lambda group=group: len(group.all()) == 20)  # type: ignore[misc]
        time.sleep(1.5)  # their positions are kept
        try:
            kafka.stop()
            time.sleep(2)
            for group in groups.values():
                began = time.monotonic()
                group.processes[0].send_signal(signal.SIGTERM)
                assert group.processes[0].wait(20) == 0
                assert time.monotonic() - began < 4
        finally:
            kafka.start()
    finally:
        for group in groups.values():
            group.end()


def test_a_body_may_take_too_long_and_nothing_is_lost(
    pipeline: Made, database: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    run(database, "INSERT INTO t VALUES (1, 0)")
    limits = {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}
    made = pipeline(sections={"kafka": limits})
    daemon = made.catch_up()
    for n in range(1, 4):
        run(database, f"UPDATE t SET n = {n}")
    made.wait_until_logged(made.wal_end(), daemon)
    seen: dict[bool, list[int]] = {True: [], False: []}

    def read(*, transactions: bool) -> None:
        ways = {True: "whole", False: "single"}
        with changes(
            made.settings,
            group=ways[transactions],
            transactions=transactions,  # type: ignore[call-overload]  # either
            stop=threading.Event(),
        ) as stream:
            for item in stream:
                seen[transactions] += [each.row["n"] for each in (item if transactions else [item])]
                if seen[transactions][-1] == 1:
                    time.sleep(8)
                elif seen[transactions][-1] == 3:
                    break

    threads = [threading.Thread(target=read, kwargs={"transactions": way}) for way in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for numbers in seen.values():
        assert list(dict.fromkeys(numbers)) == [0, 1, 2, 3]
        assert len(numbers) <= 5, "more came again than what came last"
    said = [record.getMessage() for record in caplog.records if "took longer" in record.message]
    assert len(said) == 2
