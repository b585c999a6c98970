"""A case → its outcome: a fresh database, the real daemon, its records, and compare.py's result."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, LiteralString
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from deploy.local.kafka import Kafka
from deploy.local.pipeline import Pipeline
from deploy.local.postgres import Postgres
from deploy.local.processes import Process, ServerError
from tests.fixtures.forked import ForkedPipeline
from tests.golden import records
from tests.golden.case import EXPECTED, HERE, Case
from tests.golden.psql import Sql

PARALLEL: Final = 6
SHOWN: Final = 5
_TIMEOUT_S: Final = 90
_POLL_S: Final = 0.05
_STREAMING: Final = """
SELECT coalesce(bool_or(r.state IN ('catchup', 'streaming')), false)
FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE s.slot_name = %s
"""
_WAL_END: Final = "SELECT pg_current_wal_insert_lsn()::text"
_FLUSHED: Final = """
SELECT coalesce(bool_or(confirmed_flush_lsn >= %s::pg_lsn), false)
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went; ``differences`` are compare.py's first lines, or the reason why not."""

    name: str
    passed: bool
    differences: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        word = "passed" if self.passed else "FAILED"
        lines = "".join(f"\n    {line}" for line in self.differences)
        return f"{word} {self.name} ({self.seconds:.1f} s){'' if self.passed else lines}"


class Runner:
    """Runs cases on one server and one broker, each with a database and topics of its own."""

    def __init__(self, postgres: Postgres, kafka: Kafka, folder: Path) -> None:
        self._postgres = postgres
        self._kafka = kafka
        self._folder = folder

    def run(self, folder: Path) -> Outcome:
        """Run the case in a folder; whatever goes wrong with it is its outcome."""
        started = time.monotonic()
        try:
            differences = self._differences(Case.read(folder))
        except Exception as error:  # noqa: BLE001 (the other cases go on)
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            differences = [*lines[:1], *lines[1:][-SHOWN:]]
        seconds = time.monotonic() - started
        return Outcome(folder.name, not differences, tuple(differences), seconds)

    def _differences(self, case: Case) -> list[str]:
        folder = self._folder / case.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with self._database() as database:
            pipeline = ForkedPipeline(
                folder,
                database,
                self._kafka.client_options(),
                prefix=case.prefix,
                sections={
                    **case.sections,
                    "capture": {"slot.name": database["dbname"], **case.sections["capture"]},
                },
                preset="debezium",
            )
            sql = Sql(self._postgres.bin("psql"), database)
            sql.set_up(case.folder / "setup.sql")
            daemon = pipeline.start()
            try:
                _Run(case, pipeline, daemon, database).change(sql)
                self._wait_for_heartbeats(case, daemon)
            finally:
                daemon.stop()
        lines = _as_recorded(case, records.collect(self._kafka.client_options(), case.topics))
        actual = folder / "actual.jsonl"
        records.write(actual, lines)
        return compare(case.folder / EXPECTED, actual)

    def _wait_for_heartbeats(self, case: Case, daemon: Process) -> None:
        """Wait for as many as were recorded, which a script's pause may be too short for."""
        expected = case.recorded_heartbeats
        deadline = time.monotonic() + _TIMEOUT_S
        while len(records.collect(self._kafka.client_options(), case.heartbeats)) < expected:
            if not daemon.running or time.monotonic() > deadline:
                raise ServerError(f"fewer than {expected} heartbeats. {daemon.command.log_end()}")
            time.sleep(_POLL_S)

    @contextmanager
    def _database(self) -> Iterator[dict[str, str]]:
        name = f"golden_{uuid4().hex[:12]}"
        database = self._postgres.create_database(name)
        try:
            yield database
        finally:  # a slot that a failed case left behind is one less for those that follow
            self._postgres.drop_database(name)


class _Run:
    """A daemon at work on a case."""

    def __init__(
        self, case: Case, pipeline: Pipeline, daemon: Process, database: dict[str, str]
    ) -> None:
        self._case = case
        self._pipeline = pipeline
        self._slot = pipeline.settings.capture.slot_name
        self._daemon = daemon
        self._database = database

    def change(self, sql: Sql) -> None:
        """Make the changes once streaming has begun, and wait until all of them are in the log."""
        script = self._case.folder / "changes.sql"
        if self._case.meta.get("initial_only"):
            code = self._daemon.wait(_TIMEOUT_S)
            if code != 0:
                raise ServerError(f"exit code {code}. {self._daemon.command.log_end()}")
            sql.change(script, drain=lambda: None)
            return
        with psycopg.connect(make_conninfo(**self._database), autocommit=True) as connection:
            # Asked from PostgreSQL, which costs less than asking the log, as often as we do.
            self._wait(connection, _STREAMING, self._slot)
            sql.change(script, lambda: self._drain(connection))
            self._drain(connection)

    def _drain(self, connection: psycopg.Connection) -> None:
        """Wait until the log has all of the WAL, and the rows that signals in it have asked for.

        Where a script only sleeps behind a signal, that was time enough for Debezium.
        """
        self._wait_for_stream(connection)
        if self._pipeline.settings.capture.signal_data_collection is None:
            return
        # What the slot has acknowledged may be shown to readers a moment later.
        self._pipeline.wait_until_logged(self._pipeline.wal_end(), self._daemon)
        deadline = time.monotonic() + _TIMEOUT_S
        while any(state.requests for state in self._pipeline.tables()):
            if not self._daemon.running or time.monotonic() > deadline:
                raise ServerError(f"rows weren't read. {self._daemon.command.log_end()}")
            time.sleep(_POLL_S)
        self._wait_for_stream(connection)  # the last read may have ended by a row

    def _wait_for_stream(self, connection: psycopg.Connection) -> None:
        """Wait until all that was written by now is durable in Kafka, hence acknowledged."""
        (end,) = connection.execute(_WAL_END).fetchone() or (None,)
        self._wait(connection, _FLUSHED, end, self._slot)

    def _wait(self, connection: psycopg.Connection, query: LiteralString, *asked: object) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while connection.execute(query, asked).fetchone() != (True,):
            if not self._daemon.running or time.monotonic() > deadline:
                log_end = self._daemon.command.log_end()
                raise ServerError(f"the daemon ended, or didn't come to {asked[0]}. {log_end}")
            time.sleep(_POLL_S)


def _as_recorded(case: Case, lines: list[records.Line]) -> list[records.Line]:
    """What was recorded of a case: some heartbeats, and nothing after Debezium stopped."""
    if most := case.recorded_heartbeats:
        lines = [
            line for line in lines if line.order < most or not case.heartbeats.fullmatch(line.topic)
        ]
    if case.debezium_stopped:
        recorded = Counter(
            (record["topic"], record["partition"])
            for record in records.parsed(case.folder / EXPECTED)
        )
        lines = [line for line in lines if line.order < recorded[line.topic, line.partition]]
    return lines


def compare(expected: Path, actual: Path) -> list[str]:
    """compare.py's first lines about differences, none where the two are equal."""
    run = subprocess.run(
        [
            *(sys.executable, str(HERE / "compare.py"), str(expected), str(actual)),
            *("--ignore-db", "--max", str(SHOWN)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return [] if run.returncode == 0 else (run.stdout + run.stderr).splitlines()
