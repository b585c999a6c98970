"""A document's definition → its fields whose values don't depend only on the tables.

An expression with the clock or a random number has the value from the document's making.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.run.cuts import TableAtCut
from sinks.search.joined.assemble import joined, typed
from sinks.search.joined.tree import Node


def variable_fields(root: Node, tables: Mapping[str, TableAtCut]) -> list[str]:
    """Return the outermost fields with such an expression.

    Raise SinkError if it decides which documents exist.
    """
    rows = tables[root.table].rows()
    rows = rows if root.where is None else rows.where(F.expr(root.where))
    whole = joined(root, rows, tables, some=False)
    if not _is_variable(whole.select(typed(root))):
        return []
    if _is_variable(rows):
        raise SinkError(
            "its where depends on the time, or on chance", where=f"rows of {root.table}"
        )
    fields = [
        inner.field
        for inner in root.embeds
        if _is_variable(joined(replace(root, embeds=(inner,)), rows, tables, some=False))
    ]
    return fields + [name for name, sql in root.computed if _is_variable(whole.select(F.expr(sql)))]


def _is_variable(rows: DataFrame) -> bool:
    plan: Any = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 (not in PySpark)
    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001
    views = jvm.millrace.sinks.ViewPlans
    return bool(views.asksForTime(plan)) or not views.expressions(plan, []).isEmpty()
