"""Spark's error after a machine's failure → our error, with its root cause and remedy."""

import errno
import os
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pyspark.errors import PySparkException

from cdc.errors import (
    DISK_REMEDIES,
    DiskError,
    DriverMemoryError,
    ExecutorMemoryError,
    ExitCode,
    LogForgottenError,
    MillraceError,
    SinkError,
    SparkEndedError,
)
from sinks.spark.errors import explained, query_error, run_error, spark_ended, spark_error

WRITE_FAILED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/item."
NO_MEMORY = "java.lang.OutOfMemoryError"
IO = "java.io.IOException"
SPARK = "org.apache.spark.SparkException"
LAKE = "org.apache.parquet.hadoop.ParquetFileWriter.end(ParquetFileWriter.java:1)"
SPILL = "org.apache.spark.storage.DiskBlockObjectWriter.write(DiskBlockObjectWriter.scala:1)"
WRITES = "java.io.FileOutputStream.writeBytes(FileOutputStream.java)"
READS = "java.io.FileInputStream.open0(FileInputStream.java)"
LOST = "Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent failure: "
TASK = f"{LOST}Lost task 0.3 in stage 5.0 (TID 9) (10.0.0.7 executor 3): "


class Name(str):
    """A text as Java has it: of a class, or a line of a trace."""

    __slots__ = ()

    def getName(self) -> str:  # noqa: N802 (Java's)
        return self

    def toString(self) -> str:  # noqa: N802 (Java's)
        return self


@dataclass(frozen=True)
class Thrown:
    """A Java error, as Py4J shows it."""

    kind: str
    message: str
    frames: tuple[str, ...] = ()
    cause: "Thrown | None" = None

    def getClass(self) -> Name:  # noqa: N802 (Java's)
        return Name(self.kind)

    def getMessage(self) -> str:  # noqa: N802 (Java's)
        return self.message

    def getStackTrace(self) -> list[Name]:  # noqa: N802 (Java's)
        return [Name(frame) for frame in self.frames]

    def getCause(self) -> "Thrown | None":  # noqa: N802 (Java's)
        return self.cause

    def trace(self) -> str:
        """What Java prints of it."""
        lines = [f"{self.kind}: {self.message}", *(f"\tat {frame}" for frame in self.frames)]
        text = "\n".join(lines)
        return text if self.cause is None else f"{text}\nCaused by: {self.cause.trace()}"


class OfSpark(PySparkException):
    """An error as PySpark raises it: its text has the first line, and the trace all others."""

    def __init__(self, thrown: Thrown) -> None:
        super().__init__(message=thrown.message)
        self._stackTrace = thrown.trace()
        self._origin = thrown

    def __str__(self) -> str:
        return self._message


def failed(first: str, root: str, at: str = LAKE, *, kind: str = IO, way: str = WRITES) -> OfSpark:
    """An error of Spark's with another one between it and its root cause."""
    return OfSpark(Thrown(SPARK, first, (), Thrown(SPARK, "x", (at,), Thrown(kind, root, (way,)))))


def explain(error: Exception) -> MillraceError:
    with pytest.raises(MillraceError) as raised, explained("public.item", timedelta(days=1)):
        raise error
    return raised.value


@pytest.mark.parametrize("number", DISK_REMEDIES)
def test_what_a_file_system_refuses_is_told_with_what_helps(number: int) -> None:
    for at, whose in ((LAKE, "the lakehouse"), (SPILL, "temporary files")):
        told = explain(failed(WRITE_FAILED, os.strerror(number), at))
        assert isinstance(told, DiskError)
        assert told.exit_code == ExitCode.DISK
        assert os.strerror(number) in told.what
        assert whose in told.what
        assert told.where == "table public.item"
        assert told.remedy.startswith(DISK_REMEDIES[number])
        assert "the next run continues" in told.remedy
    assert "spark.local.dir" in told.remedy


