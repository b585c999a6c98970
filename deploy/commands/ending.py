"""SIGTERM, SIGINT → the end of this process in less than half a minute, whatever it is doing.

A command that can end in order does so after the first signal. If its own waits take too long
(Spark's JVM, a client in C, a server that doesn't answer), it is cut short. Any work of Millrace
can be cut short, and the next start continues it. Nothing that it has started outlives it.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from cdc.errors import ExitCode, MillraceError

ORDERLY_S: Final = 18.0
"""How long a command may take to end in order."""
CLEANUP_S: Final = 6.0
"""How long it may then take to release its resources at servers."""
_TELL_S: Final = 0.5
"""How long to wait for a line that may have no reader."""
_STDERR: Final = 2
_CUT_SHORT: Final = b"millrace: cut short: the next start continues where it stopped\n"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class InterruptedCommandError(MillraceError):
    """A signal ended a command before it was done."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self, what: str = "interrupted") -> None:
        super().__init__(what, remedy="run it again: it continues where it stopped")


@contextmanager
def ending_in_time() -> Iterator[threading.Event]:
    """Let signals end this process in time. Those without another handler interrupt it.

    The event is set once a command has been cut short, with a message to its user. A thread keeps
    the time: while the main thread is in C, Python's own handlers wait. A second signal cuts short
    at once.
    """
    cut_short = threading.Event()
    told, teller = socket.socketpair()
    teller.setblocking(False)
    before = signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_watch, args=(told, cut_short), name="ending", daemon=True).start()
    try:
        yield cut_short
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGTERM, handler)
        teller.close()


def _watch(told: socket.socket, cut_short: threading.Event) -> None:
    """Wait for the first signal, then for its deadline, or the second one."""
    if not _is_told(told):
        return
    until = time.monotonic() + ORDERLY_S
    told.settimeout(ORDERLY_S)
    is_interrupted = False
    with suppress(TimeoutError):
        is_interrupted = _is_told(told)
        if not is_interrupted:  # the command has ended, except its threads
            time.sleep(max(0.0, until - time.monotonic()))
            if not threading.main_thread().is_alive():
                _end_jvm()
                os._exit(ExitCode.INTERRUPTED)
            return
    cut_short.set()
    with suppress(RuntimeError):  # the process is about to end, and can't start threads
        telling = threading.Thread(target=_tell, name="cut short", daemon=True)
        telling.start()
        telling.join(_TELL_S)
    # A command that waits for its own flag has set it, and its handler interrupts the second time.
    if not is_interrupted:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    _end_jvm()
    time.sleep(CLEANUP_S)
    os._exit(ExitCode.INTERRUPTED)


def _tell() -> None:
    """Report it in a thread that may wait without limit, as for a full pipe without a reader.

    Python's own stream has a lock, which the main thread may hold while it waits in the same way.
    """
    with suppress(OSError):
        os.write(_STDERR, _CUT_SHORT)


def _is_told(told: socket.socket) -> bool:
    """Wait for one of our signals. False: no signals can come any longer."""
    while number := told.recv(1):
        if number[0] in _SIGNALS:
            return True
    return False


def _end_jvm() -> None:
    """End the command's JVM, if it has one. Imports nothing if it hasn't."""
    driver = sys.modules.get("sinks.spark.driver")
    if driver is not None:
        driver.kill()
