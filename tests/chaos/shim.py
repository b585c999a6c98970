"""A folder → a full disk below it, and another time of day, for processes that we start.

The C compiler that `make setup` requires builds the library (shim.c). It is loaded before a
process's own libraries (Linux). A file that both sides map has its few settings.
"""

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

from deploy.local.jars import SetupError

_SOURCE: Final = Path(__file__).with_name("shim.c")
_FIELDS: Final = struct.Struct("=qqq")
_CLOCK, _FULL, _REFUSED = 0, 8, 16


def build(folder: Path) -> Path:
    """Compile the library into the folder; raises SetupError where there is no way to load it."""
    if sys.platform != "linux":
        raise SetupError("faults of disks and clocks need Linux")
    library = folder / "shim.so"
    compiler = os.environ.get("CC", "cc")
    words = (compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl")
    subprocess.run(words, check=True)
    return library


class Shim:
    """What one process, and those that take its place, live with."""

    def __init__(self, library: Path, control: Path, disk: Path) -> None:
        control.write_bytes(bytes(_FIELDS.size))
        control.chmod(0o666)
        self.disk = disk
        self.environment = {
            "LD_PRELOAD": str(library),
            "CHAOS_CONTROL": str(control),
            "CHAOS_DISK": str(disk),
        }
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FIELDS.size)

    @property
    def refused(self) -> int:
        """How many writes were refused so far: a full disk that nobody writes to is no fault."""
        return self._get(_REFUSED)

    def fill_disk(self, full: bool) -> None:
        """Let writes fail, or succeed again."""
        self._set(_FULL, int(full))

    def set_clock(self, seconds: int) -> None:
        """Let the time of day be later by so much than it is."""
        self._set(_CLOCK, seconds)

    def _get(self, at: int) -> int:
        return int.from_bytes(self._map[at : at + 8], "little", signed=True)

    def _set(self, at: int, value: int) -> None:
        self._map[at : at + 8] = value.to_bytes(8, "little", signed=True)
