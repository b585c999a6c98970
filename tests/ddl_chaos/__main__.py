"""``python -m tests.ddl_chaos``: a run → the faults found, a line of figures, and an exit code."""

import argparse
import logging
import sys

from deploy.local.processes import run_folder
from sinks.spark.session import open_session
from tests.chaos.harness import tell
from tests.ddl_chaos.blind import BLINDNESSES
from tests.ddl_chaos.blind_runs import find_out
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS
from tests.ddl_chaos.run import Plan, run
from tests.fixtures.spark import SPARK


def main() -> int:
    """Run once; 1 where a table differs, a daemon stopped, or one was read again for nothing.

    With --blind: run daemons that don't see something; 1 where one isn't found out.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=180, help="seconds of DDL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", default="", help="kinds to leave out: a,b")
    parser.add_argument("--only", default="", help="kinds to leave in: a,b")
    parser.add_argument("--blind", default="", help="what daemons don't see: a,b or all")
    options = parser.parse_args()
    kinds = {*KINDS, *HARMLESS}
    only, without = _named(options.only), _named(options.without)
    if unknown := {*only, *without} - kinds:
        parser.error(f"{sorted(unknown)} are no kinds of: {', '.join(sorted(kinds))}")
    blind = [*BLINDNESSES] if options.blind == "all" else _named(options.blind)
    if unknown := {*blind} - BLINDNESSES.keys():
        parser.error(f"{sorted(unknown)} are none of: {', '.join(BLINDNESSES)}")
    logging.disable()  # Kafka's clients tell of every fault
    folder = run_folder("millrace-ddl-")
    if blind:
        findings = find_out(blind, options.seed, folder)
        failure = f"not found out: {', '.join(findings.missed)}" if findings.missed else ""
        return tell("ddl-chaos-blind", (), findings.figures, folder, failure)
    left_out = {*without, *(kinds - {*only} if only else ())}
    spark = open_session(SPARK, "ddl chaos")
    try:
        outcome = run(Plan(options.duration, options.seed, left_out), folder, spark)
    finally:
        spark.stop()
    failure = "" if outcome.is_good else f"seed {options.seed}: not what it should be"
    return tell("ddl-chaos", outcome.complaints, outcome.figures, folder, failure)


def _named(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
