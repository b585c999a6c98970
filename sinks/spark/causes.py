"""Spark's error → its Java errors, each with class, message and place separately.

An error's message may quote a value, or a user's SQL, so its text alone says nothing about the
machine.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

_OF_TASK: Final = re.compile(
    r"Job aborted due to stage failure: .*?\(TID \d+\) \(\S+ executor (\S+?)\): (.*)", re.DOTALL
)
"""Spark's message about a failed task: the executor, and its error's class and text."""
_KIND: Final = re.compile(r"[\w.$]+")
_DEPTH_MAX: Final = 20
_FRAMES_MAX: Final = 20


class JavaError(NamedTuple):
    """A Java error: its class, its message, and where it was raised, innermost first."""

    kind: str
    message: str
    frames: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return everything that shows its place, as a file system's message has a path."""
        return (self.message, *self.frames)


class TaskFailure(NamedTuple):
    """Why a task failed, from Spark's scheduler. Its own process is ``driver``."""

    executor: str
    reason: str

    @property
    def kind(self) -> str:
        """Return the class of the error at its beginning, if there is one."""
        match = _KIND.match(self.reason)
        return match[0] if match else ""


def java_errors(error: Exception) -> list[JavaError]:
    """Return the Java errors of one of PySpark's or Py4J's, the root cause last."""
    errors: list[JavaError] = []
    with suppress(Exception):  # Py4J asks a JVM, which may have ended
        errors.extend(_chain(error))
    failure = task_failure(errors[-1:])
    if failure is not None and failure.kind:  # the error itself couldn't be sent to the driver
        said = failure.reason.removeprefix(failure.kind).partition("\n\tat ")[0]
        errors.append(JavaError(failure.kind, said.removeprefix(": ")))
    return errors


def task_failure(errors: list[JavaError]) -> TaskFailure | None:
    """Return why a task failed that has failed a job. None: none has."""
    for each in errors:
        if match := _OF_TASK.match(each.message):
            return TaskFailure(*match.groups())
    return None


def thrown(error: Exception) -> Any:
    """Return Java's exception: a private member in PySpark, a public one in Py4J."""
    return getattr(error, "_origin", None) or getattr(error, "java_exception", None)


def _chain(error: Exception) -> Iterator[JavaError]:
    cause = thrown(error)
    for _ in range(_DEPTH_MAX):
        if cause is None:
            return
        frames = cause.getStackTrace()
        yield JavaError(
            cause.getClass().getName(),
            cause.getMessage() or "",
            tuple(frames[each].toString() for each in range(min(len(frames), _FRAMES_MAX))),
        )
        cause = cause.getCause()
