"""``spark-submit …/deploy/submit.py lakehouse|search|all [--config FILE]`` → one run.

The same as ``millrace merge``, for clusters where Spark starts the program. Jars and master are
spark-submit's: docs/operations.md. The source is never asked here: ``--types-from-source`` is
``millrace merge``'s.
"""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    # A program's own folder comes first in Python's path; the packages are beside it.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cdc.convert.converters import schema_reader
from cdc.errors import MillraceError
from cdc.settings import DEFAULT_PATH, load
from sinks.job import Jobs
from sinks.run.options import RunOptions


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen jobs once; the exit code is that of ``millrace merge``."""
    parser = argparse.ArgumentParser(description="Apply the log to derived tables.")
    parser.add_argument("sink", choices=["lakehouse", "search", "all"], nargs="?", default="all")
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH)
    chosen = parser.parse_args(arguments)
    try:
        settings = load(chosen.config)
        options = RunOptions(schema_of=schema_reader(settings.format))
        with Jobs(settings, chosen.sink, options) as jobs:
            return int(jobs.run(lambda line: print(line, flush=True)))
    except MillraceError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
