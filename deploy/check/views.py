"""[[views]] → whether each has its SELECT, and a folder of its own. Doesn't use Spark."""

from collections.abc import Iterator
from typing import Final

from cdc.errors import MillraceError
from cdc.settings import Settings
from deploy.check.result import Area, CheckResult
from deploy.check.scene import Scene
from deploy.check.standing import DELTA, no_session
from sinks.changes.derived import derived_view, local_path
from sinks.run.owner import stranger_of_view
from sinks.views.records import view_records

_QUERIES: Final = "queries"


def check_views(scene: Scene) -> Iterator[CheckResult]:
    """Check everything about views that needs no Spark."""
    part, settings = Area("views"), scene.settings
    if not settings.views:
        return
    found = (
        f"{len(settings.views)} views have a SELECT; `millrace views check` shows how each is kept"
    )
    yield from part.of_errors(_QUERIES, _without_query(settings), found)
    location = settings.require_lakehouse().path
    if local_path(location) is None:
        why, remedy = f"only Spark can reach {location}", "run `millrace merge views` once"
        yield part.unknown(DELTA, why, remedy)
        return
    found = "each folder belongs to its view, or doesn't exist yet"
    yield from part.of_errors(DELTA, _strangers(settings), found)


def _without_query(settings: Settings) -> Iterator[MillraceError]:
    for view in settings.views:
        try:
            view.sql()
        except MillraceError as error:
            yield error


def _strangers(settings: Settings) -> Iterator[MillraceError]:
    """Yield foreign objects in the place of a view, and records that can't be read."""
    lakehouse = settings.require_lakehouse()
    records = view_records(lakehouse.path, no_session)
    for view in settings.views:
        try:
            records.view(view.name)
            tables = [derived_view(lakehouse, name) for name in view.tables]
            strangers = [stranger_of_view(of, settings.capture.topic_prefix) for of in tables]
        except MillraceError as error:
            yield error
        else:
            yield from (stranger for stranger in strangers if stranger is not None)
