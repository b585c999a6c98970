"""``make golden [CASES=folder] [NAMES=…]``: every case of a folder, several at a time."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import run_folder
from tests.golden.case import CASES, find
from tests.golden.runner import PARALLEL, Runner


def main() -> int:
    """Run the cases; returns 1 if one failed."""
    cases = find(Path(os.environ.get("CASES") or CASES), os.environ.get("NAMES", ""))
    kept = os.environ.get("KEEP")
    folder = Path(kept) if kept else run_folder("millrace-golden-")
    servers = run_folder("millrace-golden-servers-")
    postgres, kafka = Postgres(servers), Kafka(servers)
    passed = 0
    try:
        with ThreadPoolExecutor(2) as starting:
            list(starting.map(lambda server: server.start(), (postgres, kafka)))
        runner = Runner(postgres, kafka, folder)
        with ThreadPoolExecutor(PARALLEL) as executor:
            for future in as_completed([executor.submit(runner.run, case) for case in cases]):
                outcome = future.result()
                passed += outcome.passed
                print(outcome, flush=True)
    finally:
        kafka.stop()
        postgres.stop()
        shutil.rmtree(servers, ignore_errors=True)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{passed} passed, {len(cases) - passed} failed")
    return 0 if passed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
