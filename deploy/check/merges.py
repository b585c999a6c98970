"""[lakehouse] and [search] → whether `millrace merge` accepts this configuration."""

from collections.abc import Iterator
from functools import partial

from cdc.settings import Settings
from deploy.check.result import Area, CheckResult
from deploy.check.scene import Scene
from sinks.job import Jobs


def check_merges(scene: Scene) -> Iterator[CheckResult]:
    """Check what merges refuse before they read anything, for the configured sinks."""
    settings = scene.settings
    if settings.lakehouse is not None or settings.search is not None:
        yield Area("merges").tried("configuration", partial(_configuration, settings))


def _configuration(settings: Settings) -> str:
    Jobs(settings, "all")
    return "merges can read this log"
