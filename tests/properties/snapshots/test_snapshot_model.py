"""Any events during a read in chunks → the log adds up to the source.

tests/fixtures/snapshot_model.py plays everything except the servers.
"""

from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.tables.reads import TableReads
from cdc.tables.schemas import EncoderRegistry
from snapshots import chunk, table_read
from snapshots.chunk import Visibility
from snapshots.table_read import Changes
from tests.fixtures.examples import examples
from tests.fixtures.heap_model import Values
from tests.fixtures.snapshot_model import World, by_position, in_order

STEPS = 200
FEW_KEYS = 3


def differences(program: bytes, *, compiled: bool = True, few: bool = False) -> dict[str, Any]:
    """Rows that the log has and the source doesn't, or the other way round, after a program."""
    keys_max = FEW_KEYS if few else table_read.KEYS_MAX
    with (
        patch.object(table_read, "KEYS_MAX", keys_max),
        patch.object(chunk, "COMMITS_MAX", STEPS),
    ):
        world = World(program, compiled=compiled)
        world.run()
        return compared(world)


def compared(world: World) -> dict[str, Any]:
    """The same of a world that has come to its end."""
    names = world.heap.columns[1:]
    expected = {key: _of(row, names) for key, row in world.heap.rows().items()}
    found = {}
    events = world.log.events()
    for order, one in (("offsets", events), ("positions", by_position(events))):
        rows = in_order(one, merged=world.merged)
        for key in {*rows, *expected}:
            row = _of(rows[key], names) if key in rows else None
            if row != expected.get(key):
                found[f"{key} by {order}"] = row, expected.get(key)
    return found


def _of(row: Values, names: tuple[str, ...]) -> Values:
    """The columns that the table has now; what was added later may be left out where it is NULL."""
    absent = {name: None for name in names if name.startswith("x")}
    return {name: value for name, value in (absent | row).items() if name in names}


@settings(max_examples=examples(100), print_blob=True)
@given(st.binary(min_size=STEPS, max_size=STEPS), st.booleans(), st.booleans())
def test_what_the_log_adds_up_to_is_the_source(program: bytes, compiled: bool, few: bool) -> None:
    assert differences(program, compiled=compiled, few=few) == {}


def test_a_commit_that_the_stream_had_before_changes_were_told_is_waited_for() -> None:
    """It isn't visible yet, and newer than all that is: a chunk would bring its row back."""
    found = []
    for works in (True, False):
        world = World(bytes((0, 2)))
        heap, stay = world.heap, world.stay
        stay.turn()
        stay.threads.step(0)  # it has a connection, and knows the table
        one, row = heap.begin(), heap.now("0")
        assert row is not None
        heap.delete(one, row)
        heap.commit(one)
        stay.stream(10)
        is_waited_for = Visibility.shows_all_before if works else lambda *_: True
        with patch.object(Visibility, "shows_all_before", is_waited_for):
            for _ in range(2):
                stay.turn()
                for _ in range(4):
                    stay.threads.step(0)
                stay.stream(10)
            world.finish()
        found.append(compared(world))
    assert found[0] == {}
    assert found[1] != {}, "the test shows nothing"


def _never_while_reading(self: EncoderRegistry, state: TableState) -> bool:
    return not state.requests and state.cleanup == "compact" and self._rules.events.reselect


def _at_once(self: Changes, visibility: Visibility, _begun: Any) -> None:
    self._settled = visibility, set()


def _as_before(self: TableReads, table: TableName, _reason: str) -> list[Record]:
    return self._states.set_requests(table, self._states[table].requests)


BROKEN: list[tuple[type, str, Any, int]] = [
    (EncoderRegistry, "_reselects", _never_while_reading, 0),
    (Changes, "stale", lambda *_: frozenset(), 80),
    (Changes, "settle", _at_once, 1_900),
    (TableReads, "read_anew", _as_before, 0),
]
"""What is replaced by what, and a seed a little before one that shows it."""


@pytest.mark.parametrize(
    ("where", "what", "instead", "first"), BROKEN, ids=[one[1] for one in BROKEN]
)
def test_it_finds_what_is_broken(where: type, what: str, instead: Any, first: int) -> None:
    seeds = range(first, first + 4_000)
    programs = (Random(seed).randbytes(STEPS) for seed in seeds)  # noqa: S311
    with patch.object(where, what, instead):
        assert any(differences(program) for program in programs)
