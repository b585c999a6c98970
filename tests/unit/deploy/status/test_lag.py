"""Progress, reports and last records → lags that are true, or unknown with the reason."""

import time

import pytest

from cdc.log.reports import Reports
from cdc.log.tails import LastRecord
from cdc.records.position import Lsn, Position
from cdc.records.reports import RunReport, TableReport
from cdc.records.state import Phase, Progress
from deploy.status.lag import Lag, SinkLags, capture_lag, missing_from, worst
from tests.fixtures.made_states import streaming

TOPIC = "p.public.t"
S = 1_000_000


def _progress(age_s: float) -> Progress:
    cut_ts_us = int((time.time() - age_s) * S)
    return streaming(Position(1, Lsn(9), 0)).model_copy(update={"cut_ts_us": cut_ts_us})


def _at(cut: int) -> Position:
    return Position(1, Lsn(cut), 0)


def _table(name: str = "t", offset: int = 10, cut: int = 5, sink: str = "lakehouse") -> TableReport:
    return TableReport(
        sink=sink,
        table=name,
        source="public.t",
        offsets={TOPIC: {0: offset}},
        run=1,
        cut=_at(cut),
        cut_ts_us=cut * S,
    )


def _reports(*reports: RunReport | TableReport) -> Reports:
    taken = Reports()
    for report in reports:
        taken.take(report)
    return taken


def _ended(cut: int, exit_code: int = 0) -> RunReport:
    return RunReport(
        sink="lakehouse",
        run=1,
        started_ms=1,
        ended_ms=2,
        cut=_at(cut),
        cut_ts_us=cut * S,
        exit_code=exit_code,
    )


@pytest.mark.parametrize(
    ("age_s", "heartbeat_s", "streams", "waiting", "lag"),
    [
        (3.0, 10, True, 0, 3.0),
        (3.0, 10, False, None, 3.0),  # the log itself is the proof
        (19.0, 10, True, 0, 19.0),
        (21.0, 10, True, 0, "no change or heartbeat has come from the source for 21.0 s"),
        (16.0, 1, True, 0, "no change or heartbeat has come from the source for 16.0 s"),
        (99.0, 0, True, 0, 0.0),
        (1.0, 0, True, 8, "there are no heartbeats, and WAL waits to be read"),
        (1.0, 0, False, 0, "there are no heartbeats, and no daemon reads the slot"),
        (1.0, 0, False, None, "there are no heartbeats, and the source doesn't answer"),
    ],
)
def test_the_log_is_as_far_behind_as_its_newest_proof_is_old(
    age_s: float, heartbeat_s: float, streams: bool, waiting: int | None, lag: float | str
) -> None:
    shown = capture_lag(_progress(age_s), heartbeat_s, streams=streams, waiting_bytes=waiting)
    if isinstance(lag, str):
        assert shown.unknown == lag
    else:
        assert shown.seconds == pytest.approx(lag, abs=0.5)


def test_before_it_streams_nobody_knows_the_logs_lag() -> None:
    begun = _progress(1).model_copy(update={"phase": Phase.SNAPSHOT})
    for progress in (None, begun):
        assert capture_lag(progress, 10, streams=True, waiting_bytes=0).seconds is None


def test_a_table_lacks_what_stands_at_or_behind_its_offset() -> None:
    reports = _reports(_table(offset=10), _ended(5))
    assert missing_from(reports) == {TOPIC: {0: 10}}
    for last, lag in ((9, 0.0), (10, 3.0), (12, 3.0)):
        lags = SinkLags(reports, {(TOPIC, 0): LastRecord(last, 8 * S)})
        assert lags.of(_table(offset=10)).seconds == lag
    assert SinkLags(reports, {}).of(_table(offset=10)).seconds == 0.0


def test_a_run_that_had_nothing_for_a_table_has_brought_it_to_its_cut_all_the_same() -> None:
    table, last = _table(cut=5), {(TOPIC, 0): LastRecord(10, 9 * S)}
    assert SinkLags(_reports(table, _ended(8)), last).of(table).seconds == 1.0
    failing = table.model_copy(update={"error": "it is full"})
    assert SinkLags(_reports(failing, _ended(8)), last).of(failing).seconds == 4.0
    refused = _ended(8, exit_code=31)
    assert SinkLags(_reports(table, refused), last).of(table).seconds == 4.0


def test_joined_documents_lack_what_the_lakehouse_has_since_their_cut_or_lacks_itself() -> None:
    made_of = _table("doc", sink="search").model_copy(update={"offsets": {}, "made_of": ("t",)})
    at_five, at_eight = _table(cut=5), _table(cut=8)
    assert SinkLags(_reports(at_five), {}).of(made_of).seconds == 0.0
    assert SinkLags(_reports(at_eight), {}).of(made_of).seconds == 3.0
    lacking = {(TOPIC, 0): LastRecord(10, 9 * S)}
    assert SinkLags(_reports(at_five), lacking).of(made_of).seconds == 4.0
    assert SinkLags(_reports(), {}).of(made_of).seconds is None


