"""A SELECT and a cut → its result over tables and views, each at its own version there."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError
from cdc.records.schema import TableName
from cdc.settings.views import VIEWS
from sinks.changes.derived import Derived
from sinks.changes.names import quoted, sql_name
from sinks.delta.cuts import Cut
from sinks.spark.errors import query_error, spark_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_DEFAULT_SCHEMA: Final = "public"


def query(spark: "SparkSession", derived: Mapping[str, Derived], cut: Cut, sql: str) -> "DataFrame":
    """Return the query's result at the cut, over derived tables, and views named ``views.<name>``.

    Raise ConfigError if it isn't a query that Spark accepts, SinkError if a table or view in it
    doesn't have the cut.
    """
    from pyspark.errors import PySparkException

    text = sql.lower()
    mentioned = {name: of for name, of in _names(derived, cut).items() if name.name in text}
    try:
        _require_query(spark, sql)
        _name_tables(spark, derived, cut, mentioned)
        return spark.sql(sql)
    except PySparkException as error:
        if lacking := _lacking(cut, mentioned):
            raise spark_error(
                "the query isn't valid", error, where=str(cut), remedy=lacking
            ) from None
        raise query_error(
            "the query isn't valid",
            error,
            where=str(cut),
            missing_remedy="tables have their names in the source; `millrace cuts` lists the cuts"
            " that have them",
        ) from None


def sql_names(derived: Mapping[str, Derived]) -> dict[str, TableName]:
    """Return a name in SQL for each table.

    ``_`` replaces characters that Spark's names can't have.
    """
    taken: set[TableName] = set()
    names: dict[str, TableName] = {}
    for name in derived:
        namespace, table = map(sql_name, TableName.parse(name))
        called, number = TableName(namespace, table), 2
        while called in taken:
            called, number = TableName(namespace, f"{table}__{number}"), number + 1
        taken.add(called)
        names[name] = called
    return names


def _names(derived: Mapping[str, Derived], cut: Cut) -> dict[TableName, str]:
    """Return the meaning of each SQL name. A view also has its bare name, unless public has it."""
    names = {called: name for name, called in sql_names(derived).items()}
    for view in (*cut.views, *cut.missing_views):
        names.setdefault(TableName(_DEFAULT_SCHEMA, view), f"{VIEWS}.{view}")
    return names


def _lacking(cut: Cut, mentioned: Mapping[TableName, str]) -> str:
    """Return the tables and views without the cut, and the remedy. Empty: all have it."""
    names = {*mentioned.values()}
    tables = sorted(names & {*cut.missing})
    lines = [f"{', '.join(tables)}: not at this cut; `millrace cuts` lists other cuts"]
    views = cut.missing_views.items()
    return "; ".join([
        *(lines if tables else ()),
        *(f"view {view}: {why}" for view, why in views if f"{VIEWS}.{view}" in names),
    ])  # fmt: skip


def _name_tables(
    spark: "SparkSession", derived: Mapping[str, Derived], cut: Cut, names: Mapping[TableName, str]
) -> None:
    """Create the SQL names of tables and views, at their versions."""
    from sinks.delta.table import DerivedDeltaTable

    versions = cut.versions | {f"{VIEWS}.{view}": version for view, version in cut.views.items()}
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {_DEFAULT_SCHEMA}")
    for called, name in names.items():
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{called.namespace}`")
        at_cut = versions.get(name)
        applied = DerivedDeltaTable(spark, "", derived[name]).read_applied()
        if at_cut is None or applied is None or applied.at.id != at_cut.id:
            spark.sql(f"DROP VIEW IF EXISTS `{called.namespace}`.`{called.name}`")  # of another cut
            continue
        version = f"delta.{quoted(derived[name].path)} VERSION AS OF {at_cut.version}"
        # Names of letters and digits, and a quoted path, so nothing can end the statement.
        rows = f"SELECT * FROM {version}"  # noqa: S608
        spark.sql(f"CREATE OR REPLACE VIEW `{called.namespace}`.`{called.name}` AS {rows}")
    spark.sql(f"USE {_DEFAULT_SCHEMA}")


def _require_query(spark: "SparkSession", sql: str) -> None:
    """Refuse a statement that changes something, as Spark runs commands while it parses them."""
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001
    for kind in ("Command", "ParsedStatement"):
        if jvm.java.lang.Class.forName(f"{_PLANS}.{kind}").isInstance(parsed):
            raise ConfigError("only queries are allowed", remedy='"SELECT … FROM public.orders"')
