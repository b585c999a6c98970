"""A folder → servers behind proxies, tables, and daemons that start again after each end.

The daemons are a user's: `millrace run` with a written millrace.toml, with their own role. The
harness bypasses the proxies.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import MillraceError
from cdc.kafka.sending import send
from cdc.log.state import last_progress, read_all
from cdc.records.position import Lsn
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import progress_topic, table_topic
from deploy.local.pipeline import Pipeline
from deploy.local.postgres import Postgres
from deploy.local.processes import Command, ServerError
from tests.chaos.cluster import Cluster
from tests.chaos.harness import Servers
from tests.chaos.shim import Shim, build
from tests.chaos.supervisor import Supervised
from tests.fixtures.proxy import Proxy

PREFIX: Final = "chaos"
ROLE: Final = "chaos_daemon"
WITNESS: Final = "witness"
_ROOT: Final = Path(__file__).resolve().parents[2]
_POSTGRES: Final = {
    "logical_decoding_work_mem": "64kB",
    "deadlock_timeout": "200ms",
    "max_connections": "60",
}
_CAPTURE: Final[dict[str, str | int]] = {
    "slot.retry.delay.ms": 500,
    "slot.max.retries": 10_000,
    "max.batch.size": 2_000,
    "spill.memory.bytes": 100_000,
    "incremental.snapshot.chunk.size": 50,
}
_READY_S: Final = 60.0
SCHEMA: Final = """
    CREATE TABLE item (id int PRIMARY KEY, name text, amount numeric, doc jsonb, big text,
        at timestamptz, tags text[], ok boolean);
    ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE account (id bigint PRIMARY KEY, note varchar(40), balance numeric(12, 2),
        big text, ratio float8);
    ALTER TABLE account ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
    CREATE TABLE loose (v int, t text, f float8);
    ALTER TABLE loose REPLICA IDENTITY FULL;
    CREATE TABLE pair (a int, b text, v bigint, doc jsonb, PRIMARY KEY (a, b));
    CREATE TABLE bulk (batch int, n int, pad text, PRIMARY KEY (batch, n));
    CREATE TABLE probe (id bigint PRIMARY KEY, sent timestamptz);
    INSERT INTO item SELECT i, 'first', i, NULL, repeat('x', 3000), now(), '{}', true
        FROM generate_series(1, 50) i;
    INSERT INTO account SELECT i, 'first', i, repeat('y', 3000), 0.5 FROM generate_series(1, 50) i;
    INSERT INTO loose SELECT i, 'first', 0 FROM generate_series(1, 20) i;
    INSERT INTO pair SELECT i, 'first', i, NULL FROM generate_series(1, 50) i;
    INSERT INTO bulk VALUES (0, 0, 'first');
    INSERT INTO probe VALUES (0, now());
