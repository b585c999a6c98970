"""A large table, read before its plan exists: no other table suffers from its contents."""

import pytest

from cdc.errors import ExitCode, SinkError
from cdc.records.schema import TableSchema
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_EPOCH = 719_163
_LATE = 3_000_000
"""A day after 9999, which no date in the lakehouse can be."""


@pytest.mark.proof
def test_what_the_largest_table_has_does_not_hold_up_others(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", 1)
    large = lakehouse.log(column("id", "int4", 1), column("d", "date"), table="large")
    small = large.beside(table_schema(lakehouse.prefix, "small", *large.schema.columns))
    for key in range(4):
        large.row("r", at(10, 0), {"id": key, "d": key})
    small.row("r", at(10, 0), {"id": 1, "d": 1})
    for log in (large, small):
        log.table(10)
    large.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK

    # A transaction of which only a part is in the log yet.
    for key in range(4):
        large.row("u", at(30, key), {"id": key, "d": 30})
    small.row("u", at(20), {"id": 1, "d": 20})
    small.reached(at(20))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert days(lakehouse, large.schema) == {0, 1, 2, 3}
    assert days(lakehouse, small.schema) == {20}

    for key in range(4):
        large.row("u", at(40, key), {"id": key, "d": _LATE})
    small.row("u", at(40, 9), {"id": 1, "d": 40})
    large.reached(at(40, 9))
    (failed, done) = sorted(lakehouse.merge().tables, key=lambda table: table.error is None)
    assert isinstance(failed.error, SinkError)
    assert "column d (date) can't hold" in failed.error.what
    assert (failed.name, done.name, done.error) == ("public.large", "public.small", None)
    assert days(lakehouse, small.schema) == {40}
    assert days(lakehouse, large.schema) == {0, 1, 2, 3}


def days(lakehouse: Lakehouse, table: TableSchema) -> set[int]:
    """The dates that a derived table has, as days since 1970."""
    return {row["d"].toordinal() - _EPOCH for row in lakehouse.rows(table)}


@pytest.mark.proof
def test_a_table_that_begins_with_filled_values_has_them(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("b", "text"))
    log.row("u", at(200, 1), {"id": 1, "a": "read", "b": "changed"}, filled=["a"])
    log.row("u", at(200, 2), {"id": 1, "a": "changed", "b": "read"}, filled=["b"])
    log.table(100)
    log.reached(at(200, 2))
    assert [table.error for table in lakehouse.merge().tables] == [None]
    assert lakehouse.rows(log.schema) == [{"id": 1, "a": "changed", "b": "changed"}]
