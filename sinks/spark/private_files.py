"""What other users of this machine must neither read nor put there first → files of this user's.

A name in the temporary folder that can be guessed can be taken by anybody, as a folder or as a
link to elsewhere; and a process' arguments are everybody's to read.
"""

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.errors import ConfigError

_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def own_folder() -> Path:
    """This user's folder in the temporary one, made if need be.

    Raises ConfigError where it is somebody else's, or others may write there.
    """
    folder = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise _unfit(folder, f"can't be made: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise _unfit(folder, "is somebody else's, or no folder")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise _unfit(folder, "is open to other users")
    return folder


def _unfit(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the folder for Millrace's temporary files {why}",
        where=str(folder),
        remedy="remove it, or set TMPDIR to a folder of the user's that runs this",
    )


@contextmanager
def submitted(options: Mapping[str, str]) -> Iterator[None]:
    """Let PySpark start a JVM with these options, which its arguments don't show.

    The file is read before the gateway answers, so nobody needs it afterwards. spark-defaults.conf
    counts less, as it does beside arguments.
    """
    handle, name = tempfile.mkstemp(dir=own_folder(), suffix=".conf")
    before = os.environ.get(_ARGUMENTS)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.writelines(f"{_escaped(key)}={_escaped(text)}\n" for key, text in options.items())
        own = f"--load-spark-defaults --properties-file {shlex.quote(name)}"
        os.environ[_ARGUMENTS] = f"{own} {before or 'pyspark-shell'}"
        yield
    finally:
        Path(name).unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = before


def _escaped(text: str) -> str:
    """As java.util.Properties reads it; a character beyond 16 bits is two of its own."""
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(n) if chr(n) in _SAFE else f"\\u{n:04x}" for n in numbers)
