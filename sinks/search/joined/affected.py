"""The changes of a tree's tables between two cuts → the keys of the documents that change.

A document changes only if a row in it does. For a removed row, the older cut shows its document;
for an added row, the newer cut does. So each changed row is followed to its roots at its own cut.
Rows that join it there, and have also changed, are followed separately.
"""

from collections.abc import Mapping
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sinks.changes.names import quoted
from sinks.changes.shape import TableShape
from sinks.delta.version import all_there
from sinks.run.cuts import CutReader, Instant, TableAtCut
from sinks.search.joined.tree import JoinSide, Node
from sinks.spark.jvm import kept

_LINK: Final = "_millrace_link_"


def renamed(node: Node, side: JoinSide) -> list[Column]:
    """Return the joining columns of rows of one side, under names that the other side lacks."""
    return [F.col(quoted(pair.column(side))).alias(_LINK + pair.own) for pair in node.on]


def names(node: Node) -> list[str]:
    """Return those names."""
    return [_LINK + pair.own for pair in node.on]


def same(node: Node, side: JoinSide) -> Column:
    """Return the join condition of one side's rows with the other side's renamed columns."""
    return reduce(
        and_,
        (F.col(quoted(pair.column(side))) == F.col(quoted(_LINK + pair.own)) for pair in node.on),
    )


def joining(node: Node, table: TableAtCut, side: JoinSide, others: DataFrame) -> DataFrame:
    """Return the rows of one side (a ``table``) that join any of the ``others``."""
    of_others: JoinSide = "outer" if side == "own" else "own"
    links = others.select(*renamed(node, of_others)).where(all_there(names(node))).distinct()
    columns = {pair.column(side): _LINK + pair.own for pair in node.on}
    return table.rows_with(links, columns).join(links, same(node, side), "left_semi")


def affected(
    root: Node, reader: CutReader, shapes: Mapping[str, TableShape], older: Instant, newer: Instant
) -> tuple[DataFrame, int] | None:
    """Return the keys and the number of documents to write again. None: nothing has changed."""
    changes = {
        table: reader.difference(table, older, newer, shapes[table].keys, links.columns)
        for table, links in root.linking().items()
    }
    before, after, keys = reader.at(older), reader.at(newer), list[DataFrame]()
    for path in root.paths():
        if (change := changes[path[-1].table]) is not None:
            keys += [_roots(path, change.gone, before), _roots(path, change.come, after)]
    return kept(reduce(DataFrame.unionByName, keys).distinct()) if keys else None


def _roots(path: tuple[Node, ...], rows: DataFrame, tables: Mapping[str, TableAtCut]) -> DataFrame:
    """Return the keys of the roots that embed rows of a path's last node."""
    root = path[0]
    for outer, node in reversed(list(pairwise(path))):
        own_names = {pair.outer: pair.own for pair in node.on}
        if outer is root and own_names.keys() == set(root.keys):  # these columns are the key
            keys = (
                F.col(quoted(own_names[field.name])).try_cast(field.type).alias(field.name)
                for field in root.key_fields
            )
            return rows.select(*keys).where(all_there(root.keys))
        rows = joining(node, tables[outer.table], "outer", rows)
    return rows.select(*map(quoted, root.keys))
