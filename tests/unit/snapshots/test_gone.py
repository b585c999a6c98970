"""A table that is gone, and another with its name → read, or why derived data stays."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from cdc.postgres.described import TableDescription
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import UNREADABLE
from cdc.settings import CaptureSettings
from cdc.tables.tables import Tables
from snapshots.gone import take_gone, tell_gone
from snapshots.inspection import Finding, WatchedTable
from tests.fixtures.made_tables import COLUMNS, END, SINCE, STATE, tables
from tests.unit.cdc.tables.test_tables import described

NAME = STATE.name
SETTINGS = CaptureSettings(**{"topic.prefix": "pre", "table.include.list": "public.t"})
OTHER = replace(described(*COLUMNS), name=NAME)
"""Another table of that name, and of the same shape."""
KEYLESS = replace(
    OTHER,
    columns=tuple(column.model_copy(update={"key": None}) for column in COLUMNS),
    identity=frozenset(),
)
"""Another table of that name: its topic takes no records of it."""


def check(made: Tables, successor: TableDescription | None) -> list[Record]:
    """What the log gets of a check that misses the table."""
    state = made.states[NAME]
    is_taken = successor is not None
    finding = Finding(WatchedTable(state, None), None, described=successor, is_name_taken=is_taken)
    return take_gone(made, SETTINGS, state, finding, "here", SINCE).records


def test_rows_stay_of_a_table_whose_name_has_one_that_cant_be_captured() -> None:
    made = tables()
    check(made, None)
    first = made.states[NAME]
    assert (bool(first.gone_ms), first.is_name_taken) == (True, False)
    with capture_logs() as logs:
        assert check(made, KEYLESS)
        assert check(made, KEYLESS) == [], "it is told once"
    events = [line["event"] for line in logs]
    assert len(events) == len(set(events))
    assert not any("it is read instead" in event for event in events)
    taken = made.states[NAME]
    assert (taken.is_name_taken, taken.is_set_aside) == (True, True), "nothing derived goes"
    made.states.watched_ms = 5_000
    check(made, None)
    freed = made.states[NAME]
    assert (freed.is_name_taken, freed.gone_watched_ms) == (False, 5_000), "it is gone since then"


def test_of_a_new_name_that_isnt_utf8_it_says_that_nothing_is_read_under_it() -> None:
    renamed = cast("CatalogTable", SimpleNamespace(name=NAME._replace(name=f"t{UNREADABLE}")))
    with capture_logs() as logs:
        tell_gone(STATE, renamed, SETTINGS)
    assert "isn't UTF-8" in logs[0]["reason"]
    assert "by its OID" in logs[0]["remedy"]


def test_a_swap_for_one_that_cant_be_captured_is_a_drop_until_it_can() -> None:
    made = tables()
    made.states.checked = SINCE
    check(made, KEYLESS)
    state = made.states[NAME]
    assert (bool(state.gone_ms), state.is_name_taken, state.right_until) == (True, True, SINCE)
    check(made, OTHER)
    made.begin_waiting(Position(1, END, 0))
    read = made.states[NAME]
    assert (read.oid, read.gone_ms, read.is_set_aside) == (OTHER.oid, 0, False)
    assert read.doubt is not None
    assert read.doubt.right_until == SINCE
