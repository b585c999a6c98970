"""docs/start.md: its SQL as pasted into psql, and then its first commands."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc.errors import ExitCode
from deploy.local.jars import REPOSITORY
from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import Process
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
DEFAULTS: Final = {"wal_level": "replica", "max_replication_slots": "10", "max_wal_senders": "10"}
"""PostgreSQL's own."""
_BLOCK: Final = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def fresh(server_folder: Path) -> Iterator[Postgres]:
    """A server as initdb leaves it, with a database whose tables are another role's."""
    server = Postgres(server_folder, DEFAULTS)
    try:
        server.start()
        shop = server.create_database("shop")
        tables = [f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("orders", "items")]
        run(shop, "CREATE ROLE app LOGIN", "GRANT CREATE ON SCHEMA public TO app")
        run(shop, "SET ROLE app", *tables, "INSERT INTO orders VALUES (1), (2)")
        yield server
    finally:
        server.stop()


def pasted(server: Postgres, text: str) -> None:
    """Paste it into psql, as the superuser in the database that psql opens by itself."""
    known = server.conninfo()
    address = {"PGHOST": known["host"], "PGPORT": known["port"], "PGUSER": known["user"]}
    ended = subprocess.run(
        [str(server.bin("psql")), "-X", "-v", "ON_ERROR_STOP=1"],
        input=text,
        env={**os.environ, **address, "PGPASSWORD": known["password"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), "not even a warning"


def test_the_pages_sql_works_as_pasted_and_its_first_commands_after_it(
    fresh: Postgres, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    server_wide, in_database = _BLOCK.findall((REPOSITORY / "docs/start.md").read_text())
    pasted(fresh, server_wide)
    fresh.restart()
    pasted(fresh, in_database)
    role = {"user": "millrace", "password": "choose one", "dbname": "shop"}
    made = RunningPipeline(
        tmp_path,
        {**fresh.conninfo(), **role},
        kafka.client_options(),
        prefix=topic_prefix,
        capture={"publication.name": "millrace", "publication.autocreate.mode": "disabled"},
    )
    started: list[Process] = []
    made.daemons = started
    try:
        daemon = made.catch_up()
        status = made.status()
        rows = {table["table"]: table["snapshot_rows"] for table in status["tables"]}
        assert rows == {"public.items": 0, "public.orders": 2}
        later = fresh.conninfo("shop")
        run(later, "SET ROLE app", "CREATE TABLE later (id int)")
        run({**later, **role}, "SELECT FROM later")
        assert made.stop(daemon) == ExitCode.OK
    finally:
        for process in started:
            process.kill()
