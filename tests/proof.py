"""``python -m tests.proof [STAGE …]``: the tests that `make test` skips → a JSON of their outcomes.

Stages run one after another, each as its own command that a person can run, too. A failed stage
doesn't stop the next. ``.cache/proof.json`` has each stage's command, seconds, exit code, and the
outcome of each of its tests. The last line of output is their sum.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from deploy.local.jars import REPOSITORY
from tests.containers.engine import NONE_ANSWERS, engine

REPORT: Final = REPOSITORY / ".cache" / "proof.json"
PYTEST: Final = (sys.executable, "-m", "pytest")
WORKERS: Final = ("-n", "2", "--dist", "loadgroup")
CORE: Final = (
    "tests/integration/test_end_to_end.py",
    "tests/integration/cdc/postgres",
    "tests/integration/cdc/values/test_values_against_postgres.py",
    "tests/integration/snapshots/test_initial.py",
    "tests/integration/snapshots/test_while_streaming.py",
    "tests/faults/test_killed_daemon.py",
)
"""What is run on each PostgreSQL: sessions, types, snapshots, the whole way, and deaths."""
CONTAINERS: Final = (
    "tests/integration/test_end_to_end.py",
    "tests/integration/cdc/postgres/test_stream.py",
    "tests/integration/snapshots/test_initial.py",
    "tests/integration/snapshots/test_while_streaming.py",
    "tests/faults/test_killed_daemon.py",
    "tests/faults/test_outages.py",
    "tests/integration/sinks/delta/test_run.py",
    "tests/integration/sinks/search/test_run.py",
    "tests/integration/sinks/search/joined",
)
"""What is run on servers in containers: from the whole way to deaths, merges and search."""
SEARCH: Final = ("tests/integration/sinks/search", "tests/integration/compaction/test_indexes.py")
PROPERTIES: Final = (
    "tests/properties",
    "tests/integration/cdc/values/test_values_against_postgres.py",
)
EXAMPLES: Final = 10
"""So many times as many examples as in `make test`."""
CHAOS_S: Final = 600
CHAOS: Final = (sys.executable, "-m", "tests.chaos")
DDL_CHAOS: Final = (sys.executable, "-m", "tests.ddl_chaos")
DDL_CHAOS_S: Final = 300
FUZZ_INPUTS: Final = 1_000_000
NEED_AN_ENGINE: Final = {"containers", "images"}
"""Stages that need a container engine, and are skipped without one."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, with what it adds to the environment."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_pytest(self) -> bool:
        """Whether it tells of each test."""
        return self.words[: len(PYTEST)] == PYTEST

    @property
    def obstacle(self) -> str | None:
        """Why it can't be run on this machine."""
        return NONE_ANSWERS if self.name in NEED_AN_ENGINE and engine() is None else None

    def run(self) -> dict[str, Any]:
        """Run it to its end; returns what is to be told of it."""
        print(f"\nproof: {self.name}", flush=True)
        if self.obstacle:
            print(f"skipped: {self.obstacle}", flush=True)
            return {
                "stage": self.name,
                "seconds": 0,
                "exit_code": 0,
                "skipped": self.obstacle,
                "counts": {},
            }
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder, "results.xml")
            words = (*self.words, f"--junitxml={results}") if self.is_pytest else self.words
            environment = {**os.environ, **self.environment}
            ended = subprocess.run(words, cwd=REPOSITORY, env=environment, check=False)
            tests = outcomes(results) if results.exists() else {}
        return {
            "stage": self.name,
            "command": " ".join([*(f"{k}={v}" for k, v in self.environment.items()), *self.words]),
            "seconds": round(time.monotonic() - began),
            "exit_code": ended.returncode,
            "counts": dict(Counter(tests.values())),
            "tests": tests,
        }


STAGES: Final = (
    Stage("rare", (*PYTEST, "-m", "proof", *WORKERS)),
    Stage("opensearch-3", (*PYTEST, "-m", "", *SEARCH), {"OPENSEARCH": "3"}),
    Stage("examples", (*PYTEST, *PROPERTIES, *WORKERS), {"EXAMPLES": str(EXAMPLES)}),
    *(
        Stage(f"postgres-{version}", (*PYTEST, "-m", "", *CORE, *WORKERS), {"POSTGRES": version})
        for version in ("14", "15", "16", "17")
    ),
    Stage(
        "containers",
        (*PYTEST, *CONTAINERS, "-n", "2", "--dist", "loadgroup"),
        {"SERVERS": "containers"},
    ),
    Stage("images", (*PYTEST, "-m", "", "tests/containers")),
    Stage("chaos", (*CHAOS, "--duration", str(CHAOS_S))),
    Stage("chaos-brokers", (*CHAOS, "--brokers", "3", "--duration", str(CHAOS_S))),
    Stage("ddl-chaos", (*DDL_CHAOS, "--duration", str(DDL_CHAOS_S))),
    Stage("ddl-chaos-blind", (*DDL_CHAOS, "--blind", "all")),
    Stage("fuzz", (sys.executable, "-m", "tests.fuzz", "--inputs", str(FUZZ_INPUTS))),
)


def outcomes(results: Path) -> dict[str, str]:
    """The outcome of each test in a JUnit report."""
    tests = {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 (pytest wrote it just now)
        outcome = next((child.tag for child in case if child.tag != "properties"), "passed")
        tests[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return tests


def main(names: list[str]) -> int:
    """Run the named stages, or all; returns 1 where one has failed."""
    stages = {stage.name: stage for stage in STAGES}
    if unknown := set(names) - stages.keys():
        print(f"proof: no stage {', '.join(sorted(unknown))}; there are {', '.join(stages)}")
        return 2
    commit = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.strip()
    ran: list[dict[str, Any]] = []
    for each in STAGES:
        if not names or each.name in names:
            ran.append(each.run())
            REPORT.parent.mkdir(exist_ok=True)
            REPORT.write_text(json.dumps({"commit": commit, "stages": ran}, indent=1))
    figures = {
        stage["stage"]: {
            key: stage[key] for key in ("seconds", "exit_code", "counts", "skipped") if key in stage
        }
        for stage in ran
    }
    print(json.dumps({"proof": commit, "stages": figures}))
    return int(any(stage["exit_code"] for stage in ran))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
