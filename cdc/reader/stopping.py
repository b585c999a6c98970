"""SIGTERM, SIGINT → the end of a reader's loop after its body. A second one interrupts."""

import signal
import threading
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Handles the process's signals while a reader runs in its main thread.

    With the caller's own event, which ends the reader, it changes no signal.
    """

    def __init__(self, stop: threading.Event | None) -> None:
        self._takes_signals = stop is None
        self._event = stop or threading.Event()
        self._previous: dict[int, Any] = {}
        self._is_over = False

    @property
    def is_set(self) -> bool:
        """Whether the reader must end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for this time, or until the reader must end."""
        return self._event.wait(seconds)

    @property
    def event(self) -> threading.Event:
        """The event that is set then."""
        return self._event

    def begin(self) -> None:
        """Handle the signals, if the main thread reads. No other thread may."""
        if self._takes_signals and not self._previous and _is_main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def end(self) -> None:
        """Restore the previous handlers, except those that another program part has set since."""
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
        """End this reader, and those in whose loops it runs, which had the signal before."""
        if not self._is_over:
            self._event.set()
        outer = getattr(self._previous[number], "__self__", None)
        if isinstance(outer, Stopping):
            outer.tell(number)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Call the previous handler: this reader has ended, but is still in the chain."""
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, previous)
            signal.raise_signal(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
