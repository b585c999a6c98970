"""Topics whose records brokers refuse → their tables are set aside, and reads of them end."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.capture.session import Session
from cdc.dead_letters.guard import Refusals
from cdc.errors import NotDoneError, RecordRefusedError, RefusedRecord
from cdc.records.position import Lsn, Position
from cdc.records.state import Phase
from cdc.settings import CaptureSettings
from tests.fixtures.made_tables import STATE, tables

CAPTURE: Any = {"topic.prefix": "pre", "table.include.list": "public.t"}
CUT = Position(1, Lsn(900), 0)
ERROR = RecordRefusedError("too large")


def session() -> Session:
    settings = SimpleNamespace(capture=CaptureSettings(**CAPTURE))
    servers = SimpleNamespace(settings=settings, progress=None, refusals=Refusals())
    made = Session(cast("Any", servers))
    made.tables = tables()
    made.tables.states.put(STATE.model_copy(update={"phase": Phase.STREAMING}))
    return made


def refuse(made: Session) -> None:
    """Start over after a refusal."""
    ERROR.refused = RefusedRecord(STATE.topic, b"k", "", "", 1)
    made.servers.refusals.of_tables[STATE.topic] = ERROR
    made._refused()


def test_a_reset_whose_rows_are_refused_ends_and_says_why() -> None:
    made = session()
    refuse(made)
    assert made.tables.states.is_set_aside(STATE.name)
    assert made.tables.obstacles.is_given_up(STATE.name)
    made.tables.reads.ask({STATE.name: None}, "signal", reset=True)
    refuse(made)
    state = made.tables.states[STATE.name]
    assert state.requests == ()
    assert state.outcome is not None
    assert (state.outcome.signal, state.outcome.failure) == ("signal", "too large")


def test_a_read_that_the_next_start_begins_ends_so_as_well() -> None:
    made = session()
    refuse(made)
    made.tables.obstacles.try_again()
    made.tables.reads.ask({STATE.name: None}, "", reset=True)
    refuse(made)
    assert made.tables.states[STATE.name].requests == ()
    assert made.tables.obstacles.is_given_up(STATE.name)


def test_what_is_refused_of_a_table_that_nothing_is_written_of_ends_the_daemon() -> None:
    made = session()
    for _ in range(4):  # a reset may have been asked for and refused in one transaction
        refuse(made)
    with pytest.raises(RecordRefusedError, match="too large") as raised:
        refuse(made)
    assert raised.value.refused is None, "else it would start over for ever"


def test_without_its_slot_no_table_that_is_set_aside_would_be_read() -> None:
    made = session()
    made.check_read()
    refuse(made)
    assert made.tables.reads.is_all_shown(CUT), "nothing is read of it by itself"
    with pytest.raises(NotDoneError, match=r"public\.t \(too large"):
        made.check_read()
    made.tables.obstacles.try_again()
    assert not made.tables.reads.is_all_shown(CUT), "now it is to be"
    made.tables.states.put(made.tables.states[STATE.name].model_copy(update={"gone_ms": 1}))
    assert made.tables.reads.is_all_shown(CUT)
    made.check_read()
