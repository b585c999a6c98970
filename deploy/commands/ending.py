"""SIGTERM, SIGINT → the end of this process in less than half a minute, whatever it is at.

A command that can end in order does, once it is told to. What it can't wait for by itself (Spark's
JVM, a client in C, a server that doesn't answer) is cut short after a while: whatever Millrace does
can be cut short, and the next start goes on from there. Nothing that it has started outlives it.
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
"""How long a command that is told to end may take to do so in order."""
CLEANUP_S: Final = 6.0
"""How long it may take, cut short, to let go of what it holds at servers."""
_TELL_S: Final = 0.5
"""How long a line is waited for that may have no reader."""
_STDERR: Final = 2
_CUT_SHORT: Final = b"millrace: cut short: the next start continues where it stopped\n"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class InterruptedCommandError(MillraceError):
    """A command was told to end before it was done."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self, what: str = "interrupted") -> None:
        super().__init__(what, remedy="run it again: it continues where it stopped")


@contextmanager
def ending_in_time() -> Iterator[threading.Event]:
    """Have signals end this process in time; those that aren't handled otherwise interrupt it.

    The event is set once a command has been cut short, and its user was told. A thread keeps the
    time: where the main thread is in C, Python's own handlers wait for it. A second signal cuts
    short at once.
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
    """Wait for the first signal, then for its time, or the second one."""
    if not _is_told(told):
        return
    until = time.monotonic() + ORDERLY_S
    told.settimeout(ORDERLY_S)
    is_interrupted = False
    with suppress(TimeoutError):
        is_interrupted = _is_told(told)
        if not is_interrupted:  # the command has ended: what is left is to end its threads
            time.sleep(max(0.0, until - time.monotonic()))
            if not threading.main_thread().is_alive():
                _end_jvm()
                os._exit(ExitCode.INTERRUPTED)
            return
    cut_short.set()
    with suppress(RuntimeError):  # the process is about to end: it has no new threads
        telling = threading.Thread(target=_tell, name="cut short", daemon=True)
        telling.start()
        telling.join(_TELL_S)
    # A command that waits for its own flag has set it: its handler interrupts the second time.
    if not is_interrupted:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    _end_jvm()
    time.sleep(CLEANUP_S)
    os._exit(ExitCode.INTERRUPTED)


def _tell() -> None:
    """Say so, in a thread that may wait for ever: nobody may be reading, as from a full pipe.

    Python's own stream has a lock, which the main thread may hold while it waits in the same way.
    """
    with suppress(OSError):
        os.write(_STDERR, _CUT_SHORT)


def _is_told(told: socket.socket) -> bool:
    """Wait for one of our signals; False: there is nobody any more to tell of any."""
    while number := told.recv(1):
        if number[0] in _SIGNALS:
            return True
    return False


def _end_jvm() -> None:
    """End the JVM of a command that has one; it isn't imported where there is none."""
    driver = sys.modules.get("sinks.spark.driver")
    if driver is not None:
        driver.kill()
