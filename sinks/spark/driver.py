"""The JVM that this process has started → why it has ended, or its end.

A JVM without memory ends at once, by Java's own option. One that mainly collects garbage
(sinks/jvm, HeapWatch), and may never throw an error. Both have their own exit code. Under
spark-submit the JVM isn't ours, so the reason for its end is unknown.
"""

import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from cdc.errors import DriverMemoryError, ExitCode, SparkEndedError, SparkTerminatedError

ON_OUT_OF_MEMORY: Final = "-XX:+ExitOnOutOfMemoryError"
PAUSES_S: Final = 60
"""A JVM that spends nearly all of this time in pauses for its memory is out of it."""
PAUSES_PERCENT: Final = 90
_OUT_OF_MEMORY: Final = (3, ExitCode.MEMORY)
"""Exit codes of that option and of HeapWatch."""
_TOLD: Final = {
    code
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for code in (-number, 128 + number)
}
"""Exit codes of a JVM that was asked to end."""
_TERMINATED: Final = re.compile(r"Terminating due to java\.lang\.OutOfMemoryError: (.*)")
_LACKING: Final = {
    "Metaspace": "raise -XX:MaxMetaspaceSize in spark.driver.extraJavaOptions",
    "Compressed class space": "raise -XX:CompressedClassSpaceSize in spark.driver.extraJavaOptions",
    "native thread": "raise the limit on threads (ulimit -u, TasksMax=, a container's limit)",
    "direct buffer memory": "raise -XX:MaxDirectMemorySize in spark.driver.extraJavaOptions",
}
"""Java's name of a lack other than heap space → the remedy."""
_ENDING_S: Final = 5.0
"""How long a JVM that no longer answers may take to end."""
_GOES_ON: Final = "the next run continues where this one stopped"


@dataclass(frozen=True, slots=True)
class Driver:
    """A JVM that we have started: its output, and its options."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    memory: str


_drivers: list[Driver] = []


def started(driver: Driver) -> None:
    """Record this process's JVM, replacing an earlier one."""
    _drivers[:] = [driver]


def kill() -> None:
    """End the JVM at once, if there is one: it must not outlive this process."""
    for driver in _drivers:
        driver.process.kill()


def why_ended(reason_in: Callable[[IO[bytes]], str]) -> SparkEndedError:
    """Return why a JVM that no longer answers has ended. ``reason_in`` reads its output."""
    code: int | None = None
    for driver in _drivers:
        with suppress(subprocess.TimeoutExpired):
            code = driver.process.wait(_ENDING_S)
        if code in _OUT_OF_MEMORY:
            return out_of_memory(driver.memory, _terminated_by(driver.output))
        if code in _TOLD:
            return SparkTerminatedError(
                "a signal (SIGTERM, SIGINT) ended Spark's JVM during the run",
                remedy="under systemd, set KillMode=mixed: the signal then reaches Millrace only;"
                f" {_GOES_ON}",
            )
        if code == -signal.SIGKILL:
            return SparkEndedError(
                "Spark's JVM was killed during the run",
                remedy="if the kernel killed it (dmesg), the machine has too little memory for"
                f" spark.driver.memory = {driver.memory} in [spark]; {_GOES_ON}",
            )
        if code and (reason := reason_in(driver.output)):
            return SparkEndedError(
                f"Spark's JVM ended during the run with exit code {code}: {reason}",
                remedy=_GOES_ON,
            )
    return SparkEndedError(
        "Spark's JVM ended during the run",
        remedy=f"if it ran out of memory, raise spark.driver.memory in [spark]; {_GOES_ON}",
    )


def _terminated_by(output: IO[bytes]) -> str:
    """Return what Java lacked, from its last message."""
    output.seek(0)
    match = _TERMINATED.search(output.read().decode(errors="replace"))
    return match[1] if match else ""


def out_of_memory(memory: str = "", reason: str = "") -> DriverMemoryError:
    """Return the error for a JVM without memory. ``reason`` is Java's message."""
    for lacking, remedy in _LACKING.items():
        if lacking.lower() in reason.lower():
            return DriverMemoryError(
                f"Spark's JVM ran out of memory outside its heap: {reason}",
                remedy=f"{remedy}; {_GOES_ON}",
            )
    return DriverMemoryError(
        "Spark's JVM ran out of memory",
        where=f"spark.driver.memory = {memory}" if memory else "spark.driver.memory",
        remedy="raise spark.driver.memory in [spark], or read less in a run (millrace merge "
        f"--max-records 100000); {_GOES_ON}",
    )
