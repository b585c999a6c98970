"""`millrace rebuild lakehouse` → one commit of the table's own that replaces all of it."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.changes.names import OP, POSITION, VALID_FROM
from sinks.delta.cuts import Cut, cuts
from sinks.run.options import RunOptions
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunSummary
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KINDS = ("current", "history", "changes")
TABLES = ("public.t", "public.t_changes", "public.t_history")


def folder(lakehouse: Lakehouse, name: str) -> str:
    return table_path(str(lakehouse.folder), TableName.parse(name))


def rebuild(lakehouse: Lakehouse, *names: str) -> RunSummary:
    return lakehouse.merge(RunOptions(rebuilt=frozenset(names), rebuilds_all=not names))


def begun(lakehouse: Lakehouse, *kinds: str) -> HandLog:
    """A table with an insert, an update and a delete behind its first two rows."""
    lakehouse.configure(kinds=kinds or ("current",))
    log = lakehouse.log(column("id", "int4", 1), column("v", "text"))
    for key in (1, 2):
        log.row("r", at(10, 0), {"id": key, "v": "read"})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    log.row("u", at(20, 1), {"id": 1, "v": "updated"})
    log.row("d", at(20, 2), None, {"id": 2, "v": "read"})
    log.row("c", at(20, 3), {"id": 3, "v": "new"})
    log.reached(at(20, 3))
    assert lakehouse.merge().exit_code == ExitCode.OK
    return log


def rows(lakehouse: Lakehouse, name: str) -> list[tuple[object, ...]]:
    own = {"public.t_changes": (OP,), "public.t_history": (VALID_FROM,)}.get(name, ())
    return sorted(lakehouse.read(name, "id", "v", POSITION, *own), key=str)


def damage(lakehouse: Lakehouse, name: str) -> None:
    """Remove the table's data files behind Millrace's back."""
    files = [*Path(folder(lakehouse, name)).glob("*.parquet")]
    assert files
    for file in files:
        file.unlink()


def all_cuts(lakehouse: Lakehouse) -> list[Cut]:
    return cuts(lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark))


def test_a_damaged_table_is_right_again_by_one_version_of_its_own(lakehouse: Lakehouse) -> None:
    begun(lakehouse, *KINDS)
    before = {name: DeltaTable(folder(lakehouse, name)) for name in TABLES}
    expected = {name: rows(lakehouse, name) for name in TABLES}
    for name in TABLES:
        damage(lakehouse, name)
    assert rebuild(lakehouse).exit_code == ExitCode.OK
    assert {name: rows(lakehouse, name) for name in TABLES} == expected
    after = {name: DeltaTable(folder(lakehouse, name)) for name in TABLES}
    for name in TABLES:
        assert after[name].metadata().id == before[name].metadata().id
        assert after[name].version() == before[name].version() + 1
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
