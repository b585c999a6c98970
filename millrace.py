"""The public face: the version, and the command line.

Importing it costs nothing: ``main`` loads the commands when it is called.
"""

import os
import sys
import traceback

from cdc.errors import ExitCode, MillraceError

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

    try:
        require_extension()
        from deploy.commands.app import app

        app(standalone_mode=True)
    except MillraceError as error:
        from deploy.commands.printing import printable_message

        print(f"millrace: {printable_message(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (a bug of ours gets a message, too)
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


if __name__ == "__main__":
    main()
