"""A document's definition and columns → the columns that identify rows, and that join them."""

from cdc.records.schema import Column
from cdc.settings.search import Document
from sinks.changes.names import OWN
from sinks.changes.shape import plain_shape
from sinks.search.joined.tree import Links, tree
from tests.fixtures.spark import column, table_schema

DOCUMENT = Document.model_validate(
    {
        "name": "orders",
        "table": "public.o",
        "embed": [{"field": "lines", "table": "public.l", "on": {"ref": "id"}, "many": True}],
    }
)
LINES = (column("id", "int4", 1), column("ref", "int4"))


def links(*orders: Column) -> dict[str, Links[str]]:
    tables = {"o": orders, "l": LINES}
    shapes = {
        f"public.{name}": plain_shape([table_schema("p", name, *columns)], OWN)
        for name, columns in tables.items()
    }
    return tree(DOCUMENT, shapes).linking()


def test_a_key_and_what_joins_are_told_apart() -> None:
    """A column that joins may come to the key: documents have other ids then."""
    alone = links(column("id", "int4"), column("part", "int4", 1))
    assert alone == {"public.o": Links(("part",), {"id"}), "public.l": Links(("id",), {"ref"})}
    both = links(column("id", "int4", 2), column("part", "int4", 1))
    assert both["public.o"] == Links(("part", "id"), {"id"})


def test_a_key_has_its_order() -> None:
    """In another order it makes other ids."""
    one = links(column("id", "int4", 1), column("part", "int4", 2))
    other = links(column("id", "int4", 2), column("part", "int4", 1))
    assert one["public.o"] != other["public.o"]
