"""Spark's errors → ours, each with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from cdc.errors import LogForgottenError, SinkError, SinkUnreachableError
from sinks.spark.session import first_line, jvm_ended

GONE: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""What Spark's error says of kept rows that are gone with their executor."""
REFUSED: Final = "millrace: "
"""How the text of an error begins that a value raises (sinks/changes/types.py)."""


class KeptLostError(SinkError):
    """Rows that an executor kept are gone with it; whoever reads the log again has them again."""


@contextmanager
def explained(name: str, keep: timedelta) -> Iterator[None]:
    """Turn what Spark raises while a table is applied into an error with a remedy."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if jvm_ended(error):
            raise  # for all tables
        text = str(error)
        if GONE in text:
            raise KeptLostError(
                "an executor has ended, and records that it kept",
                where=f"table {name}",
                remedy="the next run goes on where this one was",
            ) from None
        if REFUSED in text:
            reason = text.partition(REFUSED)[2].partition("\n")[0].partition(" SQLSTATE")[0]
            raise SinkError(
                reason, where=f"table {name}", remedy="docs/types.md says what to do"
            ) from None
        if "failOnDataLoss" in text or "OffsetOutOfRange" in text:
            raise LogForgottenError(
                f"the log no longer has all records that {name} needs (log.keep is {keep})",
                where=f"table {name}",
                remedy="remove the derived table, so that the next run rebuilds it from the log",
            ) from None
        if "org.apache.kafka.common.errors" in text or "java.io.IOException" in text:
            raise SinkUnreachableError(
                f"Kafka or the file system failed: {first_line(error)}", where=f"table {name}"
            ) from None
        raise SinkError(first_line(error), where=f"table {name}") from None
