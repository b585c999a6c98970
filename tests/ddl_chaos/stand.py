"""A folder → servers, a daemon that starts again when it ends, merges, and both sides to compare.

The daemon is a user's: `millrace run` with a written millrace.toml. Merges run in this process, in
one Spark session.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode, MillraceError
from cdc.records.position import Lsn, Position
from cdc.records.state import Phase, TableState
from deploy.local.kafka import Kafka
from deploy.local.pipeline import Pipeline
from deploy.local.postgres import Postgres
from deploy.local.processes import Command, Process
from sinks.job import run_lakehouse
from sinks.run.plan import ready
from tests.ddl_chaos import blind
from tests.ddl_chaos.shapes import PUBLICATION, SHAPES
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "ddl"
CHECK_S: Final = 10.0
"""The catalog is looked at this often, at least."""
_SETTLED_S: Final = 150.0
_POLL_S: Final = 0.2
_ROOT: Final = Path(__file__).resolve().parents[2]
_SETTINGS: Final = {"allow_in_place_tablespaces": "on"}
_CAPTURE: Final[dict[str, str | int]] = {
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
}


class Stand:
    """Everything that a run needs."""

    def __init__(self, folder: Path, spark: "SparkSession", blindness: str = "") -> None:
        self.folder = folder
        self.exits: list[int] = []
        """Codes that the daemon has ended with by itself."""
        self.merges = 0
        self.complaints: list[str] = []
        self._spark = spark
        self._blind = blindness
        self._postgres = Postgres(folder, _SETTINGS)
        self._kafka = Kafka(folder)
        self._daemon: Process | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        try:
            self._kafka.start()
            self._postgres.start()
            database = self._postgres.create_database("ddl")
            self.conninfo = make_conninfo(**database)
            self.pipeline = Pipeline(
                self.folder, database, self._kafka.client_options(), prefix=PREFIX, capture=_CAPTURE
            )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._end()

    @property
    def log(self) -> Path:
        """The daemon's, a JSON object a line."""
        return self.folder / "daemon.log"

    def start(self) -> None:
        """Start the daemon."""
        module = "tests.ddl_chaos.blind" if self._blind else "millrace"
        words = (sys.executable, "-m", module, "run", "--json")
        environment = {"PYTHONPATH": str(_ROOT), blind.VARIABLE: self._blind}
        every = (*words, "--config", str(self.pipeline.config))
        self._daemon = Command("millrace run", every, self.log, environment=environment).start()
        self._started = time.monotonic()

    def stop(self, *, kill: bool = False) -> None:
        """End the daemon, in order or by SIGKILL."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        if not daemon.running:
            self._ended(daemon)
        elif kill:
            daemon.kill()
        else:
            daemon.stop(timeout_s=60)
            # One that has just been started doesn't listen yet.
            if daemon.exit_code not in {ExitCode.OK, -15}:
                self.complaints.append(f"the daemon, told to end, did so with {daemon.exit_code}")

    def restart(self, *, kill: bool) -> bool:
        """End the daemon, and start it again; returns whether it ran at all."""
        is_there = self._daemon is not None
        if is_there:
            self.stop(kill=kill)
            self.start()
        return is_there

    def watch(self) -> None:
        """Start a daemon that has ended by itself again, as a supervisor would."""
        if self._daemon is not None and not self._daemon.running:
            self._ended(self._daemon)
            time.sleep(1)
            self.start()

    def _ended(self, daemon: Process) -> None:
        code = daemon.exit_code or 0
        self.exits.append(code)
        last = daemon.command.log_end().rpartition("\n")[2]
        self.complaints.append(f"the daemon ended by itself with {code}: {last}")
        daemon.kill()  # its lifeline goes

    def settle(self, check_s: float = CHECK_S) -> bool:
        """Wait until the log has all of a source that nobody changes; returns whether it has.

        A change of the catalog is known after so many seconds.
        """
        end = self.pipeline.wal_end()
        begun = time.monotonic()
        why = "the catalog wasn't checked"
        while why and time.monotonic() < begun + _SETTLED_S:
            time.sleep(_POLL_S)
            self.watch()
            if time.monotonic() >= max(begun, self._started) + check_s:
                why = self._why_not(end)
        if why:
            self.complaints.append(f"not settled after {_SETTLED_S:.0f} s: {why}")
        return not why

    def _why_not(self, end: Lsn) -> str:
        """Why rows can't be compared yet; empty where they can."""
        progress = self.pipeline.progress()
        if progress is None or progress.phase is not Phase.STREAMING:
            return "nothing is streamed"
        if progress.flush_lsn < end:
            return f"the log has {progress.flush_lsn}, not {end}"
        states = {str(state.name): state for state in self.pipeline.tables()}
        reasons = [
            _unready(table, states.get(table), progress.cut) for table in map(full_name, SHAPES)
        ]
        return next(filter(None, reasons), "")

    def merge(self) -> None:
        """Merge what the log has."""
        try:
            summary = run_once(run_lakehouse, self.pipeline.settings, self._spark)
        except MillraceError as error:
            self.complaints.append(f"a merge: {error}")
            return
        self.merges += 1
        for table in summary.tables:
            if table.error is not None:
                self.complaints.append(f"merge of {table.name}: {table.error}")

    def _end(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
        self._postgres.kill()
        self._kafka.kill()


def full_name(table: str) -> str:
    """A table's name with its schema."""
    return table if "." in table else f"public.{table}"


def _unready(table: str, state: TableState | None, cut: Position) -> str:
    """Why the log's rows of a table aren't to be trusted yet."""
    if state is None:
        return f"{table} isn't captured"
    if state.requests:
        return f"{table} is being read: {state.requests}"
    if doubt := state.model_dump().get("doubt"):
        return f"{table} is doubtful: {doubt}"
    return "" if ready(state, cut) else f"{table} isn't whole"
