"""`millrace run`, broken on purpose: it acknowledges to PostgreSQL before Kafka has committed.

It also doesn't check at its start whether the slot is ahead of the log, which would reveal it.
A checker that doesn't detect this daemon is useless.
"""

from cdc.capture import start
from cdc.capture.streaming import Streaming
from millrace import main

_translate = Streaming._translate


def _acknowledge_early(self: Streaming) -> bool:
    made = _translate(self)
    reached = self._translation.cursor.flush_lsn
    self._stream.send_status(reached, reached)
    return made


def _see_no_gap(*_arguments: object) -> None:
    """Whatever there is."""


Streaming._translate = _acknowledge_early  # type: ignore[method-assign]
start.check_continuity = _see_no_gap  # type: ignore[assignment]

if __name__ == "__main__":
    main()
