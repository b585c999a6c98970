"""`millrace check` during a daemon's stream → it disturbs nothing and leaves nothing."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from psycopg.pq.abc import PGconn

from cdc.errors import ExitCode, SourceUnreachableError
from cdc.postgres.connection import connect_replication
from cdc.settings import load
from deploy.check.lakehouse import check_lakehouse
from deploy.check.log import check_log
from deploy.check.result import CheckReport, CheckResult, Level
from deploy.check.runner import run_parts
from deploy.check.scene import Scene
from deploy.check.source import check_source
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run, session

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
LATE_S = 5.0
"""An event that takes longer was held up: by a lock, or since its daemon started over."""


def checked(made: RunningPipeline) -> CheckReport:
    scene = Scene(load(made.config), str(made.config))
    parts = {"source": check_source, "kafka": check_log, "lakehouse": check_lakehouse}
    return CheckReport.of(run_parts({name: partial(c, scene) for name, c in parts.items()}))


def failures(report: CheckReport) -> list[CheckResult]:
    return [each for each in report.findings if each.level is Level.FAILURE]


def senders(report: CheckReport) -> str:
    (found,) = (each.found for each in report.findings if each.requirement == "max_wal_senders")
    return found


def left_behind(made: RunningPipeline, database: Conninfo, admin: AdminClient) -> dict[str, Any]:
    """What there is on both servers, and on the disk, that a check could have made."""
    prefix = made.settings.capture.topic_prefix
    topics = admin.list_topics(timeout=30).topics
    with session(database) as opened:
        slots = opened.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
        published = opened.execute("SELECT pubname, tablename FROM pg_publication_tables")
        return {
            "slots": sorted(slots),
            "published": sorted(published.fetchall()),
            "topics": sorted(name for name in topics if prefix in name),
            "files": sorted(str(path) for path in made.folder.rglob("*")),
        }


def check_beside(
    make: Callable[..., RunningPipeline], database: Conninfo, admin: AdminClient, times: int
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, note text)", "INSERT INTO t VALUES (0, '')")
    made = make()
    before_first = checked(made)
    assert failures(before_first) == []
    daemon = made.catch_up()
    before = left_behind(made, database, admin)
    waits = []
    for number in range(1, times + 1):
        with ThreadPoolExecutor(1) as pool:
            report = pool.submit(checked, made)
            run(database, f"INSERT INTO t VALUES ({number}, 'x')")
            began = time.monotonic()
            made.wait_until_logged(made.wal_end(), daemon)
            waits.append(time.monotonic() - began)
            assert failures(report.result()) == []
            assert "the daemon" in senders(report.result())
    assert left_behind(made, database, admin) == before
    assert max(waits) < LATE_S
    assert made.stop(daemon) == ExitCode.OK
    told = (made.folder / "daemon.log").read_text("utf-8")
    for trouble in ("starting over", "fenced", "another daemon"):
        assert trouble not in told.lower(), told
    logged = sorted(record.key or "" for record in made.log() if record.op in {"c", "r"})
    assert logged == sorted(f'{{"id":{number}}}' for number in range(times + 1))


def test_a_check_disturbs_no_daemon_and_leaves_nothing(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, kafka_admin: AdminClient
) -> None:
    check_beside(pipeline, database, kafka_admin, 3)


@pytest.mark.proof  # a minute or two
def test_a_hundred_checks_disturb_no_daemon_and_leave_nothing(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, kafka_admin: AdminClient
) -> None:
    check_beside(pipeline, database, kafka_admin, 100)


def test_a_check_says_ok_where_a_daemon_starts_and_its_codes_where_it_does_not(
    pipeline: Callable[..., RunningPipeline], database: Conninfo
) -> None:
    run(database, "CREATE TABLE heap (v int)")
    made = pipeline()
    refused = made.millrace("check", "--json")
    assert refused.returncode == ExitCode.CHECK_FAILED, refused.stderr
    report = CheckReport.model_validate_json(refused.stdout)
    (failure,) = failures(report)
    assert failure.requirement == "public.heap"
    assert made.millrace("run").returncode == failure.exit_code == ExitCode.TABLE_REFUSED
    run(database, "ALTER TABLE heap REPLICA IDENTITY FULL")
    shown = made.millrace("check")
    assert shown.returncode == ExitCode.OK, shown.stdout
    assert shown.stdout.splitlines()[-1].startswith("failures: 0, ")
    daemon = made.catch_up()
    assert made.stop(daemon) == ExitCode.OK


def take_senders(source: Conninfo, taken: list[PGconn]) -> None:
    """Take WAL senders until the server refuses one."""
    while True:
        taken.append(connect_replication(source))


def test_without_a_wal_sender_for_the_check_replication_is_unknown_beside_a_daemon(
    pipeline: Callable[..., RunningPipeline], database: Conninfo
) -> None:
    """The daemon has one, and needs no other; where none runs, that is what a start lacks."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made = pipeline()
    daemon = made.catch_up()
    taken = list[PGconn]()
    try:
        with pytest.raises(SourceUnreachableError, match="max_wal_senders"):
            take_senders(made.settings.source, taken)
        beside = checked(made)
        by_name = {each.requirement: each for each in beside.findings if each.part == "source"}
        assert by_name["max_wal_senders"].level is Level.OK
        assert by_name["replication"].level is Level.UNKNOWN
        assert "the daemon" in by_name["replication"].found
        assert failures(beside) == []
        assert made.stop(daemon) == ExitCode.OK
        taken.append(connect_replication(made.settings.source))
        alone = {each.requirement for each in failures(checked(made))}
        assert alone == {"max_wal_senders", "replication"}
    finally:
        for each in taken:
            each.finish()
