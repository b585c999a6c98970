"""How a node's rows are joined to the outer node's: the one condition, from either side.

One side's columns are renamed for it, since both may have columns of one name.
"""

from functools import reduce
from operator import and_
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.changes.names import quoted
from sinks.delta.version import all_there
from sinks.search.joined.reading import Tables
from sinks.search.joined.tree import Node

Side = Literal["own", "outer"]
_LINK: Final = "_millrace_link_"
_PLACE: Final[dict[Side, int]] = {"own": 0, "outer": 1}


def renamed(node: Node, side: Side) -> list[Column]:
    """The columns that join, of rows of one side, under names that the other side doesn't have."""
    return [F.col(quoted(pair[_PLACE[side]])).alias(_LINK + pair[0]) for pair in node.on]


def names(node: Node) -> list[str]:
    """Those names."""
    return [_LINK + own for own, _ in node.on]


def same(node: Node, side: Side) -> Column:
    """Whether rows of one side join those of the other one, whose columns are renamed."""
    return reduce(
        and_,
        (F.col(quoted(pair[_PLACE[side]])) == F.col(quoted(_LINK + pair[0])) for pair in node.on),
    )


def joining(node: Node, tables: Tables, table: str, side: Side, others: DataFrame) -> DataFrame:
    """The rows of one side (a ``table``) that join any of the ``others``."""
    of_others: Side = "outer" if side == "own" else "own"
    links = others.select(*renamed(node, of_others)).where(all_there(names(node))).distinct()
    columns = {pair[_PLACE[side]]: _LINK + pair[0] for pair in node.on}
    return tables.near(table, links, columns).join(links, same(node, side), "left_semi")
