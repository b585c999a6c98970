"""Questions to several parts → each one's answers in time, or why they aren't complete.

A part that is silent, or has a bug, hides none of the others.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from cdc.errors import MillraceError

Answer = TypeVar("Answer")


class SilentError(MillraceError):
    """A part hasn't answered completely in time."""


class Answers(NamedTuple, Generic[Answer]):
    """A part's answers by a time, and why they aren't complete. None: they are."""

    answers: list[Answer]
    failure: Exception | None


class _AnsweringThread(Generic[Answer]):
    """One part's thread, which ends with the process if the part doesn't answer."""

    def __init__(self, name: str, question: Callable[[], Iterable[Answer]]) -> None:
        self._question = question
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for answer in self._question():
                with self._lock:
                    self._answers.append(answer)
        except Exception as failure:  # noqa: BLE001 (a bug in one part hides no other part)
            self._failure = failure

    def answers(self, seconds: float, late: Exception) -> Answers[Answer]:
        """Wait for this time. ``late`` is the failure if more answers may come."""
        self._thread.join(max(0.0, seconds))
        failure = late if self._thread.is_alive() else self._failure
        with self._lock:
            return Answers([*self._answers], failure)


class Questions(Generic[Answer]):
    """Parts that are asked side by side, with one deadline."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._until = time.monotonic() + patience_s
        self._asked: dict[str, _AnsweringThread[Answer]] = {}

    def ask(self, name: str, question: Callable[[], Iterable[Answer]]) -> None:
        """Ask a part, which may answer gradually."""
        self._asked[name] = _AnsweringThread(name, question)

    def answers(self, name: str, seconds: float | None = None) -> Answers[Answer] | None:
        """Wait for a part's answers, for a limited time. None: it wasn't asked."""
        if name not in self._asked:
            return None
        left_s = self._until - time.monotonic()
        waited_s = left_s if seconds is None else min(seconds, left_s)
        late = SilentError(f"no answer within {self._patience_s:.0f} s")
        return self._asked[name].answers(waited_s, late)