"""
TABLES: Final = ("item", "account", "loose", "pair", "bulk", "probe")


class Stand(Servers):
    """Everything that a run needs, from the first server to the last daemon."""

    def __init__(
        self, folder: Path, *, module: str = "millrace", daemons: int = 1, brokers: int = 1
    ) -> None:
        library = build(folder)
        spill = folder / "spill"
        spill.mkdir()
        self.folder = folder
        self.daemon_shim = Shim(library, folder / "daemon.control", spill)
        self.postgres = Postgres(folder, _POSTGRES)
        self.cluster = Cluster(folder, library, brokers)
        self.source_way = Proxy(self.postgres.port)
        self.daemons: list[Supervised] = []
        self.pipelines: list[Pipeline] = []
        self._module = module
        self._count = daemons
        self._database: dict[str, str] = {}

    @property
    def conninfo(self) -> str:
        """The superuser's way to the database, past the proxy."""
        return make_conninfo(**self._database)

    @property
    def reader(self) -> dict[str, str]:
        """The way to Kafka past the proxy."""
        return self.cluster.reader

    @property
    def slot(self) -> str:
        """The daemons' slot."""
        return self.pipelines[0].settings.capture.slot_name

    @property
    def publication(self) -> str:
        """The daemons' publication."""
        return self.pipelines[0].settings.capture.publication_name

    def ask(self, statement: str) -> Any:
        """The first column of the first row, or nothing where there is none."""
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    def signal(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Tell the daemons something by the signal topic; returns whether it got there."""
        topic = self.pipelines[0].settings.capture.signal_topic
        value = json.dumps({"id": f"{kind} {time.monotonic_ns()}", "type": kind, "data": data})
        try:
            send(self.reader, topic, [(PREFIX.encode(), value.encode())])
        except MillraceError:
            return False
        return True

    def progress(self) -> Progress | None:
        """The last committed progress."""
        return last_progress(self.reader, progress_topic(PREFIX), self.slot)

    def topics(self) -> dict[str, int]:
        """Topics of tables, and their numbers of partitions."""
        states = read_all(self.reader, table_topic(PREFIX), TableState)
        return {state.topic: state.partitions for state in states}

    def walsender(self) -> int | None:
        """The server process that reads the daemons' slot, while there is one."""
        slots = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        pid = self.ask(slots)
        return int(pid) if pid is not None else None

    def active(self) -> Supervised:
        """The daemon that has the slot, or the first one where none has."""
        name = self.ask(
            "SELECT application_name FROM pg_stat_replication r JOIN pg_replication_slots s"
            f" ON s.active_pid = r.pid WHERE s.slot_name = '{self.slot}'"
        )
        return next((daemon for daemon in self.daemons if daemon.name == name), self.daemons[0])

    def until(self, ready: Any, timeout_s: float = _READY_S) -> bool:
        """Poll until it is so; returns whether it is."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if ready():
                    return True
            except (MillraceError, psycopg.OperationalError):
                pass
            time.sleep(0.1)
        return False

    def reaches(self, lsn: Lsn, timeout_s: float) -> bool:
        """Wait until the log has everything before the LSN; returns whether it has."""
        return self.until(lambda: (p := self.progress()) and p.flush_lsn >= lsn, timeout_s)

    def is_settled(self) -> bool:
        """Whether all was read (again) that is to be, but for what the daemon leaves to people."""
        states = read_all(self.reader, table_topic(PREFIX), TableState)
        return not any(state.is_to_settle or state.is_being_completed for state in states)

    def _start(self) -> None:
        self.cluster.start()
        self.postgres.start()
        self._database = self.postgres.create_database("chaos")
        self._prepare()
        for number in range(self._count):
            self._start_daemon(number + 1)
        if not self.until(self._is_streaming):
            raise ServerError(f"nothing streams. {self.daemons[0].process.command.log_end()}")
        self.ask(f"SELECT pg_create_logical_replication_slot('{WITNESS}', 'test_decoding')")

    def _is_streaming(self) -> bool:
        progress = self.progress()
        return progress is not None and progress.phase is Phase.STREAMING

    def _prepare(self) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            password = self._database["password"]
            role = sql.Identifier(ROLE)
            for statement in (
                sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(role, password),
                sql.SQL("GRANT CREATE ON DATABASE chaos TO {}").format(role),
                sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(role),
                sql.SQL("SET ROLE {}").format(role),
                sql.SQL(SCHEMA),
            ):
                connection.execute(statement)

    def _start_daemon(self, number: int) -> None:
        name = f"daemon{number}"
        folder = self.folder / name
        folder.mkdir()
        source = {
            **self._database,
            "user": ROLE,
            "port": str(self.source_way.port),
            "application_name": name,
        }
        capture = {**_CAPTURE, "spill.directory": str(self.daemon_shim.disk)}
        pipeline = Pipeline(
            folder, source, self.cluster.client_options, prefix=PREFIX, capture=capture
        )
        words = (sys.executable, "-m", self._module, "run", "--config", str(pipeline.config))
        environment = {
            "PYTHONPATH": str(_ROOT),
            "MILLRACE_DEBUG": "1",
            **self.daemon_shim.environment,
        }
        command = Command("millrace run", words, folder / "daemon.log", environment=environment)
        self.pipelines.append(pipeline)
        self.daemons.append(Supervised(name, command))

    def _end(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        self.source_way.cut()
        self.postgres.kill()
        self.cluster.end()
