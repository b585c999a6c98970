"""The lakehouse's newest cut → every view, brought there: one bounded run."""

from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext
from sinks.run.summary import RunSummary


def run_views(context: RunContext, log: MillraceTopics) -> RunSummary:
    """Bring every view to the newest cut at which all stands that it reads.

    One that fails fails alone, with the views that read it. Raises MillraceError where none could
    be brought anywhere (the lakehouse can't be reached, another run).
    """
    raise NotImplementedError(context, log)
