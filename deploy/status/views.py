"""The lakehouse's records of views → each one's progress, and its cuts."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from cdc.records.position import Position
from cdc.records.reports import TableReport
from cdc.settings import Settings
from deploy.status.sinks import SinkStatus, ViewStatus
from sinks.changes.derived import local_path
from sinks.delta.cuts import Cut
from sinks.run.plans import lakehouse_plans
from sinks.run.wanted import CapturedTables, expected_tables
from sinks.spark.session import open_session
from sinks.views.records import ViewRecord, ViewRecords, view_records

_NOT_BROUGHT: Final = (
    "no run of views has this cut: `millrace merge views` brings them to the newest cut;"
    " `millrace cuts` lists the others"
)


def with_views(settings: Settings, cuts: Iterable[Cut]) -> list[Cut]:
    """Return the cuts, each with its versions of views, and why others are missing."""
    if not settings.views:
        return [*cuts]
    location = settings.require_lakehouse().path
    records = view_records(location, lambda: open_session(settings.spark))
    return [_with_views(cut, settings, records) for cut in cuts]


def _with_views(cut: Cut, settings: Settings, records: ViewRecords) -> Cut:
    there = records.at_cut(cut.run)
    versions = there.versions if there is not None else {}
    failed = there.failed if there is not None else {}
    otherwise = "it didn't exist yet" if there is not None else _NOT_BROUGHT
    if there is None and (damage := records.damage(cut.run)) is not None:
        otherwise = str(damage)
    missing = {
        view.name: " ".join(failed.get(view.name, otherwise).split())
        for view in settings.views
        if view.name not in versions
    }
    return cut.model_copy(update={"views": versions, "missing_views": missing})


def views_status(settings: Settings, reported: Iterable[TableReport] = ()) -> SinkStatus | None:
    """Return the views' progress, and why the last run failed for some, as it has ``reported``."""
    if not settings.views:
        return None
    location = settings.require_lakehouse().path
    expected = expected_tables(settings, "views", CapturedTables.of((), {}))
    if local_path(location) is None:  # only a JVM can read it
        return SinkStatus(sink="views", expected=expected, is_read=False)
    session = partial(open_session, settings.spark)
    last, records = lakehouse_plans(location, session).last(), view_records(location, session)
    failed = {each.table: each.error for each in reported if each.error}
    by_name = {view.name: records.view(view.name) or ViewRecord() for view in settings.views}
    served = [each for each in by_name.values() if each.serves is not None]
    reached = [each.at.cut for each in served if each.at is not None]
    return SinkStatus(
        sink="views",
        expected=expected,
        run=last.run if last is not None else 0,
        cut=_lsn(min(reached)) if reached else None,
        tables=len(served),
        failed={name: why for name, why in failed.items() if name in by_name},
        finished=all(each.to is None for each in by_name.values()),
        views=[_view(name, each, failed.get(name, "")) for name, each in by_name.items()],
    )


def _view(name: str, record: ViewRecord, failed: str) -> ViewStatus:
    at = record.at if record.serves is not None else None
    cut = _lsn(at.cut) if at is not None else None
    return ViewStatus(name=name, cut=cut, loads=record.loading is not None, failed=failed)


def _lsn(cut: Position) -> str:
    return str(cut.commit_lsn)
