"""A cut and an SQL query → its rows, every table as it was at that one instant of the source.

Each derived table is a view, named as in the source (``public.orders``; without its schema, one in
``public``), of the version at which it has the cut.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from cdc.errors import ConfigError, SinkError
from cdc.records.schema import TableName
from sinks.changes.derived import Derived
from sinks.changes.names import quoted, sql_name
from sinks.delta.cuts import Cut
from sinks.delta.table import DeltaTarget
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_DEFAULT_SCHEMA: Final = "public"


def query(spark: "SparkSession", derived: Mapping[str, Derived], cut: Cut, sql: str) -> "DataFrame":
    """The query's answer at the cut.

    Raises ConfigError where it isn't a query, SinkError where Spark refuses it, or a table that it
    names doesn't stand at the cut.
    """
    try:
        _require_query(spark, sql)
        mentioned = {name: view for name, view in view_names(derived).items() if _names(sql, view)}
        _make_views(spark, derived, cut, mentioned)
        return spark.sql(sql)
    except PySparkException as error:
        lacking = [name for name in mentioned if name in cut.missing]
        raise SinkError(
            f"the query isn't possible: {first_line(error)}",
            where=str(cut),
            remedy=f"{', '.join(lacking)}: didn't reach this cut; `millrace cuts` lists others"
            if lacking
            else "tables are named as in the source; `millrace cuts` lists which cuts have them",
        ) from None


def view_names(derived: Mapping[str, Derived]) -> dict[str, TableName]:
    """A name in SQL for each table; characters that Spark's names can't have become ``_``."""
    taken: set[TableName] = set()
    views: dict[str, TableName] = {}
    for name in derived:
        namespace, table = map(sql_name, TableName.parse(name))
        view, number = TableName(namespace, table), 2
        while view in taken:
            view, number = TableName(namespace, f"{table}__{number}"), number + 1
        taken.add(view)
        views[name] = view
    return views


def _names(sql: str, view: TableName) -> bool:
    return view.name in sql.lower()


def _make_views(
    spark: "SparkSession", derived: Mapping[str, Derived], cut: Cut, views: Mapping[str, TableName]
) -> None:
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {_DEFAULT_SCHEMA}")
    for name, view in views.items():
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{view.namespace}`")
        found = cut.versions.get(name)
        there = DeltaTarget(spark, "", derived[name]).there()
        if found is None or there is None or there.at.id != found.id:
            spark.sql(f"DROP VIEW IF EXISTS `{view.namespace}`.`{view.name}`")  # of another cut
            continue
        version = f"delta.{quoted(derived[name].path)} VERSION AS OF {found.version}"
        # Names of letters and digits, and a quoted path: nothing that could end the statement.
        made = f"CREATE OR REPLACE VIEW `{view.namespace}`.`{view.name}` AS SELECT * FROM {version}"  # noqa: S608
        spark.sql(made)
    spark.sql(f"USE {_DEFAULT_SCHEMA}")


def _require_query(spark: "SparkSession", sql: str) -> None:
    """Refuse what would change something; Spark runs commands as soon as it has read them."""
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001
    for kind in ("Command", "ParsedStatement"):
        if jvm.java.lang.Class.forName(f"{_PLANS}.{kind}").isInstance(parsed):
            raise ConfigError("only queries are answered", remedy='"SELECT … FROM public.orders"')
