"""Columns that the source drops → whether documents still have their values."""

from typing import Any

import pytest

from cdc.errors import ExitCode
from tests.fixtures.indexes import ALIAS, Indexes
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]
ID, A, N = (
    column("id", "int4", 1, number=1),
    column("a", "text", number=2),
    column("n", "int8", number=3),
)


def begun(indexes: Indexes) -> HandLog:
    """A table of two rows, whose column ``a`` is dropped and whose index doesn't know it yet."""
    log = HandLog(indexes.kafka, indexes.prefix, table_schema(indexes.prefix, "t", ID, A, N, oid=7))
    for number in range(2):
        log.row("r", at(100, 0), {"id": number, "a": f"secret {number}", "n": number})
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    altered(log, 2, 200, ID, N)
    return log


def altered(log: HandLog, version: int, lsn: int, *columns: Any) -> None:
    schema = table_schema(log.prefix, "t", *columns, version=version, oid=7)
    log.add_schema(schema.model_copy(update={"since": str(at(lsn, 0))}))
    log.reached(at(lsn, 0))


def merged(indexes: Indexes) -> None:
    summary = indexes.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("sinks.search.apply.TableIndexer", "_record"),
        pytest.param("sinks.search.apply", "write_remaining", marks=pytest.mark.proof),
        pytest.param("sinks.search.apply.TableIndexer", "finish_load", marks=pytest.mark.proof),
        pytest.param("sinks.search.progress.Ledger", "write_table", marks=pytest.mark.proof),
        pytest.param("sinks.search.indexes.TableIndex", "publish", marks=pytest.mark.proof),
    ],
)
def test_a_new_index_has_no_value_of_a_dropped_column_whenever_a_run_dies(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    begun(indexes)
    index = indexes.index()

    def die(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(f"{owner}.{name}", die)
        with pytest.raises(ZeroDivisionError):
            indexes.merge()
    merged(indexes)
    assert indexes.documents() == {"0": {"id": 0, "n": 0}, "1": {"id": 1, "n": 1}}
    assert indexes.index() != index
    assert len(indexes.client.indices.get(index=f"{indexes.prefix}-{ALIAS}-*")) == 1
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_values_may_be_kept_until_the_row_changes_and_go_once_they_are_to_be_removed(
    indexes: Indexes,
) -> None:
    mapping = {"a": {"type": "keyword"}}
    kept = {"table": "public.t", "column.drop.policy": "keep", "mapping": mapping}
    indexes.define(indexes=[kept])
    log = begun(indexes)
    index = indexes.index()
    log.row("u", at(300), {"id": 1, "n": 5})
    log.reached(at(300))
    merged(indexes)
    assert indexes.index() == index
    assert indexes.documents() == {"0": {"id": 0, "a": "secret 0", "n": 0}, "1": {"id": 1, "n": 5}}
    indexes.define(indexes=[{"table": "public.t", "mapping": mapping}])
    merged(indexes)
    assert indexes.index() != index
    assert indexes.documents() == {"0": {"id": 0, "n": 0}, "1": {"id": 1, "n": 5}}
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_columns_that_swap_names_swap_their_values(indexes: Indexes) -> None:
    log = begun(indexes)
    merged(indexes)
    altered(log, 3, 300, ID, column("m", "int8", number=3), column("n", "int8", number=4))
    log.row("c", at(310), {"id": 2, "m": 1, "n": 2})
    log.reached(at(310))
    merged(indexes)
    altered(log, 4, 400, ID, column("n", "int8", number=3), column("m", "int8", number=4))
    merged(indexes)
    assert indexes.documents() == {
        "0": {"id": 0, "n": 0},
        "1": {"id": 1, "n": 1},
        "2": {"id": 2, "n": 1, "m": 2},
    }
