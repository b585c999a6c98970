"""A Delta table → its name in Spark's catalog (Hive's metastore, Unity …), where one is wanted.

The table stays where it is, and is written to by its path: the name is for those who query it.
"""

from pyspark.errors import PySparkException

from cdc.errors import SinkError
from sinks.changes.names import quoted
from sinks.delta.table import DeltaTarget
from sinks.spark.session import first_line


def register(target: DeltaTarget) -> None:
    """Give the table its name, if it hasn't got it; raises SinkError if another one has."""
    if target.derived.catalog is None:
        return
    name = ".".join(map(quoted, target.derived.catalog.split(".")))
    place = str(target.log().dataPath().toString())
    escaped = place.replace("\\", "\\\\").replace("'", "\\'")
    try:
        target.spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{escaped}'")
        found = target.spark.sql(f"DESCRIBE DETAIL {name}").first()
    except PySparkException as error:
        raise SinkError(
            f"the table has no name in the catalog: {first_line(error)}",
            where=target.derived.catalog,
            remedy="the Delta table itself is up to date; make the schema, if it isn't there, and "
            "see that the merge may make tables in it",
        ) from None
    if found is None or found["location"] != place:
        raise SinkError(
            f"in the catalog, {target.derived.catalog} is another table"
            + (f", at {found['location']}" if found is not None else ""),
            where=target.path,
            remedy="the Delta table itself is up to date; drop the other one, or give this one "
            "another name by catalog in [[lakehouse.tables]]",
        )
