"""What changed in a tree's tables between two cuts → the keys of the documents that it changes.

A document is another one only if a row in it is: one that has gone from it, and then the older cut
tells which document had it, or one that has come, and then the newer one does. So each changed row
is followed to its roots at its own cut; what joins it there, and has changed as well, is followed
for itself.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sinks.changes.names import quoted
from sinks.delta.version import all_there
from sinks.search.joined.reading import Change, Tables, kept
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


def affected(
    root: Node, changed: Callable[[str], Change | None], older: Tables, newer: Tables
) -> tuple[DataFrame, int] | None:
    """The keys of the documents to be written anew, and how many; None: nothing has changed."""
    found = list(_found(root, changed, older, newer))
    if not found:
        return None
    return kept(reduce(DataFrame.unionByName, found).distinct())


def _found(
    root: Node, changed: Callable[[str], Change | None], older: Tables, newer: Tables
) -> Iterator[DataFrame]:
    changes = {table: changed(table) for table in root.linking()}
    for path in root.paths():
        change = changes[path[-1].table]
        if change is not None:
            yield _roots(path, change.gone, older)
            yield _roots(path, change.come, newer)


def _roots(path: tuple[Node, ...], rows: DataFrame, tables: Tables) -> DataFrame:
    """The keys of the roots that rows of a path's last node are embedded in."""
    root = path[0]
    for outer, node in reversed(list(pairwise(path))):
        own_names = {name: own for own, name in node.on}
        if outer is root and own_names.keys() == set(root.keys):  # they tell the key themselves
            keys = (
                F.col(quoted(own_names[one.name])).try_cast(one.type).alias(one.name)
                for one in root.key_fields
            )
            return rows.select(*keys).where(all_there(root.keys))
        rows = joining(node, tables, outer.table, "outer", rows)
    return rows.select(*map(quoted, root.keys))
