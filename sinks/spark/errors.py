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
    ConfigError,
    DiskError,
    ExecutorMemoryError,
    LogForgottenError,
    MillraceError,
    SinkError,
    SinkUnreachableError,
    SparkEndedError,
    SparkTerminatedError,
)
from sinks.spark import driver
from sinks.spark.causes import JavaError, java_errors, task_failure, thrown
from sinks.spark.session import first_line, full_text, jvm_ended, reason_in

_SQLSTATE: Final = re.compile(r"SQLSTATE: ((?:21|22|42)\w{3})")
"""Classes of errors in SQL, and in the values that it meets."""
GONE: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error when kept rows are lost with their executor."""
REFUSED: Final = "millrace: "
"""The beginning of an error's text that a value raises (sinks/changes/types.py)."""
_OUT_OF_MEMORY: Final = re.compile(
    r"(?:java\.lang|org\.apache\.spark\.memory)\.\w*OutOfMemoryError"
)
_LOST_BY_MEMORY: Final = re.compile(
    r"ExecutorLostFailure.*?(?:\bexit(?:ed with)? code|\bExit status:?) (?:3|52|137)\b"
    r"|ExecutorLostFailure.*?exceeding (?:\w+ )?memory limits",
    re.DOTALL | re.IGNORECASE,
)
"""Cluster managers' messages about an executor without memory: Spark's code, Java's, a kill."""
_STOPPED: Final = re.compile(
    r"Job \d+ cancelled because SparkContext was shut down"
    r"|Cannot call methods on a stopped SparkContext"
    r"|LiveListenerBus is stopped"
    r"|Cannot invoke .*driverEndpoint\(\)"
)
"""Beginnings of Spark's messages while it ends. No table is to blame."""
_OF_FILES: Final = re.compile(
    r"java\.io\.(?:IO|FileNotFound|SyncFailed)Exception|java\.nio\.file\.\w+"
    r"|org\.apache\.hadoop\.[\w.$]+|org\.apache\.spark\.sql\.delta\.DeltaIOException"
)
"""Classes of errors whose messages are a file system's."""
_OF_DISK: Final = {
    **{
        rf"(?:^|: |\(){re.escape(os.strerror(number))}(?:$|[):])": number
        for number in DISK_REMEDIES
    },
    "^Mkdirs failed to create": errno.EACCES,
    r"^\[DELTA_CANNOT_CREATE_LOG_PATH\]": errno.EACCES,
}
"""A file system's message about a refusal → its number."""
_DENIED: Final = "java.nio.file.AccessDeniedException"
"""Its message has only a path."""
_ACCESS: Final = re.compile(r"access=\w+")
"""HDFS's refusals."""
_READ: Final = re.compile(r"InputStream|\.read|FileReader|access=READ")
_WRITE: Final = re.compile(r"OutputStream|\.write|FileWriter|mkdir|access=WRITE")
_FORGOTTEN: Final = re.compile(r"failOnDataLoss|OffsetOutOfRange|KAFKA_DATA_LOSS")
_SCRATCH: Final = re.compile(r"DiskBlock|DiskStore|UnsafeSorter|\.shuffle\.|Spill|blockmgr-")
"""Places in an error's trace, or in a path, where Spark writes what exceeds its memory."""


class KeptLostError(SinkError):
    """Rows that an executor kept are lost with it. Another read of the log restores them."""


