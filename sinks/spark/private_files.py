"""Data that other users of this machine must neither read nor replace → files of this user.

Any user can take a guessable name in the temporary folder, as a folder or as a link. And any user
can read a process's arguments.
"""

import atexit
import fcntl
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cdc.errors import ConfigError

_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES: Final = "--properties-file"
_SUFFIX: Final = ".conf"
_SCRATCH: Final = "spark-"
_LOCKED_S: Final = 60
"""After this time, the writer of a file has locked it."""
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def own_folder() -> Path:
    """Return this user's folder in the temporary one. Create it if necessary.

    Close it if it is open to others (Kubernetes opens volumes to a pod's group). Raise ConfigError
    if another user owns it, or it stays open.
    """
    folder = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise _unfit(folder, f"can't be created: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise _unfit(folder, "belongs to another user, or isn't a folder")
    if _is_open(status) and _is_open(_closed(folder)):
        raise _unfit(folder, "is open to other users, and can't be closed")
    return folder


def _is_open(status: os.stat_result) -> bool:
    return bool(stat.S_IMODE(status.st_mode) & 0o077)


def _closed(folder: Path) -> os.stat_result:
    """Set the folder's mode to 0700 if the file system has modes. Return its status."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(OSError):
            os.fchmod(handle, 0o700)
        return os.fstat(handle)
    finally:
        os.close(handle)


def _unfit(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the folder for Millrace's temporary files {why}",
        where=str(folder),
        remedy="remove it, or set TMPDIR to a folder of this process's user",
    )


@contextmanager
def submitted(options: Mapping[str, str]) -> Iterator[None]:
    """Let PySpark start a JVM with these options, which its arguments don't show.

    The file is read before the gateway answers, so it isn't needed afterwards. It takes precedence
    over spark-defaults.conf, like arguments. Raise ConfigError if the user's own arguments name
    another such file, as Spark reads only the last one.
    """
    before = os.environ.get(_ARGUMENTS)
    if _PROPERTIES in (before or ""):
        raise ConfigError(
            f"{_PROPERTIES} replaces all options that Millrace gives Spark",
            where=f"the variable {_ARGUMENTS}",
            remedy="remove it, and write the file's options into [spark]",
        )
    folder = own_folder()
    _remove_stale(folder)
    handle, name = tempfile.mkstemp(dir=folder, suffix=_SUFFIX)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the JVM exists, or this process ends
            file.writelines(f"{_escaped(key)}={_escaped(text)}\n" for key, text in options.items())
            file.flush()
            own = f"--load-spark-defaults {_PROPERTIES} {shlex.quote(name)}"
            os.environ[_ARGUMENTS] = f"{own} {before or 'pyspark-shell'}"
            yield
    finally:
        Path(name).unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = before


def _remove_stale(folder: Path) -> None:
    """Remove unlocked files of processes that ended while their JVM started."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > _LOCKED_S:
                path.unlink()


def scratch_folder() -> Path:
    """Return a new folder for Spark's temporary files, used only by this process until it ends.

    Spark removes its files at its end. The next start removes the files of a killed JVM, as a
    join's files may be many.
    """
    folder = own_folder()
    _remove_abandoned(folder)
    made = Path(tempfile.mkdtemp(dir=folder, prefix=_SCRATCH))
    fcntl.flock(os.open(made, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
    atexit.register(_remove_empty, made)
    return made


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(handle).st_mtime > _LOCKED_S:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _escaped(text: str) -> str:
    """Return the text as java.util.Properties reads it. A character above 16 bits becomes two."""
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(n) if chr(n) in _SAFE else f"\\u{n:04x}" for n in numbers)
