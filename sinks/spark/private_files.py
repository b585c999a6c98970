"""What other users of this machine must neither read nor put there first → files of this user's.

A name in the temporary folder that can be guessed can be taken by anybody, as a folder or as a
link to elsewhere; and a process' arguments are everybody's to read.
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
"""Who writes a file has locked it by then."""
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def own_folder() -> Path:
    """This user's folder in the temporary one, made if need be.

    One that was opened to others (Kubernetes gives volumes to a pod's group) is closed to them.
    Raises ConfigError where it is somebody else's, or stays open.
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
    """The folder's status, once its mode is 0700 where the file system has modes."""
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

    The file is read before the gateway answers, so nobody needs it afterwards. spark-defaults.conf
    counts less, as it does beside arguments. Raises ConfigError where the user's own arguments name
    another such file: Spark reads the last one alone.
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
            fcntl.flock(file, fcntl.LOCK_EX)  # until the JVM is there, or this process isn't
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
    """Remove files of processes that ended while their JVM started: nobody locks those."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > _LOCKED_S:
                path.unlink()


def scratch_folder() -> Path:
    """A new folder for Spark's temporary files, which is this process's alone until it ends.

    Spark removes its files at its end. What a JVM has left that was killed goes here, with the
    next start: a join's files may be many.
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
    """As java.util.Properties reads it; a character beyond 16 bits is two of its own."""
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(n) if chr(n) in _SAFE else f"\\u{n:04x}" for n in numbers)
