"""The lakehouse's records of views → the reports of status, cuts, waits and checks."""

from pathlib import Path
from typing import Any

import pytest

from cdc.errors import LogFormatError
from cdc.log.reports import Reports
from cdc.records.position import Lsn, Position
from cdc.records.reports import RunReport, TableReport
from cdc.records.schema import TableName
from cdc.records.state import Doubt, Progress
from cdc.settings import Settings
from deploy.status.collect import LogAnswer, _with_lags
from deploy.status.lag import NOTHING, SinkLags
from deploy.status.model import Status
from deploy.status.shown import Watched
from deploy.status.sinks import SinkStatus, ViewStatus
from deploy.status.views import views_status, with_views
from sinks.delta.cuts import Cut
from sinks.run.cut_run import CutLoad
from sinks.run.cuts import Instant
from sinks.run.summary import TableVersion
from sinks.run.wanted import CapturedTables
from sinks.views.records import (
    ViewGeneration,
    ViewRecord,
    ViewRecords,
    ViewsAtCut,
    view_records,
)
from tests.fixtures.made_states import streaming, table_state
from tests.fixtures.view_lake import finished_runs
from tests.unit.deploy.status.test_screen import shown

VERSION = TableVersion(id="v", version=7)
GENERATION = ViewGeneration(query="SELECT 1")


def _at(lsn: int) -> Position:
    return Position(1, Lsn(lsn), 0)


def _instant(lsn: int, run: int) -> Instant:
    return Instant(run=run, cut=_at(lsn), versions={}, committed_us=lsn)


def _cut(run: int) -> Cut:
    known: dict[str, Any] = {"versions": {}, "missing": [], "tables": {}}
    times = {"committed_us": 1, "applied_ms": 1, "seconds": 0.1}
    return Cut(run=run, position=_at(run), **times, **known)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    views = [{"name": name, "query": "SELECT 1"} for name in ("a", "b", "c")]
    return Settings(
        source={},
        capture={"topic.prefix": "p"},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        lakehouse={"path": str(tmp_path)},
        views=views,
    )


@pytest.fixture
def records(settings: Settings) -> ViewRecords:
    return view_records(settings.require_lakehouse().path, pytest.fail)


def test_views_are_as_far_as_the_last_of_them_and_say_what_they_are_at(
    settings: Settings, records: ViewRecords
) -> None:
    before = views_status(settings)
    assert before is not None
    assert (before.run, before.cut, before.tables, before.finished) == (0, None, 0, True)
    assert before.expected == {name: frozenset() for name in "abc"}

    loading = CutLoad[ViewGeneration](into=GENERATION)
    served = {"serves": GENERATION, "version": VERSION}
    records.write("a", ViewRecord(at=_instant(30, 3), **served))
    records.write("b", ViewRecord(at=_instant(20, 2), to=_instant(30, 3), **served))
    records.write("c", ViewRecord(at=_instant(30, 3), loading=loading))
    records.write("gone", ViewRecord(at=_instant(10, 1), **served))
    why = "no such column\n  → mend it"
    failed = [_report("views", name, 9).model_copy(update={"error": why}) for name in ("b", "gone")]
    finished_runs(settings.require_lakehouse().path, 3)
    status = views_status(settings, failed)
    assert status is not None
    assert (status.run, status.cut, status.tables, status.finished) == (3, "0/14", 2, False)
    assert status.failed == {"b": why}
    assert status.views == [
        ViewStatus(name="a", cut="0/1E"),
        ViewStatus(name="b", cut="0/14", failed=why),
        ViewStatus(name="c", cut=None, loads=True),
    ]
    text = shown(Status(sinks=[status]))
    lines = [line.split() for line in text.splitlines()]
    assert ["b", "0/14", "FAILED"] in lines
    assert ["c", "none", "yet", "being", "built"] in lines

    assert views_status(settings.model_copy(update={"views": ()})) is None
    lakehouse = settings.require_lakehouse().model_copy(update={"path": "s3a://nowhere"})
    unread = views_status(settings.model_copy(update={"lakehouse": lakehouse}))
    assert unread is not None
    assert not unread.is_read, "an object store takes a JVM"


