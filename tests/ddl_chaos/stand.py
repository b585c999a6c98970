"""A folder → servers, a daemon that starts again after its end, and merges.

The daemon is a user's: `millrace run` with a written millrace.toml. Merges run in this process, in
one Spark session.
"""

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode, MillraceError
from cdc.records.position import Lsn, Position
from cdc.records.state import Phase, TableState
from cdc.settings.drops import COLUMN_POLICY
from deploy.local.kafka import Kafka
from deploy.local.opensearch import OpenSearch
from deploy.local.pipeline import Pipeline
from deploy.local.postgres import Postgres
from deploy.local.processes import Command, Process
from sinks.job import RunSink, run_lakehouse
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext
from sinks.run.plan import ready
from sinks.run.summary import RunSummary
from sinks.search.run import run_search
from tests.chaos.harness import Servers
from tests.ddl_chaos import blind
from tests.ddl_chaos.comparison import Form, full_name, has
from tests.ddl_chaos.shapes import DAEMON, PUBLICATION, SHAPES
from tests.fixtures.postgres import NEWEST, VERSION, unpacked
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "ddl"
_SETTLED_S: Final = 300.0
_POLL_S: Final = 0.2
_EARLY: Final = (ExitCode.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
"""How a daemon ends that has just been started, and so has nothing to end in order yet.

`python -m` ends by SIGINT itself where an interrupt hits the text of a class (dataclasses), though
that is caught.
"""
_ROOT: Final = Path(__file__).resolve().parents[2]
_SETTINGS: Final = {"allow_in_place_tablespaces": "on"}
_CAPTURE: Final[dict[str, str | int]] = {
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
    # The stream moves, so that the log says up to where the catalog was checked.
    "heartbeat.source.interval.ms": 1_000,
}


class Stand(Servers):
    """Everything that a run needs, of the version of PostgreSQL that POSTGRES names.

    ``forms`` are derived of each table, or of ``derived`` ones, and without ``spark`` of none;
    ``blindness`` is what the daemon doesn't see.
    """

    def __init__(
        self,
        folder: Path,
        spark: "SparkSession | None",
        forms: Collection[Form],
        derived: Collection[str] = (),
        blindness: str = "",
    ) -> None:
        self.folder = folder
        self.exits: list[int] = []
        """Codes that the daemon has ended with by itself."""
        self.merge_seconds: list[float] = []
        self.complaints: list[str] = []
        self.tables: Callable[[], Collection[str]] = SHAPES.keys
        """All that have to be whole before anything is compared."""
        self._spark = spark
        self._blind = blindness
        self._kinds = [] if derived else ["current"]
        kinds: set[Form] = {"history", "changes"}
        if derived:
            kinds.add("current")
        self._tables = [
            {"source": str(full_name(table)), "kind": kind}
            for kind in kinds & {*forms}
            for table in SHAPES
            if has(kind, table, derived)
        ]
        binaries = unpacked(VERSION, folder) if VERSION != NEWEST else None
        self._postgres = Postgres(folder, _SETTINGS, binaries=binaries)
        self._kafka = Kafka(folder)
        self._opensearch = OpenSearch(folder) if "index" in forms else None
        self._sinks: list[RunSink] = [run_lakehouse, *([run_search] if self._opensearch else [])]
        self._daemon: Process | None = None
        self._merging = threading.Lock()

    def _start(self) -> None:
        self._kafka.start()
        self._postgres.start()
        if self._opensearch is not None:
            self._opensearch.start()
        database = self._postgres.create_database("ddl")
        self.conninfo = make_conninfo(**database)
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            role, password = sql.Identifier(DAEMON), database["password"]
            for statement in (
                "CREATE ROLE {} LOGIN REPLICATION PASSWORD {}",
                "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {}",
                "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {}",
            ):
                connection.execute(sql.SQL(statement).format(role, password))
        self.pipeline = Pipeline(
            self.folder,
            {**database, "user": DAEMON},
            self._kafka.client_options(),
            prefix=PREFIX,
            capture=_CAPTURE,
            search_url=self._opensearch.url if self._opensearch else None,
            sections={
                "lakehouse": {
                    "kinds": self._kinds,
                    "tables": self._tables,
                    COLUMN_POLICY: "remove",
                }
            },
        )

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
            if daemon.exit_code not in {ExitCode.OK, *_EARLY}:
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

    def settle(self) -> bool:
        """Wait until the log has all of a source that nobody changes; returns whether it has.

        A change of the catalog is known once a check has seen all that is there.
        """
        end = self.pipeline.wal_end()
        begun, why = time.monotonic(), "the log has nothing"
        while why and time.monotonic() < begun + _SETTLED_S:
            time.sleep(_POLL_S)
            self.watch()
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
        if progress.checked is None or progress.checked.commit_lsn < end:
            return f"the catalog was checked up to {progress.checked}, not to {end}"
        states = {str(state.name): state for state in self.pipeline.tables()}
        reasons = [
            _unready(table, states.get(table), progress.cut)
            for table in map(str, map(full_name, self.tables()))
        ]
        return next(filter(None, reasons), "")

    def merge(self, chance: random.Random) -> None:
        """Merge what the log has into the lakehouse, or into the indexes."""
        with self._merging:
            self._merge([chance.choice(self._sinks)])

    @contextmanager
    def merged(self) -> Iterator[None]:
        """All that the log has is merged, and nothing else until the block ends."""
        with self._merging:
            self._merge(self._sinks)
            yield

    def _merge(self, sinks: Sequence[RunSink]) -> None:
        if self._spark is None:
            return
        begun = time.monotonic()
        try:
            run_once(partial(self._turn, sinks), self.pipeline.settings, self._spark)
        except MillraceError as error:
            self.complaints.append(f"a merge: {error}")
        else:
            self.merge_seconds.append(time.monotonic() - begun)

    def _turn(
        self, sinks: Sequence[RunSink], context: RunContext, log: MillraceTopics
    ) -> RunSummary:
        """What `millrace merge` does."""
        for run in sinks:
            summary = run(context, log)
            for table in summary.tables:
                if table.error is not None:
                    self.complaints.append(f"merge of {table.name}: {table.error}")
        return summary

    def _end(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
        if self._opensearch is not None:
            self._opensearch.kill()
        self._postgres.kill()
        self._kafka.kill()


class Merging(threading.Thread):
    """Merges, so many seconds from the beginning of one to the next, until told to stop."""

    def __init__(self, stand: Stand, seed: int, every_s: float) -> None:
        super().__init__(name="merges", daemon=True)
        self._chance = random.Random(f"merges {seed}")  # noqa: S311 (repeatable)
        self._stand = stand
        self._every_s = every_s
        self._out = threading.Event()

    def stop(self) -> None:
        """End, behind a merge that is under way."""
        self._out.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Merge."""
        wait_s = 0.0
        while not self._out.wait(wait_s):
            begun = time.monotonic()
            try:
                self._stand.merge(self._chance)
            except Exception as error:  # noqa: BLE001 (whatever it is, the run has to know)
                self._stand.complaints.append(f"a merge has failed: {error!r}")
            wait_s = max(0.0, begun + self._every_s - time.monotonic())


def _unready(table: str, state: TableState | None, cut: Position) -> str:
    """Why the log's rows of a table aren't to be trusted yet."""
    if state is None:
        return f"{table} isn't captured"
    if state.requests:
        return f"{table} is being read: {state.requests}"
    if doubt := state.model_dump().get("doubt"):
        return f"{table} is doubtful: {doubt}"
    return "" if ready(state, cut) else f"{table} isn't whole"
