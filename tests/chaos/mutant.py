"""`millrace run`, broken on purpose: PostgreSQL is told of what Kafka has not committed yet.

It also doesn't look whether the slot is ahead of the log when it starts, which would tell on it.
A checker that doesn't find this daemon out is no checker.
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
