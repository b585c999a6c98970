"""A started stack -> a file that describes it -> its end, at the hands of another process.

With KEEP=1 the servers outlive the command that started them. The file says which processes these
are (by id and by the moment they started, so that a recycled id is never signalled), how to connect
to them, and which folder to remove afterwards. It holds a password: mode 600.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from deploy.local.jars import REPOSITORY

STATE_FILE: Final = REPOSITORY / ".run" / "stack.json"
_FORMAT: Final = 1
_STOP_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class KeptProcess:
    """A process that goes on without us."""

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
        """Whether this very process, and not a later one of the same id, still runs."""
        return _started(self.pid) == self.started

    def stop(self) -> None:
        """Ask it to end, and kill it when it doesn't in time."""
        self._signal(signal.Signals[self.stop_signal])
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class KeptStack:
    """What the state file holds; `connections` is name → options, for people and scripts."""

    folder: str
    folder_is_ours: bool
    processes: Sequence[KeptProcess]
    connections: Mapping[str, Mapping[str, str]]
    format: int = field(default=_FORMAT)

    def write(self, file: Path) -> None:
        """Write the state file, readable by its owner alone."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Read the state file, or nothing where no stack is kept."""
        if not file.exists():
            return None
        state = json.loads(file.read_text())
        if state["format"] != _FORMAT:
            raise ValueError(f"{file} has format {state['format']}, this is format {_FORMAT}")
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
    """Return when a process started, in the system's own words; nothing where it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may hold anything: the fixed fields follow the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None
