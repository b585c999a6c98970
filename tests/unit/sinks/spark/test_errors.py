"""What Spark says when a machine fails it → our error, with its root cause and what helps."""

import errno
import os
from datetime import timedelta

import pytest
from pyspark.errors import PySparkException

from cdc.errors import (
    DISK_REMEDIES,
    DiskError,
    DriverMemoryError,
    ExecutorMemoryError,
    ExitCode,
    MillraceError,
    SinkError,
    SparkEndedError,
)
from sinks.spark.errors import explained, run_error, spark_error

WRITE_FAILED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/item."
TRACE = """org.apache.spark.SparkException: {first}
\tat org.apache.spark.sql.execution.datasources.FileFormatWriter$.write(FileFormatWriter.scala:251)
Caused by: org.apache.spark.SparkException: the one between
\tat {at}
Caused by: java.io.IOException: {root}
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 12 more
"""
LAKE = "org.apache.parquet.hadoop.ParquetFileWriter.end(ParquetFileWriter.java:1)"
SPILL = "org.apache.spark.storage.DiskBlockObjectWriter.write(DiskBlockObjectWriter.scala:1)"


class OfSpark(PySparkException):
    """An error as PySpark raises it: its text has the first line, and the trace all others."""

    def __init__(self, first: str, root: str, at: str = LAKE) -> None:
        super().__init__(message=first)
        self._stackTrace = TRACE.format(first=first, root=root, at=at)

    def __str__(self) -> str:
        return self._message


def explain(error: Exception) -> MillraceError:
    with pytest.raises(MillraceError) as raised, explained("public.item", timedelta(days=1)):
        raise error
    return raised.value


@pytest.mark.parametrize("number", DISK_REMEDIES)
def test_what_a_file_system_refuses_is_told_with_what_helps(number: int) -> None:
    for at, whose in ((LAKE, "the lakehouse"), (SPILL, "temporary files")):
        told = explain(OfSpark(WRITE_FAILED, os.strerror(number), at))
        assert isinstance(told, DiskError)
        assert told.exit_code == ExitCode.DISK
        assert os.strerror(number) in told.what
        assert whose in told.what
        assert told.where == "table public.item"
        assert told.remedy.startswith(DISK_REMEDIES[number])
        assert "the next run goes on" in told.remedy
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
    told = explain(OfSpark(WRITE_FAILED, "the 3rd brick fell"))
    root = "IOException: the 3rd brick fell"
    assert told.what == f"Kafka or the file system failed: {WRITE_FAILED}: {root}"
    other = spark_error("the query isn't possible", OfSpark("[X] no", "a brick"), where="here")
    assert type(other) is SinkError
    assert other.what == "the query isn't possible: [X] no: IOException: a brick"


def test_memory_that_a_jvm_lacked_is_told_by_the_setting() -> None:
    error = OfSpark("Job aborted", "x", "java.lang.OutOfMemoryError: Java heap space")
    for told in (explain(error), run_error(error)):
        assert isinstance(told, DriverMemoryError)
        assert told.exit_code == ExitCode.MEMORY
        assert "spark.driver.memory" in told.where


def test_memory_that_an_executor_lacked_is_told_by_another_setting() -> None:
    lost = "Lost task 0.0 in stage 5.0 (TID 9) (10.0.0.7 executor 3): "
    for reason in (
        f"{lost}java.lang.OutOfMemoryError: Java heap space",
        f"{lost}ExecutorLostFailure (executor 3 exited): Command exited, exit code 52",
    ):
        told = explain(OfSpark(f"Job aborted due to stage failure: {reason}", "x"))
        assert isinstance(told, ExecutorMemoryError), told
        assert "spark.executor.memory" in told.remedy


def test_a_spark_that_is_about_to_end_is_no_tables_fault() -> None:
    error = OfSpark('Cannot invoke "RpcEndpointRef" because "driverEndpoint()" is null', "x")
    with pytest.raises(OfSpark), explained("public.item", timedelta(days=1)):
        raise error
    assert isinstance(run_error(error), SparkEndedError)
    assert run_error(ZeroDivisionError()) is None
