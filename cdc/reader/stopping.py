"""SIGTERM, SIGINT → the end of a reader's loop, once its body has run; a second one interrupts."""

import signal
import threading
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Takes the signals of the process while a reader runs in its main thread.

    With an event of the caller's own, which ends the reader, no signal is touched.
    """

    def __init__(self, stop: threading.Event | None) -> None:
        self._takes_signals = stop is None
        self._event = stop or threading.Event()
        self._previous: dict[int, Any] = {}
        self._is_over = False

    @property
    def is_set(self) -> bool:
        """Whether the reader is to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is to end."""
        return self._event.wait(seconds)

    @property
    def event(self) -> threading.Event:
        """What is set then."""
        return self._event

    def begin(self) -> None:
        """Take the signals, if it is the main thread that reads: no other one may."""
        if self._takes_signals and not self._previous and _is_main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def end(self) -> None:
        """Give them to those who had them, but for those that somebody has taken since."""
        self._is_over = True
        if _is_main_thread():
            for number, handler in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            self._pass_on(number, frame)
        elif self._event.is_set():
            raise KeyboardInterrupt
        else:
            self.tell(number)

    def tell(self, number: int) -> None:
        """End this reader, and those in whose loops it runs: they had the signal before."""
        if not self._is_over:
            self._event.set()
        outer = getattr(self._previous[number], "__self__", None)
        if isinstance(outer, Stopping):
            outer.tell(number)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Let who had a signal before have it: this reader has ended behind somebody's back."""
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, previous)
            signal.raise_signal(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
