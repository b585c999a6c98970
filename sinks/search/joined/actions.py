"""Documents → what is to be written of them; and which rows a part of a load has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.errors import ConfigError, SinkError
from cdc.records.position import Position
from sinks.changes.names import quoted
from sinks.search.documents import document_id
from sinks.search.joined.assemble import SOURCE, key_texts
from sinks.search.joined.tree import Node
from sinks.spark.session import first_line, jvm_ended

_ID: Final = "_millrace_id"


def actions(root: Node, documents: DataFrame, cut: Position) -> DataFrame:
    """As ``sinks/search/executors.py`` takes them."""
    nothing = F.array().cast("array<string>")
    return documents.select(
        key_texts(root).alias("key"),
        F.lit(int(cut.commit_lsn)).cast("bigint").alias("version"),
        F.col(SOURCE).alias("source"),
        nothing.alias("absent"),
        nothing.alias("filled"),
    )


def deletions(keys: DataFrame) -> DataFrame:
    """Keys of rows that have no document any more, as ``actions`` takes them."""
    return keys.withColumn(SOURCE, F.lit(None).cast("string"))


def part(root: Node, rows: DataFrame, number: int, parts: int) -> DataFrame:
    """The root's rows of one of so many parts, each with about as many.

    Spread over tasks of one size, which files aren't: so that all cores have some to the end.
    """
    keys = [F.col(quoted(name)) for name in root.keys]
    if parts > 1:
        rows = rows.where(F.pmod(F.xxhash64(*keys), F.lit(parts)) == number)
    tasks = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return rows.repartition(int(tasks or 1), *keys)


def with_ids(root: Node, rows: DataFrame, documents: frozenset[str]) -> DataFrame:
    """The root's rows whose documents have one of these ids."""
    keys = rows.select(*map(quoted, root.keys))
    told = rows.select(*map(quoted, root.keys), key_texts(root).alias(_ID)).rdd
    found = told.filter(lambda row: document_id(row[_ID]) in documents).map(lambda row: row[:-1])
    few = rows.sparkSession.createDataFrame(found, keys.schema)
    return rows.join(few, list(root.keys), "left_semi")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what Spark raises into an error with a remedy."""
    where = f"[[search.documents]] {name}"
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            f"Spark can't make the documents: {first_line(error)}",
            where=where,
            remedy="check computed, where and on: Spark SQL over columns of the lakehouse's table,"
            " and computed over what is embedded in its rows, too",
        ) from None
    except (PySparkException, Py4JError) as error:
        if jvm_ended(error):
            raise  # for all
        raise SinkError(
            f"the documents can't be made: {first_line(error)}",
            where=where,
            remedy="a value that an expression doesn't take: try_cast, try_divide and the like"
            " make null of it",
        ) from None