def test_a_damaged_record_of_a_view_is_told_with_its_file(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "_millrace" / "views" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    with pytest.raises(LogFormatError, match=r"_millrace/views/a\.json"):
        views_status(settings)


def test_a_cut_has_its_own_versions_of_views_and_says_why_others_lack(
    settings: Settings, records: ViewRecords
) -> None:
    failed = {"b": "no such column (1:8)\n  → mend it"}
    records.finish(ViewsAtCut(run=2, ts_ms=1, versions={"a": VERSION}, failed=failed))
    first, second = with_views(settings, [_cut(1), _cut(2)])
    assert (first.views, [*first.missing_views]) == ({}, ["a", "b", "c"])
    assert "no run of views has this cut: `millrace merge views`" in first.missing_views["a"]
    assert second.views == {"a": VERSION}
    assert second.missing_views == {
        "b": "no such column (1:8) → mend it",
        "c": "it didn't exist yet",
    }
    (bare,) = with_views(settings.model_copy(update={"views": ()}), [_cut(1)])
    assert (bare.views, bare.missing_views) == ({}, {})


def _report(sink: str, name: str, cut: int, *made_of: str) -> TableReport:
    of = {"made_of": made_of} if made_of else {"source": "public.t"}
    return TableReport(sink=sink, table=name, log="l", run=1, cut=_at(cut), **of)


def _run_of_views(run: int, **more: Any) -> RunReport:
    known = {"log": "l", "cut": _at(9), "cut_ts_us": 9, "exit_code": 0}
    return RunReport(sink="views", run=run, started_ms=1, ended_ms=2, **known | more)


def _reports(*reports: RunReport | TableReport) -> Reports:
    taken = Reports()
    for report in reports:
        taken.take(report)
    return taken


def test_a_view_that_no_run_has_brought_leaves_the_lag_of_views_unknown(
    settings: Settings,
) -> None:
    def lag_of(*names: str) -> SinkStatus:
        views = [_report("views", name, 9, "public.t") for name in names]
        reports = _reports(_run_of_views(1), _report("lakehouse", "public.t", 9), *views)
        log = LogAnswer(None, [], {}, CapturedTables.of((), {}), reports, {})
        status = views_status(settings)
        assert status is not None
        status = status.model_copy(update={"run": 1})
        return _with_lags(status, NOTHING, log, SinkLags(reports, {}))

    assert lag_of("a", "b").sink_lag.unknown == "no run has loaded c yet"
    assert lag_of("a", "b", "c").sink_lag.seconds == 0.0


def test_a_wait_for_views_counts_each_view_and_the_captured_tables_below_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(settings, ("views",), 1.0)
    progress: Progress = streaming(_at(9)).model_copy(update={"log": "l", "flush_lsn": Lsn(9)})
    table = table_state(TableName("public", "t"))
    reports = _reports(
        _run_of_views(1),
        _report("lakehouse", "public.t", 9),
        _report("views", "a", 9, "public.t"),
        _report("views", "b", 5, "views.a"),
    )
    monkeypatch.setattr(Watched, "progress", lambda _: progress)
    monkeypatch.setattr(watched, "_states", _Held({"public.t": table}))
    monkeypatch.setattr(watched, "_schemas", _Held({}))
    monkeypatch.setattr(watched, "_reports", _Held(reports))
    monkeypatch.setattr(watched, "_tails", _Held({}))
    said = [str(each) for each in watched.lacking(Lsn(9))]
    assert len(said) == 2
    assert "views, c: no run has loaded it yet" in said
    assert any(each.startswith("views, b: its cut is 0/5") for each in said)

    unread = table_state(TableName("public", "t"), doubt=Doubt(reason="why", since_ms=1))
    monkeypatch.setattr(watched, "_states", _Held({"public.t": unread}))
    assert "table public.t: doubtful: why" in [str(each) for each in watched.lacking(Lsn(9))]


class _Held:
    """A state topic as it is at one moment."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def read(self) -> Any:
        return self._content

    def last(self, _starts: Any) -> Any:
        return self._content
