"""``millrace check``: a configuration file → each requirement of each part, with its remedy."""

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import Final

import typer

from cdc.errors import ExitCode
from cdc.lines import Lines
from cdc.settings import DEFAULT_PATH, load
from deploy.check.result import CheckReport, CheckResult, Level
from deploy.check.runner import CheckResults, run_parts
from deploy.check.scene import Scene
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.printing import print_json, print_line

_IMPORTING: Final = Lock()
"""Threads that import modules which need each other would deadlock."""
_WIDTH: Final = max(len(level) for level in Level)


def check(config: ConfigOption = DEFAULT_PATH, *, json: JsonOption = False) -> None:
    """Check servers, rights, tables and this machine for all that a start would refuse.

    The command changes nothing, so you can run it next to a daemon. Each problem comes with its
    remedy. Exit code 36: a start would refuse something.
    """
    report = checked(Scene(load(config), str(config)))
    if json:
        print_json(report.model_dump_json(indent=2))
    else:
        for line in lines(report):
            print_line(line)
    if report.counts.failure:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def checked(scene: Scene) -> CheckReport:
    """Check everything in the configuration."""
    settings = scene.settings
    parts: dict[str, Callable[[], CheckResults]] = {}
    if settings.captures_itself:
        parts |= {"source": partial(_source, scene), "standby": partial(_standby, scene)}
    else:
        scene.tables.settle(None)
    parts["kafka"] = partial(_kafka, scene)
    parts |= {name: partial(check, scene) for name, check in _SINKS.items()}
    parts["machine"] = partial(_machine, scene)
    return CheckReport.of(run_parts({name: partial(_begun, part) for name, part in parts.items()}))


def _begun(part: Callable[[], CheckResults]) -> CheckResults:
    with _IMPORTING:
        findings = part()
    yield from findings


# Each part imports its modules, which may not be installed here.
def _source(scene: Scene) -> CheckResults:
    from deploy.check.source import check_source

    return check_source(scene)


def _standby(scene: Scene) -> CheckResults:
    from deploy.check.standby import check_standby

    return check_standby(scene)


def _kafka(scene: Scene) -> CheckResults:
    from deploy.check.log import check_log

    return check_log(scene)


def _merges(scene: Scene) -> CheckResults:
    from deploy.check.merges import check_merges

    return check_merges(scene)


def _lakehouse(scene: Scene) -> CheckResults:
    from deploy.check.lakehouse import check_lakehouse

    return check_lakehouse(scene)


def _views(scene: Scene) -> CheckResults:
    from deploy.check.views import check_views

    return check_views(scene)


def _spark(scene: Scene) -> CheckResults:
    from deploy.check.spark import check_spark

    return check_spark(scene)


def _search(scene: Scene) -> CheckResults:
    if scene.settings.search is None:
        return iter(())
    from deploy.check.search import check_search

    return check_search(scene)


def _machine(scene: Scene) -> CheckResults:
    from deploy.check.machine import check_machine

    return check_machine(scene)


_SINKS: Final = {
    "merges": _merges,
    "lakehouse": _lakehouse,
    "views": _views,
    "spark": _spark,
    "search": _search,
}


def lines(report: CheckReport) -> Iterator[str]:
    """Yield the report for people: problems with their remedies, then the rest, and the sum."""
    yield from map(_line, report.findings)
    counts = report.counts
    yield (
        f"failures: {counts.failure}, warnings: {counts.warning}, unknown: {counts.unknown},"
        f" ok: {counts.ok}"
    )


def _line(finding: CheckResult) -> str:
    where = f" ({finding.where})" if finding.where else ""
    needed = f"; needed: {finding.needed}" if finding.needed and finding.exit_code else ""
    remedy = f"\n    → {finding.remedy}" if finding.remedy else ""
    named = f"{finding.part}: {finding.requirement}: {finding.found}"
    return Lines(f"{finding.level.value:{_WIDTH}} {named}{where}{needed}{remedy}")
