"""The public face: the version, and the command line.

Importing it costs nothing: ``main`` loads the commands when it is called.
"""

import contextlib
import logging
import os
import sys
import traceback
import warnings
from typing import NoReturn

from cdc.errors import DiskError, ExitCode, MillraceError

DEBUG_VARIABLE = "MILLRACE_DEBUG"
EXTRAS = {"pyspark": "spark", "delta": "spark", "opensearchpy": "search", "fastavro": "avro"}
"""Package → the extra that brings it: the daemon's machine needs none of them."""


def __getattr__(name: str) -> str:
    """``__version__``, read from the installed package where it is wanted."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version

    return version("millrace")


def main() -> None:
    """Run the command line; the one place that turns errors into text and an exit code."""
    from cdc.compiled.extension import require_extension

    _silence_libraries()
    try:
        require_extension()
        from deploy.commands.app import app
        from deploy.commands.ending import ending_in_time

        with ending_in_time():
            try:
                app(standalone_mode=True)
            finally:
                _flush()
    except MillraceError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (a bug of ours gets a message, too)
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
    """Keep warnings and log lines of libraries from the terminal; ``run`` has a log for them."""
    if not os.environ.get(DEBUG_VARIABLE):
        warnings.simplefilter("ignore")
        if not logging.getLogger().handlers:
            logging.getLogger().addHandler(logging.NullHandler())


def _flush() -> None:
    """Write what was printed, while there is somebody to tell that it can't be."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has had enough
        _drop_output()


def _drop_output() -> None:
    """Write nothing more: what is left would be tried again at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: MillraceError) -> NoReturn:
    from deploy.commands.printing import printable_message

    with contextlib.suppress(OSError):  # its exit code tells the kind
        print(f"millrace: {printable_message(str(error))}", file=sys.stderr)
    sys.exit(error.exit_code)


def _of_machine(error: Exception) -> MillraceError | None:
    """What isn't Millrace's fault, and no package has told as an error of its own."""
    if isinstance(error, OSError) and (of_disk := DiskError.of(error)) is not None:
        _drop_output()
        return of_disk
    errors = sys.modules.get("sinks.spark.errors")
    return None if errors is None else errors.run_error(error)


if __name__ == "__main__":
    main()
