"""Spark's errors → ours, each with a remedy and its root cause."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from cdc.errors import (
    DISK_REMEDIES,
    DiskError,
    ExecutorMemoryError,
    LogForgottenError,
    SinkError,
    SinkUnreachableError,
    SparkEndedError,
)
from sinks.spark import driver
from sinks.spark.session import first_line, full_text, jvm_ended, reason_in

GONE: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""What Spark's error says of kept rows that are gone with their executor."""
REFUSED: Final = "millrace: "
"""How the text of an error begins that a value raises (sinks/changes/types.py)."""
_NO_MEMORY: Final = "java.lang.OutOfMemoryError"
_OF_EXECUTOR: Final = re.compile(
    rf"executor \d+\): {_NO_MEMORY}|ExecutorLostFailure.*\b(?:exit code|status) (?:3|52|137)\b"
)
"""How Spark tells of one on another machine; its own process is the executor ``driver``."""
_STOPPED: Final = ("SparkContext was shut down", "stopped SparkContext", "driverEndpoint()")
"""What Spark says while it ends; a table isn't to blame."""
_OF_DISK: Final = {
    **{os.strerror(number): remedy for number, remedy in DISK_REMEDIES.items()},
    "Mkdirs failed to create": DISK_REMEDIES[errno.EACCES],
    "DELTA_CANNOT_CREATE_LOG_PATH": DISK_REMEDIES[errno.EACCES],
}
"""What a file system's refusal says → what helps."""
_SCRATCH: Final = re.compile(r"DiskBlock|DiskStore|UnsafeSorter|\.shuffle\.|Spill|blockmgr-")
"""What an error's trace, or a path, has where Spark writes what is too much for its memory."""


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
        if spark_ended(error):
            raise  # for all tables
        where, text = f"table {name}", full_text(error)
        if GONE in text:
            raise KeptLostError(
                "an executor has ended, and records that it kept",
                where=where,
                remedy="the next run goes on where this one was",
            ) from None
        if REFUSED in text:
            reason = text.partition(REFUSED)[2].partition("\n")[0].partition(" SQLSTATE")[0]
            raise SinkError(reason, where=where, remedy="docs/types.md says what to do") from None
        if "failOnDataLoss" in text or "OffsetOutOfRange" in text:
            raise LogForgottenError(
                f"the log no longer has all records that {name} needs (log.keep is {keep})",
                where=where,
                remedy="remove the derived table, so that the next run rebuilds it from the log",
            ) from None
        if (of_machine := machine_error(error, where)) is not None:
            raise of_machine from None
        if "org.apache.kafka.common.errors" in text or "java.io.IOException" in text:
            raise SinkUnreachableError(
                f"Kafka or the file system failed: {first_line(error)}", where=where
            ) from None
        raise SinkError(first_line(error), where=where) from None


def spark_ended(error: Exception) -> bool:
    """Whether a call failed since Spark has ended, or is about to: no table is to blame."""
    return jvm_ended(error) or any(words in full_text(error) for words in _STOPPED)


def spark_error(what: str, error: Exception, *, where: str, remedy: str = "") -> SinkError:
    """An error of Spark's as one of ours: ``what`` can't be done, unless the machine is to blame.

    One that tells of the end of Spark is to be raised as it is; ``spark_ended`` knows it.
    """
    of_machine = machine_error(error, where)
    if of_machine is not None:
        return of_machine
    return SinkError(f"{what}: {first_line(error)}", where=where, remedy=remedy)


def machine_error(error: Exception, where: str) -> SinkUnreachableError | None:
    """An error of Spark's that is due to memory or a file system; None: it isn't."""
    text = full_text(error)
    if _OF_EXECUTOR.search(text):
        return ExecutorMemoryError(
            "an executor of Spark's ran out of memory",
            where=where,
            remedy="raise spark.executor.memory in [spark], or what spark-submit gives; the next"
            " run goes on where this one was",
        )
    if _NO_MEMORY in text:
        return driver.out_of_memory()
    for refusal, remedy in sorted(_OF_DISK.items(), key=lambda each: -len(each[0])):
        if refusal not in text:
            continue
        # Where Hadoop has only asked whether it could make a folder, nobody tells the reason.
        reason = first_line(error) if remedy is DISK_REMEDIES[errno.EACCES] else refusal
        what, whose = f"the lakehouse can't be written: {reason}", ""
        if _SCRATCH.search(text):
            what = f"Spark can't write its temporary files: {reason}"
            whose = "; they are in spark.local.dir in [spark], or in /tmp"
        return DiskError(
            what, where=where, remedy=f"{remedy}{whose}; the next run goes on where this one was"
        )
    return None


def run_error(error: Exception) -> SinkUnreachableError | None:
    """Our error for one of Spark's outside of any table: a file system, or Kafka in its hands.

    None: it isn't Spark's. It goes by modules' names, since a run that needs no Spark doesn't
    import them.
    """
    if jvm_ended(error):
        return driver.why_ended(reason_in)
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if not packages & {"py4j", "pyspark"}:
        return None
    if (of_machine := machine_error(error, "")) is not None:
        return of_machine
    if spark_ended(error):
        return SparkEndedError(
            f"Spark has ended in the middle of the run: {first_line(error)}",
            remedy="the next run goes on where this one was",
        )
    return SinkUnreachableError(
        f"Spark failed: {first_line(error)}",
        remedy="check [lakehouse], [kafka] and [spark]; the next run goes on where this one was",
    )
