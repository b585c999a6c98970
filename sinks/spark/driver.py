"""The JVM that this process has started → why it has ended, or its end.

A JVM out of memory ends at once, by Java's own option, and so does one that does little but collect
garbage (sinks/jvm, HeapWatch): it may never throw an error. Both have an exit code of their own.
Under spark-submit the JVM isn't ours: then nobody knows why it has ended.
"""

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from cdc.errors import DriverMemoryError, ExitCode, SparkEndedError

ON_OUT_OF_MEMORY: Final = "-XX:+ExitOnOutOfMemoryError"
PAUSES_S: Final = 60
"""A JVM that has spent nearly all of so long in pauses for its memory is out of it."""
PAUSES_PERCENT: Final = 90
_OUT_OF_MEMORY: Final = (3, ExitCode.MEMORY)
"""What the JVM ends with, by that option or by HeapWatch."""
_ENDING_S: Final = 5.0
"""A JVM that doesn't answer any more has ended by then."""
_GOES_ON: Final = "the next run goes on where this one was"


@dataclass(frozen=True, slots=True)
class Driver:
    """A JVM that we have started: its output, and what it was given."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    memory: str


_drivers: list[Driver] = []


def started(driver: Driver) -> None:
    """Remember this process's JVM: the newest one counts."""
    _drivers[:] = [driver]


def kill() -> None:
    """End the JVM at once, if there is one: nothing of it may outlive this process."""
    for driver in _drivers:
        driver.process.kill()


def why_ended(reason_in: Callable[[IO[bytes]], str]) -> SparkEndedError:
    """Why the JVM has ended, once it doesn't answer; ``reason_in`` looks into its output."""
    code: int | None = None
    for driver in _drivers:
        with suppress(subprocess.TimeoutExpired):
            code = driver.process.wait(_ENDING_S)
        if code in _OUT_OF_MEMORY:
            return out_of_memory(driver.memory)
        if code == -signal.SIGKILL:
            return SparkEndedError(
                "Spark's JVM has ended in the middle of the run: it was killed",
                remedy="where the kernel did so (dmesg), the machine has too little memory for "
                f"spark.driver.memory = {driver.memory} in [spark]; {_GOES_ON}",
            )
        if code and (reason := reason_in(driver.output)):
            return SparkEndedError(
                f"Spark's JVM has ended in the middle of the run, with exit code {code}: {reason}",
                remedy=_GOES_ON,
            )
    return SparkEndedError(
        "Spark's JVM has ended in the middle of the run",
        remedy=f"if it ran out of memory, raise spark.driver.memory in [spark]; {_GOES_ON}",
    )


def out_of_memory(memory: str = "") -> DriverMemoryError:
    """What is said of a JVM out of memory."""
    return DriverMemoryError(
        "Spark's JVM ran out of memory",
        where=f"spark.driver.memory = {memory}" if memory else "spark.driver.memory",
        remedy="raise spark.driver.memory in [spark], or read less in a run (millrace merge "
        f"--max-records 100000); {_GOES_ON}",
    )