@pytest.mark.parametrize("number", DISK_REMEDIES)
def test_what_python_is_refused_is_told_alike(number: int) -> None:
    told = DiskError.of(OSError(number, os.strerror(number), "/lake/_millrace"), "a plan")
    assert told is not None
    assert str(told) == (
        f"a plan: {os.strerror(number)} (/lake/_millrace)\n  → {DISK_REMEDIES[number]}"
    )
    assert DiskError.of(OSError(errno.ENOENT, "no such file")) is None


def test_every_error_has_its_root_cause() -> None:
    told = explain(failed(WRITE_FAILED, "the 3rd brick fell"))
    root = "IOException: the 3rd brick fell"
    assert told.what == f"Kafka or the file system failed: {WRITE_FAILED}: {root}"
    other = spark_error("the query isn't valid", failed("[X] no", "a brick"), where="here")
    assert type(other) is SinkError
    assert other.what == "the query isn't valid: [X] no: IOException: a brick"


@pytest.mark.parametrize("state", ["42703", "22012", "42601", "42P01"])
def test_what_is_wrong_with_sql_is_one_line_of_the_users(state: str) -> None:
    said = f"[X] no such thing. SQLSTATE: {state}; line 1 pos 7;"
    error = OfSpark(Thrown(SPARK, said, (), None))
    wrong = query_error("the query fails", error, where="run 1", missing_remedy="name it")
    assert wrong.exit_code == ExitCode.CONFIG
    assert str(wrong) == said + ("\n  → name it" if state == "42P01" else "")
    of_disk = failed(said, os.strerror(errno.EIO))
    assert query_error("x", of_disk, where="run 1").exit_code == ExitCode.DISK


def test_memory_that_a_jvm_lacked_is_told_by_the_setting() -> None:
    error = failed("Job aborted", "Java heap space", kind=NO_MEMORY)
    for told in (explain(error), run_error(error)):
        assert isinstance(told, DriverMemoryError)
        assert told.exit_code == ExitCode.MEMORY
        assert "spark.driver.memory" in told.where


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [
        ("Metaspace", "MaxMetaspaceSize"),
        ("Compressed class space", "CompressedClassSpaceSize"),
        ("unable to create native thread: possibly out of memory", "ulimit -u"),
        ("Cannot reserve 16 bytes of direct buffer memory", "MaxDirectMemorySize"),
    ],
)
def test_what_isnt_the_heap_has_another_remedy(lacking: str, remedy: str) -> None:
    told = explain(failed("Job aborted", lacking, kind=NO_MEMORY))
    assert isinstance(told, DriverMemoryError)
    assert lacking in told.what
    assert remedy in told.remedy
    assert "spark.driver.memory" not in str(told)


CAUSED = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: "
REASONS = {
    "error": f"{NO_MEMORY}: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:1)",
    "standalone": f"{CAUSED}Command exited with code 52\nDriver stacktrace:",
    "yarn": f"{CAUSED}Container from a bad node: container_1700000000000_0001_01_000004 on host: w."
    " Exit status: 137. Diagnostics: [2026-11-26 10:00:00.000]Container killed on request.",
    "kubernetes": f"{CAUSED}\nThe executor with id 3 exited with exit code 137(SIGKILL, possible"
    " container OOM).\n",
    "yarn, limit": f"{CAUSED}Container killed by YARN for exceeding memory limits. 5.5 GB of 5.5 GB"
    " physical memory used. Consider boosting spark.executor.memoryOverhead.",
    "yarn, physical": f"{CAUSED}Container killed by YARN for exceeding physical memory limits.",
}


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_memory_that_an_executor_lacked_is_told_by_another_setting(reason: str) -> None:
    told = explain(OfSpark(Thrown(SPARK, f"{TASK}{reason}")))
    assert isinstance(told, ExecutorMemoryError), told
    assert "spark.executor.memory" in told.remedy


def test_an_executor_that_was_lost_otherwise_has_no_such_remedy() -> None:
    reason = "ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 1"
    assert type(explain(OfSpark(Thrown(SPARK, f"{TASK}{reason}")))) is SinkError


