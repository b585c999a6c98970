"""A sink's last plan, and the log → whether the next run can continue, by its own checks."""

from collections.abc import Iterator, Mapping
from typing import Final

from cdc.errors import LogForgottenError, MillraceError
from cdc.log.offsets import LogState
from deploy.check.result import Area
from deploy.check.runner import CheckResults
from deploy.check.scene import CapturedLog, Scene
from sinks.run.drops import not_read_again
from sinks.run.owner import changed_kinds
from sinks.run.plan import RunPlan, TablePlan, require_same_log
from sinks.run.wanted import WantedTable

APPLIED: Final = "applied so far"
DERIVED: Final = "derived tables"


def applied_of_log(part: Area, scene: Scene, last: RunPlan) -> CheckResults:
    """Check whether a sink belongs to the existing log."""
    log = scene.log.get()
    if log is None:
        why = "the state of the log is unknown"
        yield part.unknown(APPLIED, why, "run `millrace check` where Kafka answers")
        return
    try:
        require_same_log(last, log.progress.log if log.progress is not None else "")
    except LogForgottenError as error:
        yield part.of_error(APPLIED, error)
    else:
        yield part.ok(APPLIED, f"run {last.run}, up to {last.where}")


def goes_on_with_tables(
    part: Area, scene: Scene, before: Mapping[str, TablePlan], wanted: Mapping[str, WantedTable]
) -> CheckResults:
    """Check whether the next run continues each derived table."""
    log = scene.log.get() if wanted else CapturedLog(None, {})
    if log is None:
        yield part.unknown(DERIVED, "the state of the log is unknown")
        return

    def refused() -> Iterator[MillraceError]:
        yield from changed_kinds(before, wanted).values()
        if log.progress is not None:
            in_log = {name: state for name, state in log.states.items() if state.is_in_log}
            state = LogState(log.progress, in_log, {**log.schemas}, {}, {})
            yield from not_read_again(before, state, wanted).values()

    found = f"the next run continues each of {len(wanted)}"
    yield from part.of_errors(DERIVED, refused(), found)
