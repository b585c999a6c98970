"""The public face: the version, the reader of the log, and the command line.

Importing it costs nothing. The reader is loaded when its name is imported. ``main`` loads the
commands when it is called.
"""

import contextlib
import errno
import io
import logging
import os
import signal
import stat
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cdc.errors import DiskError, ExitCode, MillraceError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from cdc.reader.changes import changes
    from cdc.reader.events import ChangeEvent, ChangeSource
    from cdc.reader.stream import ChangeStream
    from cdc.reader.transactions import SourceTransaction, TransactionStream
    from cdc.records.dead_letters import DeadLetter
    from cdc.records.position import Lsn, Position

__all__ = [
    "ChangeEvent", "ChangeSource", "ChangeStream", "DeadLetter", "Lsn", "MillraceError", "Position",
    "SourceTransaction", "TransactionStream", "changes", "main",
]  # fmt: skip

DEBUG_VARIABLE = "MILLRACE_DEBUG"
EXTRAS = {
    **dict.fromkeys(("delta", "py4j", "pyspark"), "spark"),
    "opensearchpy": "search",
    **dict.fromkeys(("attr", "authlib", "cachetools", "fastavro", "httpx2"), "avro"),
}
"""Package → the extra that installs it. The daemon's machine needs none of them."""


READER: Final = {
    "changes": "cdc.reader.changes",
    "ChangeEvent": "cdc.reader.events",
    "ChangeSource": "cdc.reader.events",
    "ChangeStream": "cdc.reader.stream",
    "DeadLetter": "cdc.records.dead_letters",
    "Lsn": "cdc.records.position",
    "Position": "cdc.records.position",
    "SourceTransaction": "cdc.reader.transactions",
    "TransactionStream": "cdc.reader.transactions",
}
"""Public name of the reader → its module."""


def __getattr__(name: str) -> Any:
    """Return a name of the reader, or the ``__version__`` of the installed package."""
    if name == "__version__":
        from importlib.metadata import version

        return version("millrace")
    if name not in READER:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(READER[name]), name)


def main() -> None:
    """Run the command line. A signal ends it in time, even while it prints an error."""
    from deploy.commands.ending import InterruptedCommandError, ending_in_time

    _open_streams()
    _silence_libraries()
    with ending_in_time() as cut_short:
        try:
            try:
                _command()
            finally:
                _settle_output()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second signal has nothing to interrupt
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _drop_output()
            if cut_short.is_set():
                sys.exit(ExitCode.INTERRUPTED)
            _fail(InterruptedCommandError())


class _LossyStream(io.FileIO):
    """Standard error that drops what it can't write, so a full disk there ends no command."""

    def write(self, data: "ReadableBuffer") -> int:
        """Write the buffer, or report it as written."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Open the three standard streams, and make the one for errors never fail.

    The next file or connection would get the number of a closed stream. Libraries would then write
    their messages into it, and ``print`` would take it for standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # opens the lowest free number, which is this one
            os.set_inheritable(number, True)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory that the caller has set
        raw = io.BufferedWriter(_LossyStream(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            raw, encoding=sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


def _command() -> None:
    """Run a command, and turn an error into text and an exit code. Only this function does."""
    from cdc.compiled.extension import require_extension
    from deploy.commands.ending import InterruptedCommandError

    try:
        require_extension()
        from deploy.commands.app import app

        try:
            app(standalone_mode=True)
        except SystemExit as ended:
            if not ended.code:
                _flush()
            raise
    except InterruptedCommandError:
        raise KeyboardInterrupt from None
    except MillraceError as error:
        _fail(error)
    except Exception as error:  # noqa: BLE001 (a bug of ours gets a message, too)
        if isinstance(error, OSError) and _is_hung_up(error):
            sys.exit(ExitCode.INTERRUPTED)
        if (of_machine := _of_machine(error)) is not None:
            _fail(of_machine)
        package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if package in EXTRAS:
            print(
                f"millrace: this command needs the package {package}, which isn't installed\n"
                f"  → install Millrace with it: millrace[{EXTRAS[package]}], or `make setup`",
                file=sys.stderr,
            )
            sys.exit(ExitCode.SPARK_MISSING)
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print(
            f"millrace: internal error: {type(error).__name__}\n"
            f"  → this is a bug; {DEBUG_VARIABLE}=1 shows the details to report. Nothing is lost: "
            "the next start goes on where this one was",
            file=sys.stderr,
        )
        sys.exit(ExitCode.BUG)


def _silence_libraries() -> None:
    """Keep libraries' warnings and log lines off the terminal. ``run`` has a log for them."""
    if not os.environ.get(DEBUG_VARIABLE):
        warnings.simplefilter("ignore")
        if not logging.getLogger().handlers:
            logging.getLogger().addHandler(logging.NullHandler())


def _flush() -> None:
    """Flush the output of a command that has succeeded. Raise OSError if output is lost."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader has closed the pipe
    except OSError as error:
        if not _is_hung_up(error):
            raise


def _is_hung_up(error: OSError) -> bool:
    """Whether the terminal that the command writes to was closed, so that no disk fails."""
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)


def _settle_output() -> None:
    """Keep Python from writing lost output again at exit, which would change the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_output()


def _drop_output() -> None:
    """Send further output to the null device, as Python would write the rest again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: MillraceError) -> NoReturn:
    from deploy.commands.printing import printable_message

    print(f"millrace: {printable_message(str(error))}", file=sys.stderr)
    sys.exit(error.exit_code)


def _of_machine(error: Exception) -> MillraceError | None:
    """Return the MillraceError for a fault of the machine that no package has explained."""
    if isinstance(error, OSError) and (of_disk := DiskError.of(error)) is not None:
        return of_disk
    errors = sys.modules.get("sinks.spark.errors")
    return None if errors is None else errors.run_error(error)


if __name__ == "__main__":
    main()
