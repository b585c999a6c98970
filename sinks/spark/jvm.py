"""Functions of Spark's JVM without a call in PySpark: our own expressions, kept rows.

Our own classes (sinks/jvm) compute columns where Spark's functions are slow.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sinks.spark.session import jvm_ended

EXACT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""JSON options for comparisons of values, as Spark otherwise leaves out microseconds."""
_COUNTED: Final = "millrace_counted"


def json_rows(text: Column, schema: str) -> Column:
    """A JSON object in a text → a struct of the columns in ``schema``, in Spark's words.

    In a field's name, the part after the colon is its name in JSON. A struct's field ``MISSING``
    (``array<int>``) has the places of the fields that its object lacks; null: none. The outermost
    struct's ``BROKEN`` has the text if it isn't JSON of these types; its values are null then.
    """
    return _call("json", text, schema)


def texts(values: Sequence[str | None]) -> Column:
    """Return a list of texts as one literal of any length. PySpark makes one of each."""
    return F.from_json(F.lit(json.dumps(values)), "array<string>")


def struct_of(fields: Mapping[str, str]) -> Column:
    """Return a struct of SQL expressions, by name, with one call for any number of them."""
    pairs = (f"{_literal(name)}, {value}" for name, value in fields.items())
    return F.expr(f"named_struct({', '.join(pairs)})")


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def header_fields(headers: Column) -> Column:
    """A record's headers → a struct: position, commit_lsn, schema_version, filled and claim.

    Null if the record lacks the header, or has another content; docs/reference/formats.md.
    """
    return _call("headers", headers)


def timestamp_of(text: Column) -> Column:
    """Return the result of Spark's ``try_cast`` of a text in UTC to a timestamp."""
    return _call("timestamp", text.cast("string"))


def _call(name: str, column: Column, *more: str) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    session = SparkSession.active()
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    java: Any = column._jc  # noqa: SLF001
    return ClassicColumn(getattr(jvm.millrace.sinks.Expressions, name)(java, *more))


def observed(rows: DataFrame, name: str) -> Any:
    """Return an observation as a Java row. None: no row existed, and Spark removed the step.

    Works without an action of PySpark's, for which its own ``Observation`` would wait.
    """
    metrics: Any = rows._jdf.queryExecution().observedMetrics()  # noqa: SLF001 (not in PySpark)
    return metrics.apply(name) if metrics.contains(name) else None


def counted(rows: DataFrame, counts: Mapping[str, Column]) -> tuple[DataFrame, dict[str, int]]:
    """Return rows that the executors keep, and some counts of them, with one job."""
    asked = [count.alias(name) for name, count in counts.items()]
    observing = rows.observe(_COUNTED, *asked)
    kept = observing.localCheckpoint()
    seen = observed(observing, _COUNTED)
    if seen is None:
        return kept, kept.agg(*asked).collect()[0].asDict()
    return kept, {name: int(seen.getAs(name)) for name in counts}


def kept(rows: DataFrame) -> tuple[DataFrame, int]:
    """Return rows that the executors keep, and their number, with one job."""
    checkpoint, counts = counted(rows, {"rows": F.count("*")})
    return checkpoint, counts["rows"]


def kept_bytes(kept: DataFrame) -> int:
    """Return the size of kept rows."""
    rdd = _rdd(kept)
    stored = rdd.sparkContext().getRDDStorageInfo()
    own = [each for each in stored if each.id() == rdd.id()]
    return sum(int(each.memSize()) + int(each.diskSize()) for each in own)


def in_session(spark: SparkSession, kept: DataFrame) -> DataFrame:
    """Return kept rows in a session, whose configuration then applies."""
    schema = kept._jdf.schema()  # noqa: SLF001
    session: Any = spark._jsparkSession  # noqa: SLF001
    return DataFrame(session.internalCreateDataFrame(_rdd(kept), schema, False), spark)


def release(kept: DataFrame) -> None:
    """Free the storage of rows that a ``localCheckpoint`` keeps, unless Spark has ended."""
    try:
        with suppress(Py4JError):  # its context was stopped, which fails no run
            _rdd(kept).unpersist(False)
    except Exception as error:
        if not jvm_ended(error):
            raise


def _rdd(kept: DataFrame) -> Any:
    """Return the kept rows themselves."""
    plan: Any = kept._jdf.queryExecution().logical()  # noqa: SLF001 (PySpark has no other way)
    return plan.rdd()
