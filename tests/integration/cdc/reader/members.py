"""A group → its members, each its own process, and the changes that they have processed."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.local.processes import environment_with
from tests.fixtures.pipeline import RunningPipeline

ROOT = Path(__file__).parents[4]


class Members:
    """Processes of one group, and the changes that each has processed."""

    def __init__(self, made: RunningPipeline, folder: Path, way: str = "") -> None:
        self._made = made
        self._folder = folder
        self._way = way
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start one more."""
        module = "tests.integration.cdc.reader.member"
        notes = self._folder / f"member-{len(self.processes)}"
        notes.touch()
        words = [
            sys.executable,
            "-m",
            module,
            str(self._made.config),
            f"group{self._way}",
            str(notes),
            self._way,
        ]
        environment = environment_with({"PYTHONPATH": str(ROOT)})
        self.processes.append(subprocess.Popen(words, cwd=self._folder, env=environment))
        return self.processes[-1]

    def processed(self, number: int) -> list[tuple[int, int]]:
        """Rows and their versions, in the order in which a member came by them."""
        lines = (self._folder / f"member-{number}").read_text(encoding="utf-8").splitlines()
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def all(self) -> set[tuple[int, int]]:
        """What any of them has processed."""
        return {each for number in range(len(self.processes)) for each in self.processed(number)}

    def wait(self, until: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until they have come so far."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "the members don't come so far"
            time.sleep(0.05)

    def end(self) -> None:
        """End those that are left."""
        for process in self.processes:
            process.kill()
            process.wait()
