"""Parts → all their findings, in bounded time: a part that is silent hides none of the others.

The parts run side by side. What one has found when the time is over stands, and a line says that it
wasn't done.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from cdc.errors import MillraceError
from deploy.asking import Questions, SilentError
from deploy.check.result import Area, CheckResult

DEADLINE_S: Final = 15.0
"""For everything."""
WAIT_S: Final = 8.0
"""How long a part waits for what another one knows."""
_REST: Final = "everything else"

SharedValue = TypeVar("SharedValue")
CheckResults = Iterator[CheckResult]


class Awaited(Generic[SharedValue]):
    """What one part finds out, and others ask for."""

    def __init__(self) -> None:
        self._is_settled = threading.Event()
        self._value: SharedValue | None = None

    def settle(self, value: SharedValue | None) -> None:
        """Let the others know; None: it can't be found out. The first time counts."""
        if not self._is_settled.is_set():
            self._value = value
            self._is_settled.set()

    def get(self) -> SharedValue | None:
        """Wait for it; None where it isn't known, or not in time."""
        self._is_settled.wait(WAIT_S)
        return self._value


def run_parts(parts: Mapping[str, Callable[[], CheckResults]]) -> list[CheckResult]:
    """Run all parts; their findings in the parts' order."""
    asked: Questions[CheckResult] = Questions(DEADLINE_S)
    for name, check in parts.items():
        asked.ask(name, check)
    return [finding for name in parts for finding in _findings(asked, name)]


def _findings(asked: Questions[CheckResult], name: str) -> CheckResults:
    """What a part has found, and why that isn't all."""
    given = asked.answers(name)
    if given is None:
        return
    yield from given.answers
    part = Area(name)
    match given.failure:
        case SilentError() as late:
            yield part.unknown(
                _REST,
                f"{late.what}",
                "run `millrace check` again; if this repeats, check what delays the answer",
            )
        case MillraceError() as error:
            yield part.of_error(_REST, error)
        case ImportError() as error:
            package = (error.name or "").partition(".")[0]
            yield part.unknown(
                _REST,
                f"the package {package} isn't installed",
                f"install it, or run `millrace check` on the machine where this part runs ({name})",
            )
        case Exception() as bug:
            why = f"this check failed with {type(bug).__name__}, which is a bug"
            yield part.unknown(_REST, why, "report it")
