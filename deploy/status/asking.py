"""Questions to several servers → an answer of each in time, or why there is none."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cdc.errors import LogUnreachableError, MillraceError

PATIENCE_S: Final = 2.0
"""How long a part may take to answer."""
_SOON_S: Final = 1.9
"""Brokers that are busy may need most of it; those that are silent are given up by then."""


class SilentError(MillraceError):
    """A part of the pipeline hasn't answered in time."""


def give_up_after(seconds: float = _SOON_S) -> Callable[[], None]:
    """What a client of Kafka does while it waits: after a time it gives up."""
    deadline = time.monotonic() + seconds

    def wait() -> None:
        if time.monotonic() > deadline:
            raise LogUnreachableError("the brokers don't answer")

    return wait


class Questions:
    """Questions that are asked side by side; all have the same time to be answered in."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._deadline = time.monotonic() + patience_s
        self._threads: dict[str, threading.Thread] = {}
        self._given: dict[str, Any] = {}

    def ask(self, name: str, question: Callable[[], Any]) -> None:
        """Ask in a thread, which ends with the process if it isn't answered."""

        def run() -> None:
            try:
                self._given[name] = question()
            except MillraceError as error:
                self._given[name] = error
            except Exception as error:  # noqa: BLE001 (a bug in one part hides no other one)
                self._given[name] = SilentError(f"internal error: {type(error).__name__}")

        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    def answer(self, name: str, seconds: float = PATIENCE_S) -> Any:
        """Wait for an answer; a MillraceError says why there is none, None that nobody asked."""
        if name not in self._threads:
            return None
        left_s = min(seconds, self._deadline - time.monotonic())
        self._threads[name].join(max(0.0, left_s))
        silent = SilentError(f"no answer within {self._patience_s:.0f} s")
        return self._given.get(name, silent)