@contextmanager
def explained(name: str, keep: timedelta) -> Iterator[None]:
    """Turn Spark's exceptions while a table is applied into an error with a remedy."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if spark_ended(error):
            raise  # an error of all tables
        where, text = f"table {name}", full_text(error)
        errors = java_errors(error)
        if any(each.message.startswith(f"[{GONE}]") for each in errors):
            raise KeptLostError(
                "an executor ended, and with it the records that it stored",
                where=where,
                remedy="the next run continues where this one stopped",
            ) from None
        if REFUSED in text:
            reason = text.partition(REFUSED)[2].partition("\n")[0].partition(" SQLSTATE")[0]
            raise SinkError(
                reason, where=where, remedy="docs/reference/types.md has the remedies"
            ) from None
        if any(_is_forgotten(each) for each in errors):
            raise LogForgottenError(
                f"the log no longer has all records that {name} needs (log.keep is {keep})",
                where=where,
                remedy="`millrace rebuild` with the table's name writes it again, if the log has"
                " its rows",
            ) from None
        if (of_machine := machine_error(error, where)) is not None:
            raise of_machine from None
        if any(_is_of_kafka(each) or each.kind == "java.io.IOException" for each in errors):
            raise SinkUnreachableError(
                f"Kafka or the file system failed: {first_line(error)}", where=where
            ) from None
        raise SinkError(first_line(error), where=where) from None


def spark_ended(error: Exception) -> bool:
    """Whether a call failed because Spark has ended, or is about to. No table is to blame."""
    if jvm_ended(error):
        return True
    errors = java_errors(error)
    if not errors:  # the JVM has ended before it could describe the error
        return thrown(error) is not None
    return any(_STOPPED.match(each.message) for each in errors)


def spark_error(what: str, error: Exception, *, where: str, remedy: str = "") -> SinkError:
    """Return Spark's error as ours: ``what`` can't be done, unless the machine is to blame.

    Raise an error that reports Spark's end unchanged; ``spark_ended`` recognizes it.
    """
    of_machine = machine_error(error, where)
    if of_machine is not None:
        return of_machine
    return SinkError(f"{what}: {first_line(error)}", where=where, remedy=remedy)


def query_error(
    what: str, error: Exception, *, where: str, missing_remedy: str = ""
) -> MillraceError:
    """Return our error for a user's query: a fault of the SQL, of its values, or of Spark.

    ``missing_remedy`` is for a query of a missing table.
    """
    state = _SQLSTATE.search(full_text(error))
    if state is None or machine_error(error, where) is not None:
        return spark_error(what, error, where=where, remedy=missing_remedy)
    is_missing = state[1].startswith("42P01")
    return ConfigError(first_line(error), remedy=missing_remedy if is_missing else "")


def machine_error(error: Exception, where: str) -> SinkUnreachableError | None:
    """Return our error if memory or a file system is the cause. None: it isn't.

    Decides by the classes of Java's errors, as messages may quote values and users' SQL.
    """
    errors = java_errors(error)
    failure = task_failure(errors)
    if failure is not None and failure.executor != "driver":
        of_executor = _OUT_OF_MEMORY.fullmatch(failure.kind)
        if of_executor or _LOST_BY_MEMORY.match(failure.reason):
            return ExecutorMemoryError(
                "a Spark executor ran out of memory",
                where=where,
                remedy="raise spark.executor.memory in [spark], or the memory that spark-submit"
                " sets; the next run continues where this one stopped",
            )
    for each in errors:
        if _OUT_OF_MEMORY.fullmatch(each.kind):
            return driver.out_of_memory(reason=each.message)
    refused = [(each, number) for each in errors if (number := _refusal(each)) is not None]
    return _disk_error(error, errors, *refused[-1], where=where) if refused else None


def _refusal(error: JavaError) -> int | None:
    """Return the system's error number for a file system's error."""
    if error.kind == _DENIED:
        return errno.EACCES
    if _OF_FILES.fullmatch(error.kind):
        for words, number in _OF_DISK.items():
            if re.search(words, error.message):
                return number
    return None


def _disk_error(
    error: Exception, errors: list[JavaError], refused: JavaError, number: int, *, where: str
) -> DiskError:
    remedy, reason = DISK_REMEDIES[number], os.strerror(number)
    if remedy is DISK_REMEDIES[errno.EACCES]:
        # If Hadoop has only asked whether it could create a folder, the reason is unknown.
        reason = first_line(error)
    is_read, whose = _is_read(refused), ""
    what = f"the lakehouse can't be {'read' if is_read else 'written'}: {reason}"
    if any(_is_of_kafka(each) for each in errors):
        what, is_read = f"a file that [kafka] names can't be read: {reason}", True
    elif any(_SCRATCH.search(place) for each in errors for place in each.places):
        what = f"Spark can't {'read' if is_read else 'write'} its temporary files: {reason}"
        whose = "; they are in spark.local.dir in [spark], else in TMPDIR, or /tmp"
    if is_read:
        remedy = remedy.replace("write there", "read there")
    return DiskError(
        what, where=where, remedy=f"{remedy}{whose}; the next run continues where this one stopped"
    )


def _is_read(refused: JavaError) -> bool:
    """Whether a file was being read, by the innermost place that shows it."""
    for place in (*_ACCESS.findall(refused.message), *refused.frames):
        if _WRITE.search(place):
            return False
        if _READ.search(place):
            return True
    return False


def _is_forgotten(error: JavaError) -> bool:
    """Whether Spark's Kafka source lacks records."""
    of_source = _is_of_kafka(error) or error.kind == "java.lang.IllegalStateException"
    return of_source and _FORGOTTEN.search(f"{error.kind}: {error.message}") is not None


def _is_of_kafka(error: JavaError) -> bool:
    return error.kind.startswith(("org.apache.kafka.", "org.apache.spark.sql.kafka010."))


def run_error(error: Exception) -> SinkUnreachableError | None:
    """Return our error for one of Spark's outside any table: a file system, or its Kafka source.

    None: it isn't Spark's. It decides by modules' names, since a run that needs no Spark doesn't
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
        ended = driver.why_ended(reason_in)
        if isinstance(ended, SparkTerminatedError):
            return ended
        return SparkEndedError(
            f"Spark ended during the run: {first_line(error)}",
            remedy="the next run continues where this one stopped",
        )
    return SinkUnreachableError(
        f"Spark failed: {first_line(error)}",
        remedy="check [lakehouse], [kafka] and [spark]; the next run continues where this one"
        " stopped",
    )
