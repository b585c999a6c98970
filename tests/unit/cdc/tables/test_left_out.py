"""A captured table that the publication lacks → set aside, or a warning if the log has it."""

from dataclasses import replace

import pytest

from cdc.records.position import Lsn, Position
from cdc.records.state import Phase
from tests.fixtures.made_tables import COLUMNS, STATE, tables
from tests.unit.cdc.tables.test_tables import described

UNPUBLISHED = replace(described(*COLUMNS), name=STATE.name, oid=STATE.oid, entry=0)
AT = Position(2, Lsn(1_000), 0)
BEGINS = {"epoch": 2, "phase": Phase.SNAPSHOT, "oid": 0, "entry": 0}
"""As a new epoch leaves a table's state."""


def test_of_a_table_that_the_log_has_it_is_a_warning_once() -> None:
    made = tables()
    assert made.obstacles.leave_out(UNPUBLISHED, AT) == []
    assert not made.states.is_set_aside(STATE.name)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "of an epoch that begins"])
def test_a_table_that_the_log_has_nothing_of_is_set_aside(is_new: bool) -> None:
    made = tables()
    if not is_new:
        made.states.put(STATE.model_copy(update=BEGINS))
    table = described(*COLUMNS) if is_new else UNPUBLISHED
    table = replace(table, entry=0)
    assert made.obstacles.leave_out(table, AT)
    state = made.states[table.name]
    assert state.is_set_aside
    assert state.doubt is not None
    assert f"ADD TABLE ONLY {table.name};" in state.doubt.reason
    assert made.obstacles.leave_out(table, AT) == [], "it is set aside already"
