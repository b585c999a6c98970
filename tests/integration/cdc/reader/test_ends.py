"""How readers end: where no broker is there, by a break, and after a body that took too long."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.kafka import Kafka
from deploy.local.processes import environment_with
from millrace import changes
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Made = Callable[..., RunningPipeline]
ROOT = Path(__file__).parents[4]
MEMBER = "tests.integration.cdc.reader.member"


@contextmanager
def members(made: RunningPipeline, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A reader of changes and one of transactions."""
    environment = environment_with({"PYTHONPATH": str(ROOT)})
    started = {}
    for way in ("", "transactions"):
        words = [sys.executable, "-m", MEMBER, str(made.config), f"g{way}", str(folder / f"n{way}")]
        with (folder / f"said{way}").open("wb") as said:
            started[way] = subprocess.Popen([*words, way], env=environment, stderr=said)
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, "it doesn't come"
        time.sleep(0.02)


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.proof
def test_a_signal_ends_readers_soon_where_no_broker_is_there(
    pipeline: Made, database: dict[str, str], kafka: Kafka, tmp_path: Path
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    run(database, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    made = pipeline(sections={"kafka": {"session.timeout.ms": "6000"}})
    made.catch_up()
    with members(made, tmp_path) as started:
        wait(lambda: lines(tmp_path / "n") == 20 and lines(tmp_path / "ntransactions") == 21)
        time.sleep(1.5)  # their positions are kept
        try:
            kafka.stop()
            time.sleep(2)
            for process in started.values():
                began = time.monotonic()
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
                took_s = time.monotonic() - began
                assert took_s < 4
        finally:
            kafka.start()
    for way in started:
        assert "Traceback" not in (tmp_path / f"said{way}").read_text()


@pytest.mark.proof
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
