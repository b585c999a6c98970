"""Tables and views at a cut → their names in SQL, and a message for missing ones."""

from typing import Any, Final

from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.settings.lakehouse import LakehouseSettings
from sinks.changes.derived import derived_tables, derived_view
from sinks.delta.cuts import Cut
from sinks.delta.query import _lacking, _names
from sinks.run.summary import TableVersion

LAKEHOUSE: Final = LakehouseSettings(path="/lake")
VERSION: Final = TableVersion(id="v", version=1)


def cut(**more: Any) -> Cut:
    known = {"versions": {}, "missing": [], "tables": {}, "committed_us": 1}
    at = Position(1, Lsn(1), 0)
    return Cut(run=1, position=at, applied_ms=1, seconds=0.1, **known | more)


def test_a_view_has_its_bare_name_unless_a_table_in_public_has_it() -> None:
    at = cut(views={"totals": VERSION, "orders": VERSION}, missing_views={"broken": "why"})
    views = [derived_view(LAKEHOUSE, name) for name in ("totals", "orders", "broken")]
    tables = derived_tables(LAKEHOUSE, ["public.orders", "sales.totals"])
    names = _names(tables | {view.name: view for view in views}, at)
    assert names == {
        TableName("public", "orders"): "public.orders",
        TableName("sales", "totals"): "sales.totals",
        TableName("views", "totals"): "views.totals",
        TableName("views", "orders"): "views.orders",
        TableName("views", "broken"): "views.broken",
        TableName("public", "totals"): "views.totals",
        TableName("public", "broken"): "views.broken",
    }


def test_what_a_query_names_and_isnt_there_is_said_with_what_to_do() -> None:
    at = cut(missing=["public.a", "public.b"], missing_views={"v": "run this", "w": "or that"})
    mentioned = {TableName("public", "a"): "public.a", TableName("public", "v"): "views.v"}
    said = "public.a: not at this cut; `millrace cuts` lists other cuts; view v: run this"
    assert _lacking(at, mentioned) == said
    assert _lacking(at, {TableName("public", "c"): "public.c"}) == ""


def test_a_view_is_where_a_table_of_the_schema_views_would_be() -> None:
    assert derived_view(LAKEHOUSE, "totals").path == "/lake/views/totals"
