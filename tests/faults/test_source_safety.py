"""The source is safe with the daemon, and the daemon's reports of its own health are true."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.records.position import Lsn
from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import Process, reserve_port
from tests.faults.test_outages import reader, streaming
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.proxy import Proxy
from tests.fixtures.refusals import Configured, refusal
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
READY_S = 4
WRITTEN_BYTES = 8_000_000
_SLOT = """
SELECT confirmed_flush_lsn::text, restart_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8
FROM pg_replication_slots WHERE slot_name = %s
"""


class Probed:
    """A daemon with its health's address."""

    def __init__(self, pipeline: RunningPipeline) -> None:
        port = reserve_port()
        self._base = f"http://127.0.0.1:{port}/health/"
        self.daemon = pipeline.start(
            {
                "MILLRACE_HEALTH__LISTEN": f"127.0.0.1:{port}",
                "MILLRACE_HEALTH__READY__TIMEOUT__MS": str(READY_S * 1_000),
            }
        )

    def get(self, name: str) -> tuple[int, dict[str, Any]]:
        """The answer's code and body; 0 before anybody listens."""
        try:
            with urllib.request.urlopen(self._base + name, timeout=5) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def until(self, name: str, code: int) -> dict[str, Any]:
        """Wait for this code; returns the body."""
        answers: list[dict[str, Any]] = []

        def is_so() -> bool:
            found, body = self.get(name)
            answers.append(body)
            return found == code

        self.daemon.wait_until(is_so, 60)
        return answers[-1]


def slot(database: dict[str, str], name: str) -> tuple[Lsn, Lsn, int]:
    """Where the slot is: confirmed_flush_lsn, restart_lsn, bytes held back."""
    with psycopg.connect(make_conninfo(**database)) as connection:
        row = connection.execute(_SLOT, [name]).fetchone()
    assert row is not None
    return Lsn.parse(row[0]), Lsn.parse(row[1]), row[2]


def wait_for_heartbeat(pipeline: RunningPipeline, daemon: Process) -> None:
    """Wait until the log is beyond all WAL that there is, with nobody else writing any."""
    end = pipeline.wal_end()
    pipeline.wait_until_logged(Lsn(end + 1), daemon)


def test_an_idle_table_holds_no_wal_back_while_others_write(
    configured: Configured, database: dict[str, str], postgres: Postgres
) -> None:
    made = configured(**{"table.include.list": "public.item", "heartbeat.source.interval.ms": 300})
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    daemon = made.start()
    wait_for_heartbeat(made, daemon)
    name = made.settings.capture.slot_name
    before = slot(database, name)
    for busy in (database, postgres.conninfo()):
        run(busy, "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 4000)")
    run(postgres.conninfo(), "DROP TABLE other")
    deadline = time.monotonic() + 60
    while True:
        # restart_lsn moves at checkpoints, as far as nothing older is open (autovacuum, perhaps).
        run(postgres.conninfo(), "CHECKPOINT")
        wait_for_heartbeat(made, daemon)
        after = slot(database, name)
        if after[2] < WRITTEN_BYTES / 10:
            break
        assert time.monotonic() < deadline, f"{after[2]} bytes are held back"
    for lsn, earlier in zip(after[:2], before[:2], strict=True):
        assert lsn > earlier + WRITTEN_BYTES
    progress = made.progress()
    assert progress is not None
    assert progress.events == 0
    assert made.stop(daemon) == 0


def test_a_slot_that_holds_back_too_much_ends_the_daemon_and_is_dropped_where_that_is_wanted(
    configured: Configured, database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    limit = {"slot.max.lag.bytes": "1MB", "slot.max.lag.policy": "drop"}
    made = configured(**limit, **{"heartbeat.source.interval.ms": 300})
    daemon = made.start()
    streaming(made, daemon)
    daemon.wait_until(lambda: reader(made, database) is not None)  # its start is recorded first
    deadline = time.monotonic() + 60
    while daemon.running:  # it may be through with a part of it before it looks at the slot
        run(database, "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 3000000))")
        assert time.monotonic() < deadline
    assert daemon.wait(60) == ExitCode.SLOT_LAG
    assert (
        "more than slot.max.lag.bytes (1.0 MB): the daemon dropped the slot"
        in daemon.command.log_end()
    )
    assert reader(made, database) is None


@pytest.mark.stops_kafka
def test_readiness_tells_the_truth_when_either_side_goes_silent(
    configured: Configured,
    database: dict[str, str],
    kafka: Kafka,
    postgres: Postgres,
    proxy: Callable[[int], Proxy],
) -> None:
    way = proxy(postgres.port)
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    made = configured({"port": str(way.port)}, **{"heartbeat.source.interval.ms": 500})
    probed = Probed(made)
    report = probed.until("ready", 200)
    assert report["phase"] == "streaming"
    assert 0 < report["round_trip"]["took_s"] < 60
    assert report["slot"]["wal_status"] == "reserved"

    standby = Probed(configured(**{"slot.max.retries": 100}))
    standby.daemon.wait_until(lambda: standby.get("ready")[1].get("phase") == "standby")
    assert (standby.get("ready")[0], standby.get("live")[0]) == (503, 200)
    made.stop(standby.daemon)

    kafka.pause()
    run(database, "INSERT INTO item VALUES (1)")
    try:
        assert "come back" in probed.until("ready", 503)["reason"]
        assert probed.get("live")[0] == 200
    finally:
        kafka.resume()
    probed.until("ready", 200)
    way.deafen()
    try:
        probed.until("ready", 503)
        assert probed.get("live")[0] == 200
    finally:
        way.restore()
    probed.until("ready", 200)
    assert made.stop(probed.daemon) == 0


def test_a_refused_start_leaves_the_users_own_updates_alone(
    configured: Configured, database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE heap (v int)", "INSERT INTO heap VALUES (1)")
    refusal(configured(), ExitCode.TABLE_REFUSED, "ALTER TABLE public.heap REPLICA IDENTITY FULL")
    run(database, "UPDATE heap SET v = 2", "DELETE FROM heap")


def test_a_role_that_may_only_read_is_enough(
    configured: Configured, database: dict[str, str], role: Callable[[str], dict[str, str]]
) -> None:
    """PostgreSQL lets it neither write nor take a lock beyond a SELECT's."""
    login = role("REPLICATION")
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY, v int)",
        "INSERT INTO item SELECT i, 0 FROM generate_series(1, 1000) i",
        "CREATE PUBLICATION mine FOR TABLE item",
        f"GRANT SELECT ON item TO {login['user']}",
    )
    publication = {"publication.name": "mine", "publication.autocreate.mode": "disabled"}
    made = configured(login, **publication)
    daemon = made.catch_up()
    run(database, "UPDATE item SET v = 1", "ALTER TABLE item ADD COLUMN w int DEFAULT 7")
    run(database, "UPDATE item SET v = 2 WHERE id = 1")
    expected = {f'{{"id":{i}}}': {"id": i, "v": 1 + (i == 1), "w": 7} for i in range(1, 1001)}
    daemon.wait_until(lambda: state_of(made.log()) == expected)  # all was read again, as well
    assert made.stop(daemon) == ExitCode.OK
    said = (made.folder / "daemon.log").read_text(encoding="utf-8")
    assert "permission denied" not in said, "it has tried to do more"
