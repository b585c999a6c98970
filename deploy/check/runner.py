"""Parts → all their findings, in bounded time. A silent part hides none of the others.

The parts run side by side. A part's findings by the deadline count, and a line says that it didn't
finish.
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
"""How long a part waits for another part's result."""
_REST: Final = "everything else"

SharedValue = TypeVar("SharedValue")
CheckResults = Iterator[CheckResult]


class Awaited(Generic[SharedValue]):
    """A result of one part that others ask for."""

    def __init__(self) -> None:
        self._is_settled = threading.Event()
        self._value: SharedValue | None = None

    def settle(self, value: SharedValue | None) -> None:
        """Publish the result. None: unknown. Only the first call counts."""
        if not self._is_settled.is_set():
            self._value = value
            self._is_settled.set()

    def get(self) -> SharedValue | None:
        """Wait for it. None: it is unknown, or late."""
        self._is_settled.wait(WAIT_S)
        return self._value


def run_parts(parts: Mapping[str, Callable[[], CheckResults]]) -> list[CheckResult]:
    """Run all parts. Return their findings in the parts' order."""
    asked: Questions[CheckResult] = Questions(DEADLINE_S)
    for name, check in parts.items():
        asked.ask(name, check)
    return [finding for name in parts for finding in _findings(asked, name)]


def _findings(asked: Questions[CheckResult], name: str) -> CheckResults:
    """Yield a part's findings, and why they aren't complete."""
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
