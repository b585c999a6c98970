"""A condition that came with a signal → whether it says of a table's own rows which are wanted.

Who may send signals may not read whatever the daemon's role may: a condition that closes a bracket
too many goes on with a UNION, and rows of another table get into this one's topic. PostgreSQL says
what it has understood: the plan has to be one scan of the leaf, and nothing else. Planning runs
none of it, in a transaction that is read only.
https://www.postgresql.org/docs/current/sql-explain.html
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.errors import TableRefusedError
from cdc.postgres.connection import query
from cdc.postgres.described import Leaf

_NODES: Final = frozenset({
    "Limit", "Result", "Seq Scan", "Tid Scan", "Tid Range Scan", "Index Scan", "Index Only Scan",
    "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr", "Gather",
})  # fmt: skip
"""Of a scan by a condition, however it is done."""
_RELATIONS_OF: Final = "Relation Name"


def check_condition(connection: psycopg.Connection, select: sql.Composed, leaf: Leaf) -> None:
    """Raise TableRefusedError where a leaf's SELECT reads more than rows of the leaf."""
    ((plans,),) = query(connection, sql.SQL("EXPLAIN (VERBOSE, FORMAT JSON) {}").format(select))
    nodes = list(_nodes(plans[0]["Plan"]))
    relations = [node for node in nodes if _RELATIONS_OF in node]
    own = [(node["Schema"], node[_RELATIONS_OF]) for node in relations] in ([], [tuple(leaf.name)])
    is_simple = all(node["Node Type"] in _NODES and "Subplan Name" not in node for node in nodes)
    if not (own and is_simple):
        raise TableRefusedError(
            "the filter isn't a condition on the table's own columns: it has a subquery, or names"
            " other tables",
            where=f"table {leaf.name}",
            remedy="send the signal again with a plain condition",
        )


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)
