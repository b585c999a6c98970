"""A base folder -> PostgreSQL, Kafka and OpenSearch, started side by side and stopped together.

    with Stack() as stack:
        psycopg.connect(make_conninfo(**stack.postgres.conninfo()))

Whatever ends the block, Ctrl-C in the middle of the start too, no server is left. With `keep` a
block that ends well leaves the servers running and says in a file how `make stop` finds them.
`python -m deploy.local.stack start | stop` does the same from a shell.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Final, Protocol, Self

from deploy.local.accounts import run_folder
from deploy.local.kafka import Kafka
from deploy.local.kept import STATE_FILE, KeptProcess, KeptStack
from deploy.local.opensearch import OpenSearch
from deploy.local.postgres import Postgres
from deploy.local.processes import Process, ServerError, environment_with

_USAGE: Final = "usage: python -m deploy.local.stack start | stop | psql [DATABASE]"


class Server(Protocol):
    """What all three have in common."""

    name: str
    stop_signal: Signals
    process: Process | None

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        ...

    def stop(self) -> None:
        """End it in order."""
        ...


class Stack:
    """The three servers that a pipeline needs, below one folder."""

    def __init__(
        self,
        base_dir: Path | None = None,
        *,
        postgres_settings: Mapping[str, str] | None = None,
        kafka_settings: Mapping[str, str] | None = None,
        keep: bool = False,
        state_file: Path = STATE_FILE,
    ) -> None:
        if keep:
            _refuse_second(state_file)
        self._state_file = state_file
        self._folder_is_ours = base_dir is None
        self._keep = keep
        self._beside: list[KeptProcess] = []
        self.folder = base_dir or run_folder()
        self.postgres = Postgres(self.folder, postgres_settings, keep=keep)
        self.kafka = Kafka(self.folder, kafka_settings, keep=keep, lasting=True)
        self.opensearch = OpenSearch(self.folder, keep=keep)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers, the one that takes longest first."""
        return (self.opensearch, self.kafka, self.postgres)

    def start(self) -> Self:
        """Start all servers at once; where one fails, stop all of them and raise its error."""
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
        """Stop all servers, and remove the folder where the stack made it."""
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
        """Put another process, a daemon say, into the state file, to be ended first by `stop`."""
        self._beside.append(KeptProcess.of(name, pid))
        self._describe().write(self._state_file)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None or not self._keep:
            self.stop()

    def _abandon(self, starts: Sequence[Future[Server]]) -> None:
        # A start has steps (initdb, then the server), so one stop may come before the last of them.
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
    """Start a stack to keep, or stop the one that is kept, or open psql there."""
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
        print(f"started; how to connect is in {state_file}, make stop ends it")
        return 0
    if arguments[:1] == ["psql"]:
        return _psql(*arguments[1:2], state_file=state_file)
    print(_USAGE, file=sys.stderr)
    return 2


def _psql(database: str = "postgres", *, state_file: Path) -> int:
    """Run psql in the kept stack; the password doesn't show in the list of processes."""
    kept = KeptStack.read(state_file)
    if kept is None or not kept.running:
        print("no stack is kept: make demo KEEP=1 leaves one", file=sys.stderr)
        return 2
    about = {**kept.connections["postgres"], "dbname": database}
    own = {f"PG{name.upper()}": about[name] for name in ("host", "port", "user", "password")}
    own["PGDATABASE"] = about["dbname"]
    program = kept.connections["psql"]["program"]
    return subprocess.run([program, "-X"], env=environment_with(own), check=False).returncode


def _refuse_second(state_file: Path) -> None:
    kept = KeptStack.read(state_file)
    if kept is not None and kept.running:
        raise ServerError(f"a kept stack runs already (see {state_file}): make stop ends it")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
