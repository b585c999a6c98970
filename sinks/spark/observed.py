"""What Spark has observed of rows on their way, once a job has had all of them."""

from typing import Any

from pyspark.sql import DataFrame


def observed(rows: DataFrame, name: str) -> Any:
    """An observation's row, of Java's; None: Spark has found no row, and taken that step out.

    Also of rows that no action of PySpark's has had, which its own ``Observation`` waits for.
    """
    metrics: Any = rows._jdf.queryExecution().observedMetrics()  # noqa: SLF001 (not in PySpark)
    return metrics.apply(name) if metrics.contains(name) else None
