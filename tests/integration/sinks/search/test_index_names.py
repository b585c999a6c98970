"""Names of tables → names of indexes; two tables with the same index name have none."""

import pytest

from cdc.errors import ExitCode
from sinks.search.client import search
from tests.fixtures.indexes import Indexes
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


@pytest.mark.proof
def test_only_the_two_are_without_an_index_until_one_has_a_name_of_its_own(
    indexes: Indexes,
) -> None:
    columns = column("id", "int4", 1), column("a", "text")
    log = indexes.log(*columns)
    tables = [log, log.beside(table_schema(log.prefix, "users", *columns))]
    for each in tables:
        each.row("r", at(100, 0), {"id": 1, "a": "first"})
        each.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    quoted = log.beside(table_schema(log.prefix, "Users", *columns))
    quoted.row("r", at(200, 0), {"id": 2, "a": "quoted"})
    quoted.table(200)
    for each in tables:
        each.row("u", at(300, 1), {"id": 1, "a": "later"})
    log.reached(at(300, 1))
    summary = indexes.merge()
    assert summary.exit_code == ExitCode.SINK
    failed = {each.name: str(each.error) for each in summary.tables if each.error is not None}
    assert failed.keys() == {"public.users", "public.Users"}
    assert '[[search.indexes]] table = "public.Users", name = "…"' in failed["public.Users"]
    assert indexes.documents() == {"1": {"id": 1, "a": "later"}}

    named = {"table": "public.Users", "name": "quoted"}
    indexes.define(indexes=[named])
    assert indexes.merge().exit_code == ExitCode.OK
    assert documents(indexes, "public.users") == {"1": "later"}
    assert documents(indexes, "quoted") == {"2": "quoted"}

    # One that serves gets another name: a new one takes its place, and nothing of it is left.
    indexes.define(indexes=[named, {"table": "public.users", "name": "people"}])
    assert indexes.merge().exit_code == ExitCode.OK
    assert documents(indexes, "people") == {"1": "later"}
    assert indexes.client.indices.get(index=f"{indexes.prefix}-public.users*") == {}


def documents(indexes: Indexes, name: str) -> dict[str, str]:
    answer = indexes.client.search(index=f"{indexes.prefix}-{name}", body={"size": 1_000})
    return {hit["_id"]: hit["_source"]["a"] for hit in answer["hits"]["hits"]}


def test_an_index_is_searched_by_the_name_of_its_table(indexes: Indexes) -> None:
    log = indexes.log(column("id", "int4", 1), table="Parents")
    log.row("r", at(100, 0), {"id": 1})
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    assert indexes.settings.search is not None
    result = search(indexes.settings.search, "public.Parents", "*")
    assert [hit["_id"] for hit in result.hits] == ["1"]
    assert search(indexes.settings.search, f"{indexes.prefix}-public.parents", "*") == result
