"""How a JVM ended → the error's message."""

import io
import subprocess
import sys

import pytest

from cdc.errors import (
    DriverMemoryError,
    ExitCode,
    MillraceError,
    SparkEndedError,
    SparkTerminatedError,
)
from sinks.spark import driver


def told(end: str, output: bytes = b"") -> MillraceError:
    """What is said of a JVM that ends by itself, or by a signal."""
    words = [sys.executable, "-c", f"import os, sys; {end}"]
    with subprocess.Popen(words) as process:
        driver.started(driver.Driver(process, io.BytesIO(output), "2g"))
        try:
            return driver.why_ended(lambda _: "")
        finally:
            driver._drivers.clear()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 15)", "sys.exit(143)", "sys.exit(130)"])
def test_a_jvm_that_was_told_to_end_isnt_out_of_memory(end: str) -> None:
    error = told(end)
    assert isinstance(error, SparkTerminatedError)
    assert "memory" not in str(error)


@pytest.mark.parametrize("code", [3, ExitCode.MEMORY])
def test_a_jvm_out_of_memory_has_codes_of_its_own(code: int) -> None:
    error = told(f"sys.exit({code})", b"Terminating due to java.lang.OutOfMemoryError: Java heap\n")
    assert isinstance(error, DriverMemoryError)
    assert error.where == "spark.driver.memory = 2g"


def test_a_jvm_without_room_for_classes_has_another_remedy() -> None:
    error = told("sys.exit(3)", b"Terminating due to java.lang.OutOfMemoryError: Metaspace\n")
    assert isinstance(error, DriverMemoryError)
    assert "MaxMetaspaceSize" in error.remedy


def test_a_jvm_that_was_killed_is_told_as_such() -> None:
    error = told("os.kill(os.getpid(), 9)")
    assert type(error) is SparkEndedError
    assert "Spark's JVM was killed" in error.what