VALUES = (
    f"{NO_MEMORY}: Java heap space",
    f"x\nCaused by: {NO_MEMORY}: Java heap space",
    "No space left on device",
    f"x\nCaused by: {IO}: Permission denied",
    f"(TID 9) (10.0.0.7 executor 3): {NO_MEMORY}",
    "ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 52",
    "Job 3 cancelled because SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "driverEndpoint()",
    "failOnDataLoss OffsetOutOfRange [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND]",
    "org.apache.kafka.common.errors.TimeoutException",
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_an_error_quotes_blames_nothing(value: str) -> None:
    said = f"[CAST_INVALID_INPUT] The value '{value}' of the type \"STRING\" cannot be cast"
    kind = "org.apache.spark.SparkNumberFormatException"
    itself = Thrown(kind, said, ("org.apache.spark.sql.Cast.apply(Cast.scala:1)",))
    here = f"{LOST}Lost task 0.0 in stage 5.0 (TID 0) (localhost executor driver): {kind}: {said}"
    for thrown in (
        itself,
        Thrown(SPARK, here, (), itself),
        Thrown(SPARK, here),
        Thrown(SPARK, f"{TASK}{kind}: {said}\n\tat x.Y(Y.scala:1)"),
    ):
        error = OfSpark(thrown)
        assert not spark_ended(error)
        assert type(explain(error)) is SinkError
        assert type(spark_error("no", error, where="here")) is SinkError


@pytest.mark.parametrize("words", ["Permission denied", f"{IO}: No space left on device"])
def test_a_users_sql_blames_nothing(words: str) -> None:
    kind = "org.apache.spark.sql.catalyst.ExtendedAnalysisException"
    said = f"[UNRESOLVED_COLUMN] `mesage` cannot be resolved\n'Filter ('mesage = {words})"
    assert type(spark_error("no", OfSpark(Thrown(kind, said)), where="here")) is SinkError


def test_a_file_that_is_only_read_isnt_told_as_one_that_is_written() -> None:
    denied = "/lake/item/1.parquet (Permission denied)"
    told = explain(failed("Job aborted", denied, kind="java.io.FileNotFoundException", way=READS))
    assert isinstance(told, DiskError)
    assert told.what.startswith("the lakehouse can't be read: ")
    assert told.remedy.startswith("allow this process's user to read there")


def test_a_file_of_kafkas_isnt_told_as_the_lakehouses() -> None:
    denied = Thrown("java.nio.file.AccessDeniedException", "/etc/client.jks")
    kind = "org.apache.kafka.common.KafkaException"
    store = Thrown(kind, "Failed to load SSL keystore /etc/client.jks of type JKS", (), denied)
    told = explain(OfSpark(Thrown(kind, "Failed to create new KafkaAdminClient", (), store)))
    assert isinstance(told, DiskError)
    assert told.what.startswith("a file that [kafka] names can't be read: ")
    assert "/etc/client.jks" in told.what
    assert "read there" in told.remedy


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("java.lang.NullPointerException", 'Cannot invoke "RpcRef" because "driverEndpoint()"'),
        ("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext."),
        (SPARK, "Job 7 cancelled because SparkContext was shut down"),
    ],
)
def test_a_spark_that_is_about_to_end_is_no_tables_fault(kind: str, said: str) -> None:
    error = OfSpark(Thrown(kind, said))
    with pytest.raises(OfSpark), explained("public.item", timedelta(days=1)):
        raise error
    assert isinstance(run_error(error), SparkEndedError)
    assert run_error(ZeroDivisionError()) is None


class Silent(Thrown):
    """A Java error in a JVM that has ended by the time that it is asked."""

    def getStackTrace(self) -> list[Name]:  # noqa: N802 (Java's)
        raise ConnectionResetError


def test_an_error_that_its_jvm_cant_tell_any_more_is_no_tables_fault() -> None:
    error = OfSpark(Silent(SPARK, "x"))
    with pytest.raises(OfSpark), explained("public.item", timedelta(days=1)):
        raise error
    assert isinstance(run_error(error), SparkEndedError)


def test_records_that_the_log_has_forgotten_are_told() -> None:
    kind = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
    said = "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost"
    error = OfSpark(Thrown(SPARK, f"{TASK}{kind}: {said}", (), Thrown(kind, said)))
    assert isinstance(explain(error), LogForgottenError)
