"""SIGTERM, SIGINT → the end of a reader's loop, once its body has run; a second one interrupts."""

import signal
import threading
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Takes the signals of the process while a reader runs in its main thread.

    With an event of the caller's own, which ends the reader, no signal is touched.
    """

    def __init__(self, stop: threading.Event | None) -> None:
        self._takes_signals = stop is None and threading.current_thread() is threading.main_thread()
        self._event = stop or threading.Event()
        self._previous: dict[int, Any] = {}

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
        """Take the signals."""
        if self._takes_signals and not self._previous:
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def end(self) -> None:
        """Give them to those who had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, _number: int, _frame: object) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()
