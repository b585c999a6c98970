"""Rows are read from a standby while the primary is streamed, never staler than the stream."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import SourceSettingError, SourceUnreachableError
from cdc.postgres.checks import standby as standbys
from cdc.postgres.connection import connect, current_wal_end
from cdc.postgres.described import CapturedTable
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import run_folder
from deploy.status.collect import collect
from snapshots.pace import Pace
from snapshots.watermarks import Watermarks
from snapshots.windows import WindowReader
from tests.faults.test_failover import two_servers
from tests.faults.test_gaps import run
from tests.faults.test_killed_daemon import SCHEMA, assert_log_is_the_source
from tests.faults.test_outages import under_load
from tests.faults.test_source_safety import Probed
from tests.fixtures.pipeline import RunningPipeline

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
WINDOWS = "millrace incremental snapshot"
TOLD = "the standby can't serve reads"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with tables, and its standby."""
    folder = run_folder("millrace-standby-")
    with two_servers(folder) as both:
        run(both[0].conninfo(), SCHEMA)
        yield both
    shutil.rmtree(folder, ignore_errors=True)


def asked(server: Postgres, statement: str, *values: object) -> object:
    with psycopg.connect(make_conninfo(**server.conninfo()), autocommit=True) as connection:
        row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]


def test_a_first_snapshot_comes_from_the_standby_and_waits_for_its_replay(
    servers: tuple[Postgres, Postgres], tmp_path: Path, kafka: Kafka, topic_prefix: str
) -> None:
    primary, standby = servers
    source = primary.conninfo() | {"target_session_attrs": "read-write"}
    made = RunningPipeline(
        tmp_path,
        source,
        kafka.client_options(),
        prefix=topic_prefix,
        capture={"incremental.snapshot.chunk.size": 50},
        sections={"snapshot_source": {"port": str(standby.port)}},
    )
    made.daemons = []
    asked(standby, "SELECT pg_wal_replay_pause()::text")
    health = Probed(made)
    daemon = health.daemon
    try:
        with under_load(source) as load:
            daemon.wait_until(lambda: load.transactions > 50)
            daemon.wait_until(lambda: asked(standby, SESSIONS, WINDOWS) != 0)
            daemon.wait_until(lambda: TOLD in daemon.command.log.read_text())
            assert "SELECT pg_wal_replay_resume()" in daemon.command.log.read_text()
            assert "open transactions" not in daemon.command.log.read_text()
            report = health.get("ready")[1]
            assert report["degraded"]
            shown = {each.part: str(each) for each in collect(made.settings).problems}
            problem = shown["[snapshot_source]"]
            for trouble in (report["standby"], problem):
                assert re.search("has replayed .*, but (.|\n)*replay is paused", trouble)
            unread = [state for state in made.tables() if state.table != "loose"]
            assert [bool(one.initial and not one.initial.read) for one in unread] == [True, True]
            asked(standby, "SELECT pg_wal_replay_resume()::text")
            daemon.wait_until(lambda: not any(state.initial for state in made.tables()))
        assert not health.get("ready")[1]["degraded"]
        assert "the standby serves reads again" in daemon.command.log.read_text()
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
    finally:
        asked(standby, "SELECT pg_wal_replay_resume()::text")
        daemon.kill()
    assert_log_is_the_source(made, source, topic_prefix)


@pytest.mark.proof
def test_who_isnt_a_standby_of_the_source_isnt_read(
    servers: tuple[Postgres, Postgres], postgres: Postgres
) -> None:
    primary, standby = servers
    with (
        connect(primary.conninfo(), purpose="test") as one,
        connect(standby.conninfo(), purpose="test") as two,
        connect(postgres.conninfo(), purpose="test") as other,
    ):
        standbys.check_standby(two, one)
        with pytest.raises(SourceSettingError, match="isn't a standby"):
            standbys.check_standby(one, one)
        with pytest.raises(SourceSettingError, match="another cluster"):
            standbys.check_standby(other, one)
        standbys.await_replay(two, current_wal_end(one), lambda _: False)
        with pytest.raises(SourceUnreachableError, match="not yet 7FFFFFFF/0"):
            standbys.await_replay(two, Lsn.parse("7FFFFFFF/0"), lambda _: True)
        with pytest.raises(SourceUnreachableError, match="is no longer a standby"):
            standbys.await_replay(one, Lsn(1), lambda _: False)


@pytest.mark.proof
def test_a_table_is_looked_up_once_the_standby_has_it_whatever_was_streamed(
    servers: tuple[Postgres, Postgres], tmp_path: Path
) -> None:
    """The primary shows a table to us as soon as it is there: the stream may come later."""
    primary, standby = servers
    sections = {"snapshot_source": {"port": str(standby.port)}}
    settings = RunningPipeline(
        tmp_path,
        primary.conninfo(),
        {"bootstrap.servers": "127.0.0.1:1"},
        prefix="standby",
        capture={"publication.name": "young"},
        sections=sections,
    ).settings
    asked(standby, "SELECT pg_wal_replay_pause()::text")
    reader = WindowReader(settings, Watermarks(settings.capture, None), Pace())
    try:
        run(primary.conninfo(), "CREATE TABLE young (id int PRIMARY KEY)")
        run(primary.conninfo(), "CREATE PUBLICATION young FOR TABLE young")
        oid = asked(primary, "SELECT 'young'::regclass::oid")
        assert isinstance(oid, int)
        job = reader.describe(CapturedTable(oid, TableName("public", "young")), Lsn(0))
        time.sleep(0.5)
        assert not job.future.done()
        asked(standby, "SELECT pg_wal_replay_resume()::text")
        job.future.result(30)
        assert job.result is not None
        assert job.result.table.oid == oid
    finally:
        asked(standby, "SELECT pg_wal_replay_resume()::text")
        reader.close()
