"""Bytes of transactions that are still open → memory, and a file each for what is too much for it.

The files have no names: the system takes them back when they are closed, or this process has died.
So nothing that an earlier process left is ever read; the slot gives it all again.
"""

import errno
import os
import resource
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from cdc.errors import ConfigError, SpillError

READ_BYTES: Final = 256 << 10
_FILES: Final = 65_536
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FIRST_CHOICES: Final = ("TMPDIR", "TEMP", "TMP")


def spill_directory(configured: Path | None) -> Path:
    """Where the files go: what is configured or the environment says, else /var/tmp.

    /tmp may be memory, which is what they are to save.
    """
    named = next((value for name in _FIRST_CHOICES if (value := os.environ.get(name))), None)
    return configured or Path(named or "/var/tmp")  # noqa: S108 (its files have no names)


def check_spill(directory: Path) -> None:
    """Raise ConfigError where no file can be made, and let this process have many of them.

    A disk that is full may be so no more when it is needed; then that is what is waited for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems say that there is no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    try:
        with tempfile.TemporaryFile(dir=directory):
            return
    except OSError as error:
        if error.errno in _FULL:
            return
        raise ConfigError(
            f"no file can be made for transactions too large for memory: {error.strerror}",
            where=f"spill.directory: {directory}",
            remedy="name a directory on a disk that the daemon may write to",
        ) from None


class Spilled:
    """One transaction's bytes, in order: first those in its file, then those in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._on_disk = 0
        self._pieces: deque[bytes] = deque()
        self.in_memory = 0

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self._on_disk + self.in_memory

    def append(self, piece: bytes) -> None:
        """Add bytes, in memory."""
        self._pieces.append(piece)
        self.in_memory += len(piece)

    def to_disk(self) -> None:
        """Move what is in memory to the file; raises SpillError where the disk doesn't take it."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            while self._pieces:
                rest = memoryview(self._pieces[0])
                while rest:
                    written = os.pwrite(self._file.fileno(), rest, self._on_disk)
                    self._on_disk += written
                    self.in_memory -= written
                    rest = rest[written:]
                self._pieces.popleft()
        except OSError as error:
            raise self._failed(error) from error

    def truncate(self, size: int) -> None:
        """Forget what is behind the first ``size`` bytes."""
        while self._pieces and self.size - len(self._pieces[-1]) >= size:
            self.in_memory -= len(self._pieces.pop())
        if self._pieces and self.size > size:
            piece = self._pieces.pop()
            kept = piece[: len(piece) - (self.size - size)]
            self._pieces.append(kept)
            self.in_memory -= len(piece) - len(kept)
        elif self.size > size and self._file is not None:
            self._file.truncate(size)
            self._on_disk = size

    def read(self) -> Iterator[bytes]:
        """All bytes, in pieces, once: what was read is given back. Raises SpillError."""
        offset = 0
        while self._file is not None and offset < self._on_disk:
            try:
                piece = os.pread(self._file.fileno(), READ_BYTES, offset)
            except OSError as error:
                raise self._failed(error) from error
            if not piece:
                raise self._failed(OSError(0, "the file is shorter than what was written"))
            offset += len(piece)
            yield piece
        while self._pieces:
            piece = self._pieces.popleft()
            self.in_memory -= len(piece)
            yield piece
        self.close()

    def close(self) -> None:
        """Give back file and memory."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._pieces.clear()
        self._on_disk = self.in_memory = 0

    def _failed(self, error: OSError) -> SpillError:
        few = error.errno in {errno.EMFILE, errno.ENFILE}
        remedy = "free some space there, or name another directory"
        return SpillError(
            f"a transaction too large for memory can't be kept on disk: {error.strerror}",
            where=f"spill.directory: {self._directory}, at {self._on_disk:,} bytes of it",
            remedy="raise the limit of open files, or spill.memory.bytes" if few else remedy,
        )
