"""The log's tables, and [search] → the wanted indexes, and why others can't exist."""

from types import SimpleNamespace
from typing import Any, cast

from cdc.log.offsets import LogState
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings import SearchSettings
from sinks.run.options import RunOptions
from sinks.run.target import Wanted
from sinks.search.target import IndexTarget
from tests.fixtures.made_states import streaming, table_state


def wanted(*names: str, **search: object) -> Wanted:
    """What is wanted of tables with a key."""
    tables = [TableName("public", name) for name in names]
    key = Column(name="id", type="int4", type_oid=23, declared="integer", key=1)
    schemas: dict[str, tuple[TableSchema, ...]] = {
        str(table): (
            TableSchema(
                namespace="public",
                table=table.name,
                version=1,
                since="",
                topic=f"pre.{table}",
                replica_identity="d",
                columns=(key,),
                signature="",
            ),
        )
        for table in tables
    }
    states = {str(table): table_state(table) for table in tables}
    run = SimpleNamespace(report=lambda _: None, options=RunOptions())
    settings = SearchSettings.model_validate({"url": "http://search", **search})
    target = IndexTarget(cast("Any", SimpleNamespace(search=settings, run=run)), cast("Any", None))
    progress = streaming(Position(1, Lsn(100), 0))
    return target.wanted(LogState(progress, states, schemas, {}, {}), [])


def test_of_two_tables_that_would_share_an_index_neither_is_wanted_and_others_are() -> None:
    made = wanted("Users", "users", "other")
    assert made.tables.keys() == {"public.other"}
    assert made.refused.keys() == {"public.Users", "public.users"}


def test_named_apart_both_are() -> None:
    made = wanted("Users", "users", indexes=[{"table": "public.Users", "name": "quoted"}])
    assert made.tables.keys() == {"public.Users", "public.users"}
    assert not made.refused
