"""A server's message at a session's end → a crash of one of its processes, or another reason."""

import os
import signal
from pathlib import Path
from threading import Timer

import psycopg
import pytest

from cdc.postgres.crashes import CrashNotice
from deploy.local.postgres import Postgres
from tests.fixtures.source import Conninfo, session

pytestmark = pytest.mark.postgres


def test_a_crash_of_another_process_is_told_from_a_server_that_is_killed(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Postgres(server_folder).start()
    try:
        source = server.conninfo()
        with session(source) as idle, session(source) as other:
            notice = CrashNotice(idle)
            assert not notice.has_come()
            monkeypatch.setattr("cdc.postgres.crashes._PATIENCE_S", 30.0)  # on a busy machine
            os.kill(other.info.backend_pid, signal.SIGKILL)
            assert notice.has_come()
            assert notice.has_come(), "though the session has ended"
        assert server.process is not None
        server.process.wait_until(server._answers)
        with session(source) as busy, session(source) as other:
            notice = CrashNotice(busy)
            Timer(0.3, os.kill, [other.info.backend_pid, signal.SIGKILL]).start()
            with pytest.raises(psycopg.OperationalError):
                busy.execute("SELECT pg_sleep(9)")
            assert notice.has_come(), "though a statement was running"
        server.process.wait_until(server._answers)
        with session(source) as idle:
            notice = CrashNotice(idle)
            server.kill()
            assert not notice.has_come()
    finally:
        server.stop()


def test_a_session_that_somebody_ends_has_not_crashed(database: Conninfo) -> None:
    with session(database) as idle, session(database) as other:
        notice = CrashNotice(idle)
        other.execute("SELECT pg_terminate_backend(%s)", [idle.info.backend_pid])
        assert not notice.has_come()
