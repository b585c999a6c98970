"""A command → a process that starts again after each end, as under systemd."""

import threading
from pathlib import Path
from typing import Final

from deploy.local.processes import Command, Process

RESTART_S: Final = 1.0
_POLL_S: Final = 0.05


class Supervised:
    """One daemon, and the exit codes that it has ended with."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.exits: list[int] = []
        self.process: Process = command.start()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor of {name}")
        self._thread.start()

    @property
    def log(self) -> Path:
        """Where all of its processes write."""
        return self.process.command.log

    def peak_mb(self) -> float:
        """The largest resident size (VmHWM) of the process that runs; 0 between two."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0.0
        lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(lines[0].split()[1]) / 1024 if lines else 0.0

    def stop(self) -> int:
        """End it in order, for good; returns the exit code."""
        self._stopping.set()
        self._thread.join()
        self.process.stop()
        code = self.process.exit_code
        assert code is not None
        return code

    def kill(self) -> None:
        """End it anyhow, for good."""
        self._stopping.set()
        self._thread.join()
        self.process.kill()

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_S):
            code = self.process.exit_code
            if code is None:
                continue
            self.exits.append(code)
            self.process.kill()  # its lifeline goes
            if self._stopping.wait(RESTART_S):
                return
            self.process = self.process.command.start()
