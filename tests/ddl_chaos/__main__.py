"""``python -m tests.ddl_chaos``: a run → what is wrong, one line of figures, and an exit code."""

import argparse
import json
import logging
import shutil
import sys

from deploy.local.processes import run_folder
from sinks.spark.session import open_session
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS
from tests.ddl_chaos.run import Plan, run
from tests.fixtures.spark import SPARK


def main() -> int:
    """Run once; 1 where a table differs, a daemon stopped, or one was read again for nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=180, help="seconds of DDL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", default="", help="kinds to leave out: a,b")
    parser.add_argument("--only", default="", help="kinds to leave in: a,b")
    options = parser.parse_args()
    kinds = {*KINDS, *HARMLESS}
    only, without = _named(options.only), _named(options.without)
    if unknown := (only | without) - kinds:
        parser.error(f"{sorted(unknown)} are no kinds of: {', '.join(sorted(kinds))}")
    logging.disable()  # Kafka's clients tell of every fault
    plan = Plan(options.duration, options.seed, without | (kinds - only if only else set()))
    folder = run_folder("millrace-ddl-")
    spark = open_session(SPARK, "ddl chaos")
    try:
        outcome = run(plan, folder, spark)
    finally:
        spark.stop()
    for complaint in outcome.complaints:
        print(complaint)
    print(json.dumps({"benchmark": "ddl-chaos", "figures": outcome.figures}, ensure_ascii=False))
    if outcome.is_good:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"seed {plan.seed}: not what it should be; logs of daemon and servers: {folder}")
    return 1


def _named(words: str) -> frozenset[str]:
    return frozenset(word.strip() for word in words.split(",") if word.strip())


if __name__ == "__main__":
    sys.exit(main())