def test_a_view_of_views_lacks_what_any_table_below_it_has_or_lacks() -> None:
    def view(name: str, cut: int, *made_of: str) -> TableReport:
        update = {"offsets": {}, "made_of": made_of, "source": ""}
        return _table(name, cut=cut, sink="views").model_copy(update=update)

    below, top = view("below", 5, "t"), view("top", 5, "views.below")
    assert SinkLags(_reports(_table(cut=5), below, top), {}).of(top).seconds == 0.0
    assert SinkLags(_reports(_table(cut=8), below, top), {}).of(top).seconds == 3.0
    ahead = _reports(_table(cut=5), view("below", 7, "t"), top)
    assert SinkLags(ahead, {}).of(top).seconds == 2.0
    lacking = {(TOPIC, 0): LastRecord(10, 9 * S)}
    assert SinkLags(_reports(_table(cut=5), below, top), lacking).of(top).seconds == 4.0
    unknown = SinkLags(_reports(below, top), {}).of(top).unknown
    assert unknown == "no run has reported which tables top is made of"
    round_about = _reports(_table(), view("below", 5, "t", "views.top"), top)
    assert SinkLags(round_about, {}).of(top).seconds == 0.0
    constant = view("constant", 5)
    assert SinkLags(_reports(constant), {}).of(constant).seconds == 0.0


def test_joined_documents_behind_a_cut_of_which_nobody_knows_the_time_lack_something() -> None:
    """A report that is made again after it was lost doesn't have the time."""
    made_of = _table("doc", sink="search").model_copy(update={"offsets": {}, "made_of": ("t",)})
    untimed = _table(cut=8).model_copy(update={"cut_ts_us": 0})
    lags = SinkLags(_reports(untimed), {})
    assert lags.newest_missing_us(made_of) is None
    assert lags.of(made_of).unknown == "no run has reported when the cut of t was committed"
    at_eight = made_of.model_copy(update={"cut": _at(8)})
    assert lags.newest_missing_us(at_eight) == 0


def test_what_a_topic_does_not_have_or_does_not_say_is_no_proof_that_nothing_is_missing() -> None:
    at_five = _table(offset=10)
    for last, why in (
        (LastRecord(-1, 0, unknown="it isn't there"), "it isn't there"),
        (LastRecord(-1, 0, first=0, end=4), "it was made again"),
        (LastRecord(-1, 0, first=12, end=12), "it no longer has records"),
    ):
        lags = SinkLags(_reports(at_five), {(TOPIC, 0): last})
        assert why in lags.of(at_five).unknown
        assert lags.newest_missing_us(at_five) is None
        made_of = _table("doc", sink="search").model_copy(update={"offsets": {}, "made_of": ("t",)})
        assert why in lags.of(made_of).unknown
        assert lags.newest_missing_us(made_of) is None
    other = _table(offset=12)  # another sink that is further
    assert SinkLags(_reports(other), {(TOPIC, 0): last}).of(other).seconds == 0.0


def test_a_change_that_is_missing_is_never_no_lag_however_old_it_says_it_is() -> None:
    for ts_us in (2 * S, 0, -1_000):  # a dead letter that was sent again; no time at all
        late = {(TOPIC, 0): LastRecord(10, ts_us)}
        assert (SinkLags(_reports(_table(cut=5)), late).of(_table(cut=5)).seconds or 0) > 0


@pytest.mark.parametrize(("ahead_s", "text"), [(5, "5.0 s"), (14.9, "14.9 s"), (3_600, "60 min")])
def test_a_source_whose_clock_is_ahead_proves_nothing(ahead_s: float, text: str) -> None:
    """Such a proof would stay a young one for so long, once the daemon is gone."""
    shown = capture_lag(_progress(-ahead_s), 10, streams=True, waiting_bytes=0)
    assert shown.unknown == f"the source's clock is {text} ahead of this machine's"


def test_no_proof_is_so_young_that_there_is_no_lag() -> None:
    lag = capture_lag(_progress(-1), 10, streams=True, waiting_bytes=0)
    assert 0 < (lag.seconds or 0) < 0.1


def test_reports_of_another_log_do_not_count() -> None:
    old, new = (_table(name).model_copy(update={"log": name}) for name in ("old", "new"))
    run = _ended(5).model_copy(update={"log": "old"})
    failed = _ended(5).model_copy(update={"job": "compact", "cut": None})
    left = _reports(old, new, run, failed).of_log("new")
    assert list(left.tables.values()) == [new]
    assert list(left.ended.values()) == [failed]


def test_a_sum_and_a_worst_are_unknown_where_one_of_them_is() -> None:
    known, unknown = Lag(seconds=2.0), Lag(unknown="why")
    assert (known + known).seconds == 4.0
    assert known + unknown == unknown == unknown + known
    assert worst([known, Lag(seconds=3.0)]).seconds == 3.0
    assert worst([known, unknown]) == unknown
    assert worst([]).seconds == 0.0


def test_a_late_record_of_an_older_run_changes_nothing() -> None:
    new = _table(cut=8).model_copy(update={"reported_ms": 5})
    old = _table(cut=5).model_copy(update={"reported_ms": 4})
    assert _reports(new, old).tables["lakehouse", "t"] == new
    assert _reports(_ended(8).model_copy(update={"started_ms": 3}), _ended(5)).ended[
        "lakehouse", "merge"
    ].cut == _at(8)


def test_a_machine_whose_clock_is_ahead_hides_no_later_run_of_another_one() -> None:
    ahead = _table(cut=5).model_copy(update={"reported_ms": 3_600_000})
    later = _table(cut=8).model_copy(update={"reported_ms": 5})
    assert _reports(ahead, later).tables["lakehouse", "t"] == later
    early = _ended(5).model_copy(update={"started_ms": 3_600_000})
    run = _ended(8).model_copy(update={"run": 2})
    assert _reports(early, run).ended["lakehouse", "merge"] == run
