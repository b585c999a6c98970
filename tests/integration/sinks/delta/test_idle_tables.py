"""A table without writes: DDL on its columns reaches its derived tables, too."""

from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode
from tests.fixtures.few import few
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
DERIVED = {"current": "public.t", "history": "public.t_history", "changes": "public.t_changes"}
ALL = tuple(DERIVED)
ID, A, N = (
    column("id", "int4", 1, number=1),
    column("a", "text", number=2),
    column("n", "int8", number=3),
)
KEY, Q = column("key", "int4", 1, number=1), column("q", "int8", number=3)


def described(log: HandLog, version: int, lsn: int, *columns: Any) -> None:
    """The catalog check has found these columns, and the stream has come to the next cut."""
    schema = table_schema(log.prefix, "t", *columns, version=version)
    log.add_schema(schema.model_copy(update={"since": str(at(lsn, 0))}))
    log.reached(at(lsn, 0))


def begun(lakehouse: Lakehouse, *columns: Any, **row: Any) -> HandLog:
    log = lakehouse.log(*columns)
    log.row("r", at(10, 0), row)
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    return log


def merge_dies_and_is_repeated(lakehouse: Lakehouse, kinds: tuple[str, ...] = ALL) -> None:
    """It dies when the columns are renamed, and the run isn't noted."""
    with (
        patch("sinks.delta.target.write_nothing", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        lakehouse.merge()
    assert lakehouse.merge().exit_code == ExitCode.OK
    for name in (DERIVED[kind] for kind in kinds):
        assert lakehouse.table(name).columns[:3] == ["key", "a", "q"]
        assert lakehouse.read(name, "key", "a", "q") == [(1, "x", 5)]


@pytest.mark.parametrize("kinds", few([("history",), ALL], ("history",)), ids=["history", "all"])
def test_columns_are_renamed_and_dropped_without_an_event(
    lakehouse: Lakehouse, kinds: tuple[str, ...]
) -> None:
    lakehouse.configure(kinds=kinds)
    log = begun(lakehouse, ID, A, N, id=1, a="x", n=5)
    described(log, 2, 20, KEY, Q)
    merge_dies_and_is_repeated(lakehouse, kinds)
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_columns_are_dropped_by_another_run_and_rows_are_written_again(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.configure(kinds=ALL)
    log = begun(lakehouse, ID, A, N, id=1, a="x", n=5)
    described(log, 2, 20, KEY, A, Q)
    merge_dies_and_is_repeated(lakehouse)
    described(log, 3, 30, KEY, Q)
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    log.row("u", at(40), {"key": 1, "q": 6})
    log.reached(at(40))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.read("public.t", "key", "a", "q") == [(1, None, 6)]
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_a_key_that_changes_and_is_not_read_again_fails_the_table(
    lakehouse: Lakehouse,
) -> None:
    id_, n = column("id", "int4", 1, number=1), column("n", "int4", number=2)
    log = begun(lakehouse, id_, n, id=1, n=5)
    described(log, 2, 20, column("id", "int4", number=1), column("n", "int4", 1, number=2))
    for _ in range(2):
        summary = lakehouse.merge()
        error = str(summary.tables[0].error)
        assert "the key of public.t has changed, and the log has no new read of it" in error
        assert "millrace snapshot --reset public.t" in error
        assert summary.exit_code == ExitCode.SINK
    assert lakehouse.read("public.t", "id", "n") == [(1, 5)]
