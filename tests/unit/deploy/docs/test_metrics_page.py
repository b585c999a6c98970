"""docs/reference/metrics.md → it has every metric of the daemon, and no other."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[4]
MADE: Final = re.compile(
    r'(?:_gauges?|family)\(\s*"(\w+)"|(Counter|Gauge)MetricFamily\(\s*f?"millrace_(\w+)"'
)
"""The calls that make a metric, with its name; what is read of tables begins with snapshot_."""


def made() -> set[str]:
    code = (ROOT / "deploy/commands/metrics.py").read_text(encoding="utf-8")
    reads = code.partition("def _reads(")[2].partition("\ndef ")[0]
    names = {f"snapshot_{name}" for name in re.findall(r'= family\("(\w+)"', reads)}
    for own, kind, other in MADE.findall(code.replace(reads, "")):
        names.add(own or f"{other}{'_total' * (kind == 'Counter')}")
    return {f"millrace_{name}" for name in names}


def test_the_page_has_the_metrics_that_there_are() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    table = page.partition("| metric | meaning |")[2]
    named = {name for row in table.splitlines() for name in _names(row)}
    assert len(named) > 20
    assert named == made()


def _names(row: str) -> list[str]:
    return re.findall(r"`(millrace_\w+)", row.split(" | ", 1)[0])
