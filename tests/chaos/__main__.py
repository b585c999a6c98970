"""``python -m tests.chaos``: a run → the faults found, one line of figures, and an exit code."""

import argparse
import logging
import sys
from pathlib import Path

from deploy.local.processes import run_folder
from tests.chaos.harness import tell
from tests.chaos.nemesis import KINDS, OF_THREE, WEIGHTS
from tests.chaos.run import Plan, run


def main() -> int:
    """Run once; 1 where anything is lost, twice, out of order or different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=180, help="seconds of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for committed.jsonl and log.jsonl")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, help="these kinds of fault only")
    parser.add_argument("--module", default="millrace", help="what is run as the daemon")
    options = parser.parse_args()
    logging.disable()  # Kafka's clients tell of every fault
    weights = {**WEIGHTS, **(OF_THREE if options.brokers > 1 else {})}
    if foreign := set(options.kinds or ()) - weights.keys():
        parser.error(f"--brokers 3 is what these kinds need: {', '.join(sorted(foreign))}")
    kinds = {kind: weights[kind] for kind in options.kinds or weights}
    plan = Plan(
        options.duration, options.seed, kinds, options.module, options.keep, options.brokers
    )
    folder = run_folder("millrace-chaos-")
    outcome = run(plan, folder)
    failure = "" if outcome.is_good else f"seed {plan.seed}: the log is not what was committed"
    complaints = (*outcome.complaints, *outcome.verdict.shown)
    return tell("chaos", complaints, outcome.figures, folder, failure)


if __name__ == "__main__":
    sys.exit(main())
