"""The user's statement at each heartbeat: it finds tables as in psql; its failure stops nothing."""

import pytest
from structlog.testing import capture_logs

from cdc.errors import SourceUnreachableError
from cdc.postgres.connection import act, connect, query
from tests.fixtures.source import Conninfo, run

pytestmark = pytest.mark.postgres


def test_names_without_a_schema_are_found(database: Conninfo) -> None:
    run(database, "CREATE TABLE beats (n int)")
    with connect(database, purpose="test") as opened:
        act(opened, "INSERT INTO beats VALUES (1)")
        assert query(opened, "SELECT n FROM public.beats") == [(1,)]
        assert query(opened, "SHOW search_path") == [("pg_catalog",)]


def test_a_failure_is_told_and_a_lost_connection_is_not_hidden(database: Conninfo) -> None:
    with connect(database, purpose="test") as opened:
        with capture_logs() as logs:
            act(opened, "INSERT INTO nowhere VALUES (1)")
        (entry,) = logs
        assert "nowhere" in entry["reason"]
        assert query(opened, "SHOW search_path") == [("pg_catalog",)]
        with pytest.raises(SourceUnreachableError):
            act(opened, "SELECT pg_terminate_backend(pg_backend_pid())")
