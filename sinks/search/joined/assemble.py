"""A tree of tables at one cut, and some of its root's rows → documents.

A row's embedded rows are collected by their joining columns, from the leaves of the tree up. If
only some documents are wanted, each table is first reduced to the rows that may join. All values
keep Spark's types until a document is written as JSON, so that a user's expressions use the
columns' types.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.errors import ConfigError
from cdc.records.position import Position
from sinks.changes.names import quoted
from sinks.delta.version import all_there
from sinks.run.cuts import TableAtCut
from sinks.search.documents import POSITION_FIELD, document_id
from sinks.search.joined.affected import joining, names, renamed, same
from sinks.search.joined.tree import Node
from sinks.search.rows import JSON, key_text, value_in_json
from sinks.spark.errors import spark_ended, spark_error
from sinks.spark.session import first_line

_SOURCE: Final = "_millrace_source"
_KEY: Final = "_millrace_key"
_SHOWN: Final = "_millrace_shown"
_ID: Final = "_millrace_id"


def documents(
    root: Node,
    rows: DataFrame,
    tables: Mapping[str, TableAtCut],
    cut: Position,
    *,
    some: bool = True,
    keys: DataFrame | None = None,
) -> DataFrame:
    """Return documents of the root's rows, in the form of ``sinks/search/executors.py``.

    Those of the ``keys`` that have no document any longer are deleted. ``some``: the rows are few
    of all, so they are kept, and large tables needn't be joined completely.
    """
    own = [*map(quoted, root.keys)]
    rows = rows if root.where is None else rows.where(F.expr(root.where))
    rows = rows.localCheckpoint() if some else rows
    whole = joined(root, rows, tables, some=some).select(*own, typed(root).alias(_SHOWN))
    members = [*_members(root, lambda name: F.col(_SHOWN).getField(name))]
    source = F.struct(*members, F.lit(str(cut)).alias(POSITION_FIELD))
    made = whole.select(*own, F.to_json(source, JSON).alias(_SOURCE))
    if keys is not None:
        gone = keys.join(rows.select(*own), list(root.keys), "left_anti")
        made = made.unionByName(gone.withColumn(_SOURCE, F.lit(None).cast("string")))
    nothing = F.array().cast("array<string>")
    return made.select(
        _key_texts(root).alias("key"),
        F.lit(int(cut.commit_lsn)).cast("bigint").alias("version"),
        F.col(_SOURCE).alias("source"),
        nothing.alias("absent"),
        nothing.alias("filled"),
    )


def types(root: Node, tables: Mapping[str, TableAtCut]) -> StructType:
    """Return the types of a document's fields, in Spark."""
    whole = joined(root, tables[root.table].rows(), tables, some=False)
    kind = whole.select(typed(root).alias(_SHOWN)).schema[_SHOWN].dataType
    assert isinstance(kind, StructType)  # noqa: S101 (typed makes one)
    return kind


def _key_texts(root: Node) -> SparkColumn:
    """Return the root's key in the form of its document's id."""
    return F.array(
        *(
            key_text(field.column, value_in_json(field.column, F.col(quoted(field.name))))
            for field in root.key_fields
        )
    )


def joined(
    node: Node, rows: DataFrame, tables: Mapping[str, TableAtCut], *, some: bool
) -> DataFrame:
    """Add a column for each embedded node to the rows."""
    for embedded in node.embeds:
        table = tables[embedded.table]
        few = some and not table.is_small
        inner = joining(embedded, table, "own", rows) if few else table.rows()
        if embedded.where is not None:
            inner = inner.where(F.expr(embedded.where))
        if few and embedded.embeds:
            inner = inner.localCheckpoint()
        inner = _gathered(embedded, joined(embedded, inner, tables, some=some))
        rows = rows.join(inner, same(embedded, "outer"), "left").drop(*names(embedded))
    return rows


def _gathered(node: Node, rows: DataFrame) -> DataFrame:
    """Return the embedded rows by the joining columns' values: one row, or all in a list."""
    key = F.struct(*map(quoted, node.keys))
    shown = F.col(quoted(node.embeds[0].field)) if node.is_between else typed(node)
    rows = rows.select(*renamed(node, "own"), key.alias(_KEY), shown.alias(_SHOWN))
    rows = rows.where(all_there(names(node)))  # rows that join nothing would be one large group
    if node.is_between:
        rows = rows.where(F.col(_SHOWN).isNotNull())
    if not node.many and {pair.own for pair in node.on} >= set(node.keys):  # one row each
        return rows.select(*map(quoted, names(node)), F.col(_SHOWN).alias(node.field))
    groups = rows.groupBy(*map(quoted, names(node)))
    if not node.many:
        return groups.agg(F.min_by(_SHOWN, _KEY).alias(node.field))
    ordered = F.array_sort(F.collect_list(F.struct(_KEY, _SHOWN)))
    return groups.agg(F.transform(ordered, lambda pair: pair.getField(_SHOWN)).alias(node.field))


def typed(node: Node) -> SparkColumn:
    """Return a row's visible members, in Spark's types."""
    return F.struct(
        *(F.col(quoted(field.name)).alias(name) for name, field in node.fields.items()),
        *(F.expr(sql).alias(name) for name, sql in node.computed),
        *(F.col(quoted(inner.field)).alias(inner.field) for inner in node.embeds),
    )


def _members(node: Node, value: Callable[[str], SparkColumn]) -> list[SparkColumn]:
    """Return a row's members in the form of JSON."""
    members = [
        value_in_json(field.column, value(name)).alias(name) for name, field in node.fields.items()
    ]
    members += [value(name).alias(name) for name, _ in node.computed]
    for inner in node.embeds:
        members.append(_embedded(inner, value(inner.field)).alias(inner.field))
    return members


def _embedded(node: Node, value: SparkColumn) -> SparkColumn:
    shown = node.shown

    def written(row: SparkColumn) -> SparkColumn:
        return F.struct(*_members(shown, row.getField))

    if node.many:
        return F.transform(value, written)
    return F.when(value.isNotNull(), written(value))


def slice_of(root: Node, rows: DataFrame, number: int, slices: int) -> DataFrame:
    """Return one of several slices of the root's rows, of about the same size.

    The tasks also have the same size, unlike files, so all cores are busy to the end.
    """
    keys = [F.col(quoted(name)) for name in root.keys]
    if slices > 1:
        rows = rows.where(F.pmod(F.xxhash64(*keys), F.lit(slices)) == number)
    tasks = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return rows.repartition(int(tasks or 1), *keys)


def with_ids(root: Node, rows: DataFrame, documents: frozenset[str]) -> DataFrame:
    """Return the root's rows whose documents have one of these ids."""
    keys = rows.select(*map(quoted, root.keys))
    identified = rows.select(*map(quoted, root.keys), _key_texts(root).alias(_ID)).rdd
    wanted = identified.filter(lambda row: document_id(row[_ID]) in documents)
    few = rows.sparkSession.createDataFrame(wanted.map(lambda row: row[:-1]), keys.schema)
    return rows.join(few, list(root.keys), "left_semi")


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn Spark's exceptions in the block into an error with a remedy."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            f"Spark can't compute the documents: {first_line(error)}",
            where=where,
            remedy="check computed, where and on: they are Spark SQL over columns of the"
            " lakehouse's table; computed can also use what is embedded in its rows",
        ) from None
    except (PySparkException, Py4JError) as error:
        if spark_ended(error):
            raise  # an error of all documents
        raise spark_error(
            "the documents can't be computed",
            error,
            where=where,
            remedy="correct the expression: try_cast, try_divide and similar functions return null"
            " for an invalid value",
        ) from None
