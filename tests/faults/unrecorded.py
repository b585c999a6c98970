"""`millrace run` that dies when brokers have events that no progress record has.

With delivery at least once, the next start writes these again.
"""

import os
import signal
from collections.abc import Callable
from unittest.mock import patch

from cdc.kafka.commits import AtLeastOnceWriter
from cdc.kafka.producer import LogWriter
from millrace import main

_deliver = AtLeastOnceWriter._deliver


def _delivered(self: LogWriter, while_waiting: Callable[[], None] | None = None) -> None:
    has_events = self._begun is not None
    _deliver(self, while_waiting)
    if has_events:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with patch.object(AtLeastOnceWriter, "_deliver", _delivered):
        main()
