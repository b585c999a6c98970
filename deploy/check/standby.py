"""[snapshot_source] → whether rows can be read there. It takes time, and hides no other part."""

from collections.abc import Iterator

from cdc.postgres.checks.standby import why_unread
from deploy.check.result import Area, CheckResult
from deploy.check.scene import Scene


def check_standby(scene: Scene) -> Iterator[CheckResult]:
    """Check that it is a standby of the source, answers, and replays."""
    if scene.settings.standby is None:
        return
    part, name = Area("standby"), "[snapshot_source]"
    if scene.slot.get() is None:  # the source's findings have the failure
        yield part.unknown(name, "[source] doesn't answer")
        return
    errors = filter(None, [why_unread(scene.settings)])
    yield from part.of_errors(name, errors, "it is a standby of [source], and it replays WAL")
