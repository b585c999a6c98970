"""``python -m tests.fuzz``: inputs to every target, or to some → one line of the outcome."""

import argparse
import resource
import sys
import time

from tests.fuzz.copied import CopiedLines
from tests.fuzz.messages import Frames, Messages
from tests.fuzz.records import Conditions, SignalTexts, StateRecords
from tests.fuzz.streams import LogicalMessages, Streams
from tests.fuzz.target import Target, fuzz
from tests.fuzz.texts import CopyLines, Positions, Values

TARGETS: tuple[type[Target], ...] = (
    Messages, Frames, Values, CopyLines, Positions, Streams, LogicalMessages, CopiedLines,
    StateRecords, SignalTexts, Conditions,
)  # fmt: skip


def main() -> int:
    """Fuzz; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="*", default=[target.name for target in TARGETS])
    options = parser.parse_args()
    chosen = [target for target in TARGETS if target.name in options.targets]
    shares = sum(target.share for target in chosen)
    total, failures = 0, []
    for target in chosen:
        begun = time.monotonic()
        count, failed = fuzz(target(options.seed), -(-options.inputs * target.share // shares))
        total += count
        failures += failed
        print(f"{target.name}: {count} inputs in {time.monotonic() - begun:.0f} s", flush=True)
    for failure in failures:
        print(failure)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024
    print(f"{total} inputs, {len(failures)} failures (seed {options.seed}, {peak_mb} MB)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
