"""Names of blindnesses → which of these blind daemons a run detects, one after another.

The log decides: no merge can correct an error there.
"""

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.ddl_chaos.comparison import Form
from tests.ddl_chaos.run import Outcome, Plan, run

BLIND_S: Final = 60.0
"""The longest time that a blind run goes on without being found out."""


def blind_plan(blindness: str, seed: int) -> Plan:
    """A short run of a daemon that doesn't see something."""
    forms: tuple[Form, ...] = ("log",)
    return Plan(BLIND_S, seed, forms=forms, blind=blindness)


@dataclass(slots=True)
class Findings:
    """What has come of blind runs, by the names of what they didn't see.

    ``left_out``: PostgreSQL has no DDL that would tell on them.
    """

    found_out: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """Those that weren't found out."""
        return [name for name, is_found in self.found_out.items() if not is_found]

    @property
    def figures(self) -> dict[str, Any]:
        """What people compare."""
        return {
            "detectors": len(self.found_out),
            "missed": len(self.missed),
            "found_out": self.found_out,
            "seconds": self.seconds,
            "left_out": self.left_out,
        }


def find_out(names: Iterable[str], seed: int, folder: Path) -> Findings:
    """Run each, with servers of its own below the folder; those of one that is missed stay."""
    findings = Findings()
    for number, name in enumerate(names):
        plan = blind_plan(name, seed)
        if not {*plan.kinds, *plan.harmless}:
            findings.left_out.append(name)
            continue
        begun, below = time.monotonic(), folder / f"blind{number}"
        below.mkdir()
        below.chmod(0o755)
        outcome = run(plan, below)
        findings.found_out[name] = _is_found_out(outcome)
        findings.seconds[name] = round(time.monotonic() - begun, 1)
        if findings.found_out[name]:
            shutil.rmtree(below, ignore_errors=True)
    return findings


def _is_found_out(outcome: Outcome) -> bool:
    return outcome.is_found_out and not outcome.is_good
