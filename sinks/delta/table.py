"""A captured table → its Delta table: where it is, which run it has, and its columns' changes.

The number of the last applied run is Delta's application transaction (the ``txn`` action of its
log), which survives checkpoints and clean-up and is committed with the data.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.errors import SinkError
from cdc.records.schema import TableName, TableSchema
from sinks.parse import quoted, target_names
from sinks.paths import table_path
from sinks.types import spark_type

_TXN_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
NAME_MAPPING: Final = {"delta.columnMapping.mode": "name"}
"""Lets a table have columns with names that Parquet doesn't take."""


class DeltaTarget:
    """The Delta table of one captured table, there or not."""

    def __init__(self, spark: SparkSession, lakehouse: str, prefix: str, name: TableName) -> None:
        self.spark = spark
        self.name = name
        self.path = table_path(lakehouse, name)
        self.application = f"millrace/{prefix}/{name}"

    @property
    def sql_name(self) -> str:
        """How SQL names the table."""
        return f"delta.{quoted(self.path)}"

    def exists(self) -> bool:
        """Whether there is a Delta table at the path."""
        return self._log_version() >= 0

    def applied_run(self) -> int:
        """The number of the run that the table has; 0 where none of ours has written to it.

        A version's checksum file lists its application transactions; without one, Delta has to
        put the version's whole state together, which takes three jobs.
        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        snapshot = self._snapshot()
        checksum = snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().setTransactions().isDefined():
            listed = checksum.get().setTransactions().get()
            runs = (listed.apply(number) for number in range(listed.size()))
            return next((int(r.version()) for r in runs if r.appId() == self.application), 0)
        found = snapshot.transactions().get(self.application)
        return int(found.get()) if found.isDefined() else 0

    def columns(self) -> StructType:
        """The table's columns, as they are now."""
        return self.spark.read.format("delta").load(self.path).schema

    @contextmanager
    def transaction(self, run: int) -> Iterator[None]:
        """Mark the one commit made inside as the run's; Delta skips it if the table has it."""
        conf = self.spark.conf
        conf.set(_TXN_ID, self.application)
        conf.set(_TXN_VERSION, str(run))
        try:
            yield
        finally:
            conf.unset(_TXN_ID)
            conf.unset(_TXN_VERSION)

    def _log(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        session = self.spark._jsparkSession  # noqa: SLF001
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.path)

    def _snapshot(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001
        nothing = jvm.scala.Option.empty()
        return self._log().update(False, nothing, nothing)

    def _log_version(self) -> int:
        return int(self._snapshot().version())


def creation_properties(schema: TableSchema) -> dict[str, str]:
    """The Delta properties that a new table needs for its columns."""
    odd = any(_NOT_IN_PARQUET.search(name) for name in target_names(schema).values())
    return NAME_MAPPING if odd else {}


def evolve(target: DeltaTarget, schema: TableSchema) -> None:
    """Add and widen the table's columns to those of a schema version; raises SinkError.

    Dropped columns stay. A column that was renamed is a dropped and an added one.
    """
    names = target_names(schema)
    wanted = {names[column.name]: spark_type(column) for column in schema.columns}
    there = {field.name.lower(): field.dataType.simpleString() for field in target.columns()}
    added = {name: kind for name, kind in wanted.items() if name.lower() not in there}
    changed = {name: kind for name, kind in wanted.items() if there.get(name.lower(), kind) != kind}
    try:
        if added:
            _add(target, added)
        for name, kind in changed.items():
            _widen(target, name, kind)
    except PySparkException as error:
        raise SinkError(
            f"the table's columns can't be changed: {first_line(error)}",
            where=str(target.name),
            remedy="remove the Delta table, so that the next run rebuilds it from the log",
        ) from None


def first_line(error: Exception) -> str:
    """What an error of Spark's says first."""
    return str(error).strip().partition("\n")[0][:500]


def _add(target: DeltaTarget, columns: dict[str, str]) -> None:
    properties: dict[str, str] = {}
    if any(_NOT_IN_PARQUET.search(name) for name in columns):
        properties |= NAME_MAPPING
    if any("timestamp_ntz" in kind for kind in columns.values()):
        properties["delta.feature.timestampNtz"] = "supported"
    _set(target, properties)
    described = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    target.spark.sql(f"ALTER TABLE {target.sql_name} ADD COLUMNS ({described})")


def _widen(target: DeltaTarget, name: str, kind: str) -> None:
    _set(target, {"delta.enableTypeWidening": "true"})
    target.spark.sql(f"ALTER TABLE {target.sql_name} ALTER COLUMN {quoted(name)} TYPE {kind}")


def _set(target: DeltaTarget, properties: dict[str, str]) -> None:
    for name, value in properties.items():
        target.spark.sql(f"ALTER TABLE {target.sql_name} SET TBLPROPERTIES ('{name}' = '{value}')")
