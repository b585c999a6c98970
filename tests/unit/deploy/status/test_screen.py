"""A status → its form on a terminal of 80 columns: names and LSNs whole, problems first."""

from io import StringIO
from typing import Final

from rich.console import Console

from cdc.records.reports import RunReport
from cdc.records.state import Phase
from deploy.status.lag import Lag
from deploy.status.model import Problem, Status
from deploy.status.screen import SHOWN_MAX, Selection, names_in, render
from deploy.status.sinks import IndexStatus, SinkStatus
from deploy.status.source import SlotStatus
from deploy.status.tables import TableStatus

LONG: Final = "public." + "x" * 63
LSN: Final = "FFFFFFFF/FFFFFFFF"


def shown(status: Status, width: int = 80) -> str:
    """The status as it is printed."""
    out = StringIO()
    Console(file=out, width=width).print(render(status))
    return out.getvalue()


def _table(name: str, phase: Phase, percent: float) -> TableStatus:
    return TableStatus(table=name, topic="t", phase=phase, percent=percent, snapshot_rows=1)


def test_names_and_positions_are_whole_at_80_columns() -> None:
    slot = SlotStatus(
        name="s" * 63,
        active=True,
        confirmed_flush_lsn=LSN,
        lag_bytes=1,
        retained_bytes=1,
        wal_status=None,
        safe_wal_size=None,
        invalidation_reason=None,
        failover=False,
    )
    known = Lag(seconds=1.5)
    sink = SinkStatus(sink="lakehouse", cut=LSN, lag=known, sink_lag=known)
    tables = [_table(LONG, Phase.STREAMING, 100)]
    text = shown(Status(slot=slot, position=LSN, tables=tables, sinks=[sink]))
    together = "".join(text.split())
    assert "…" not in text
    assert text.count("x") == LONG.count("x")  # the rest of it is in the next line
    assert together.count(LSN) == 3
    assert max(map(len, text.splitlines())) <= 80


def test_problems_come_first_with_their_remedies() -> None:
    problem = Problem(part="the daemon", what="none runs", remedy="millrace run")
    lines = shown(Status(problems=[problem])).splitlines()
    assert lines[:2] == ["PROBLEM the daemon: none runs", "  → millrace run"]
    assert shown(Status()).startswith("no problems")


def test_a_first_snapshot_has_a_bar() -> None:
    reading = _table("public.a", Phase.SNAPSHOT, 43)
    assert "████░░░░░░ 43 %" in shown(Status(tables=[reading]))
    assert "█" not in shown(Status(tables=[_table("public.a", Phase.STREAMING, 100)]))


def test_a_run_that_took_so_long_that_others_couldnt_start_says_so() -> None:
    last = RunReport(sink="lakehouse", started_ms=1, ended_ms=9, seconds=412, kept_out=2)
    sink = SinkStatus(sink="lakehouse", last_run=last)
    text = " ".join(shown(Status(sinks=[sink]), width=200).split())
    assert "0 events in 7 min; 2 runs couldn't start meanwhile" in text


MANY: Final = 1_000


def _many() -> Status:
    """Of a thousand tables, one is being read, and each failed in the lakehouse."""
    tables = [_table(f"public.t{n:04}", Phase.STREAMING, 100) for n in range(MANY)]
    tables[700] = _table("public.t0700", Phase.SNAPSHOT, 43)
    tables = [table.model_copy(update={"rows": 10}) for table in tables]
    problems = [
        Problem(part=f"lakehouse, {table.table}", what="it failed", remedy="retry")
        for table in tables
    ]
    indexes = [IndexStatus(name=table.table, index="i", cut=LSN) for table in tables]
    sinks = [SinkStatus(sink="search", indexes=indexes)]
    return Status(tables=tables, problems=problems, sinks=sinks)


def _shown(selection: Selection) -> str:
    out = StringIO()
    Console(file=out, width=80).print(render(_many(), selection))
    return " ".join(out.getvalue().split())


def test_of_many_tables_those_that_need_attention_are_shown_and_the_others_counted() -> None:
    text = _shown(Selection())
    assert text.count("PROBLEM") == SHOWN_MAX
    assert "… and 980 more problems (millrace status --tables)" in text
    listed = text.partition("… and 980 more")[2]
    assert "public.t0700 ~10 ████░░░░░░ 43 %" in listed
    assert listed.count("public.t") == 1
    assert "1,000 tables, ~10,000 rows: 999 complete (millrace status --tables lists all" in listed
    assert "1,000 indexes (millrace status --tables" in listed


def test_all_tables_are_shown_where_the_user_asks_for_them() -> None:
    text = _shown(Selection(is_all=True))
    assert (text.count("PROBLEM"), text.count("public.t")) == (MANY, 3 * MANY)
    assert "more" not in text


def test_tables_and_indexes_of_some_names_are_shown() -> None:
    listed = _shown(Selection({"public.t0001"})).partition("more problems")[2]
    assert listed.count("public.t0001") == listed.count("public.t") == 2
    assert names_in(_many()) == {f"public.t{n:04}" for n in range(MANY)}


def test_a_verify_of_a_slice_does_not_read_as_one_of_all_rows() -> None:
    whole = RunReport(sink="lakehouse", job="verify", started_ms=1, ended_ms=9, events=7)
    for where, part in (("0/1", ""), ("0/1 (slice 2/7)", ", slice 2/7 only")):
        sink = SinkStatus(sink="lakehouse", verified=whole.model_copy(update={"where": where}))
        text = " ".join(shown(Status(sinks=[sink]), width=200).split())
        assert f"ago: 7 rows{part}, 0 differ" in text
