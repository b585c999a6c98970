"""Rows that executors keep (``localCheckpoint``): used in another session, and let go again."""

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_session(spark: "SparkSession", kept: DataFrame) -> DataFrame:
    """Kept rows in a session, whose configuration is the one that then counts."""
    schema = kept._jdf.schema()  # noqa: SLF001
    session: Any = spark._jsparkSession  # noqa: SLF001
    return DataFrame(session.internalCreateDataFrame(_rdd(kept), schema, False), spark)


def release(kept: DataFrame) -> None:
    """Free the storage of rows that a ``localCheckpoint`` keeps."""
    _rdd(kept).unpersist(False)


def _rdd(kept: DataFrame) -> Any:
    """The kept rows themselves."""
    plan: Any = kept._jdf.queryExecution().logical()  # noqa: SLF001 (PySpark has no other way)
    return plan.rdd()
