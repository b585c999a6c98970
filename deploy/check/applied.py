"""A sink's last plan, and the log → whether the next run goes on from there, by its own check."""

from cdc.errors import LogForgottenError
from deploy.check.result import Area
from deploy.check.runner import CheckResults
from deploy.check.scene import Scene
from sinks.run.plan import RunPlan, require_same_log


def applied_of_log(part: Area, scene: Scene, last: RunPlan) -> CheckResults:
    """Whether what stands in a sink is of the log that there is."""
    requirement, log = "applied so far", scene.log.get()
    if log is None:
        why = "because nobody can tell which log there is"
        yield part.unknown(requirement, why, "run `millrace check` where Kafka answers")
        return
    try:
        require_same_log(last, log.progress.log if log.progress is not None else "")
    except LogForgottenError as error:
        yield part.of_error(requirement, error)
    else:
        yield part.ok(requirement, f"run {last.run}, up to {last.where}")
