"""Parts → all their findings, in bounded time: a part that is silent hides none of the others.

The parts run side by side, each in a thread of its own. What one has found when the time is over
stands, and a line says that it wasn't done.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from cdc.errors import MillraceError
from deploy.check.result import Area, CheckResult

DEADLINE_S: Final = 15.0
"""For everything."""
WAIT_S: Final = 8.0
"""How long a part waits for what another one knows."""

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


class _Thread:
    """One part on its way."""

    def __init__(self, name: str, check: Callable[[], CheckResults]) -> None:
        self._part = Area(name)
        self._check = check
        self._lock = threading.Lock()
        self._findings: list[CheckResult] = []
        self._thread = threading.Thread(target=self._run, name=f"check {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for finding in self._check():
                self._add(finding)
        except MillraceError as error:
            self._add(self._part.of_error("everything else", error))
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            self._add(
                self._part.unknown(
                    "everything else",
                    f"because the package {package} isn't installed here",
                    f"install it, or run `millrace check` where this part runs ({self._part.name})",
                )
            )
        except Exception as error:  # noqa: BLE001 (a bug in one part hides no other part)
            why = f"because of a bug in this check: {type(error).__name__}"
            self._add(self._part.unknown("everything else", why, "report it"))

    def _add(self, finding: CheckResult) -> None:
        with self._lock:
            self._findings.append(finding)

    def result(self, until: float) -> list[CheckResult]:
        """What the part has found by then."""
        self._thread.join(max(0.0, until - time.monotonic()))
        is_late = self._thread.is_alive()
        with self._lock:
            findings = list(self._findings)
        if is_late:
            why = f"because there was no answer within {DEADLINE_S:.0f} s"
            findings.append(self._part.unknown("everything else", why, "ask again, or see why"))
        return findings


def run_parts(parts: Mapping[str, Callable[[], CheckResults]]) -> list[CheckResult]:
    """Run all parts; their findings in the parts' order."""
    until = time.monotonic() + DEADLINE_S
    threads = [_Thread(name, check) for name, check in parts.items()]
    return [finding for thread in threads for finding in thread.result(until)]
