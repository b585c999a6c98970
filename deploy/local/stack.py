"""A base folder → PostgreSQL, Kafka and OpenSearch, started side by side and stopped together.

  with Stack() as stack:
      psycopg.connect(make_conninfo(**stack.postgres.conninfo()))

Whatever ends the block, even Ctrl-C during the start, no server is left. With `keep`, a block that
ends without an error leaves the servers running, and writes a file that `make stop` uses to find
them. `python -m deploy.local.stack start | stop` does the same from a shell.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from deploy.local.jars import REPOSITORY
from deploy.local.kafka import Kafka
from deploy.local.opensearch import OpenSearch
from deploy.local.postgres import Postgres
from deploy.local.processes import Server, ServerError, end, environment_with, run_folder

STATE_FILE: Final = REPOSITORY / ".run" / "stack.json"
_FORMAT: Final = 1
_POLL_S: Final = 0.05
_USAGE: Final = "usage: python -m deploy.local.stack start | stop | psql [DATABASE]"


@dataclass(frozen=True, slots=True)
class KeptProcess:
    """A process that continues without us."""

    name: str
    pid: int
    started: str
    stop_signal: str

    @classmethod
    def of(cls, name: str, pid: int, stop_signal: signal.Signals = signal.SIGTERM) -> Self:
        """Describe a running process."""
        started = _started(pid)
        if started is None:
            raise ProcessLookupError(f"{name} (process {pid}) has ended")
        return cls(name, pid, started, stop_signal.name)

    @property
    def running(self) -> bool:
        """Whether exactly this process, not a later one of the same id, still runs."""
        return _started(self.pid) == self.started

    def stop(self) -> None:
        """Ask it to end, and kill it if it doesn't in time."""
        end(self, signal.Signals[self.stop_signal])

    def poll(self) -> int | None:
        """Return None while it runs. For a process that isn't our child, the exit code is lost."""
        return None if self.running else 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait this number of seconds for its end."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.running:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.name, timeout or 0)
            time.sleep(_POLL_S)
        return 0

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it still runs."""
        if self.running:
            os.kill(self.pid, sig)


@dataclass(frozen=True, slots=True)
class KeptStack:
    """The state file's contents. `connections` is name → options, for people and scripts."""

    folder: str
    folder_is_ours: bool
    processes: Sequence[KeptProcess]
    connections: Mapping[str, Mapping[str, str]]
    format: int = field(default=_FORMAT)

    def write(self, file: Path) -> None:
        """Write the state file, readable only by its owner."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Read the state file. None: no stack is kept."""
        if not file.exists():
            return None
        state = json.loads(file.read_text())
        if state["format"] != _FORMAT:
            raise ValueError(
                f"{file} has format {state['format']}; this version reads format {_FORMAT}"
            )
        processes = [KeptProcess(**process) for process in state.pop("processes")]
        return cls(processes=processes, **state)

    @property
    def running(self) -> bool:
        """Whether any of its processes still runs."""
        return any(process.running for process in self.processes)

    def stop(self, file: Path) -> None:
        """End its processes, the last started first, and remove its folder and the file."""
        for process in reversed(self.processes):
            process.stop()
        if self.folder_is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)
        file.unlink(missing_ok=True)


def _started(pid: int) -> str | None:
    """Return when a process started, in the system's own words. None: it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may contain anything. The fixed fields follow the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


class Stack:
    """The three servers of a pipeline, in one folder."""

    def __init__(
        self,
        base_dir: Path | None = None,
        *,
        postgres_settings: Mapping[str, str] | None = None,
        keep: bool = False,
        state_file: Path = STATE_FILE,
    ) -> None:
        if keep and (kept := KeptStack.read(state_file)) is not None and kept.running:
            raise ServerError(
                f"a kept stack is already running (see {state_file}): make stop ends it"
            )
        self._state_file = state_file
        self._folder_is_ours = base_dir is None
        self._keep = keep
        self._beside: list[KeptProcess] = []
        self.folder = base_dir or run_folder()
        self.postgres = Postgres(self.folder, postgres_settings, keep=keep)
        self.kafka = Kafka(self.folder, keep=keep, lasting=True)
        self.opensearch = OpenSearch(self.folder, keep=keep)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers, the slowest one first."""
        return (self.opensearch, self.kafka, self.postgres)

    def start(self) -> Self:
        """Start all servers at once. If one fails, stop all of them and raise its error."""
        with ThreadPoolExecutor(len(self.servers)) as executor:
            starts = [executor.submit(server.start) for server in self.servers]
            try:
                for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                    start.result()
            except BaseException:
                self._abandon(starts)
                raise
        if self._keep:
            self._describe().write(self._state_file)
        return self

    def stop(self) -> None:
        """Stop all servers, and remove the folder if the stack created it."""
        with ThreadPoolExecutor(len(self.servers)) as executor:
            for server in self.servers:
                executor.submit(server.stop)
        if self._folder_is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._keep:
            for process in reversed(self._beside):
                process.stop()
            self._state_file.unlink(missing_ok=True)

    def keep_also(self, name: str, pid: int) -> None:
        """Add another process, such as a daemon, to the state file. `stop` ends it first."""
        self._beside.append(KeptProcess.of(name, pid))
        self._describe().write(self._state_file)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None or not self._keep:
            self.stop()

    def _abandon(self, starts: Sequence[Future[Server]]) -> None:
        # A start has steps (initdb, then the server), so a stop may come before the last of them.
        while wait(starts, timeout=0.2).not_done:
            for server in self.servers:
                server.stop()
        self.stop()

    def _describe(self) -> KeptStack:
        processes = [
            KeptProcess.of(server.name, server.process.pid, server.stop_signal)
            for server in self.servers
            if server.process is not None
        ]
        connections = {
            "postgres": self.postgres.conninfo(),
            "kafka": self.kafka.client_options(),
            "opensearch": {"url": self.opensearch.url},
            "psql": {"program": str(self.postgres.bin("psql"))},
        }
        folder = str(self.folder)
        return KeptStack(folder, self._folder_is_ours, processes + self._beside, connections)


def main(arguments: Sequence[str], state_file: Path = STATE_FILE) -> int:
    """Start a stack to keep, stop the kept one, or open psql there."""
    if list(arguments) == ["stop"]:
        kept = KeptStack.read(state_file)
        if kept is None:
            print("no stack is kept")
        else:
            kept.stop(state_file)
            print(f"stopped {', '.join(process.name for process in kept.processes)}")
        return 0
    if list(arguments) == ["start"]:
        Stack(keep=True, state_file=state_file).start()
        print(f"started; {state_file} has the connections; make stop ends it")
        return 0
    if arguments[:1] == ["psql"]:
        return _psql(*arguments[1:2], state_file=state_file)
    print(_USAGE, file=sys.stderr)
    return 2


def _psql(database: str = "postgres", *, state_file: Path) -> int:
    """Run psql in the kept stack. The password doesn't appear in the list of processes."""
    kept = KeptStack.read(state_file)
    if kept is None or not kept.running:
        print("no stack is kept: make demo KEEP=1 leaves one", file=sys.stderr)
        return 2
    about = {**kept.connections["postgres"], "dbname": database}
    own = {f"PG{name.upper()}": about[name] for name in ("host", "port", "user", "password")}
    own["PGDATABASE"] = about["dbname"]
    program = kept.connections["psql"]["program"]
    return subprocess.run([program, "-X"], env=environment_with(own), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
