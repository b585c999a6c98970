"""A gap → a new epoch: a start that doesn't capture, but lets the next one go on in spite of it.

docs/decisions/0009-epochs.md
"""

import contextlib

from cdc.capture import start
from cdc.capture.session import Session
from cdc.errors import GapError
from cdc.faults import FaultPoint, reach
from cdc.log.state import read_all
from cdc.postgres import slot
from cdc.records.state import Phase, TableState
from cdc.records.topics import table_topic


class Renewal(Session):
    """Looks for a gap, or begins a new epoch."""

    def begin_epoch(self) -> int:
        """Record that the log goes on from this server's history; returns the epoch.

        The slot is taken away. Where an epoch was begun, and nothing of it is in the log yet, it
        is that one. Raises ConfigError where the log has nothing to go on from.
        """
        self._take_lock()
        with contextlib.suppress(GapError):  # what a lost slot says is why we are here
            self._hold_slot()
        self._open_log()
        before = self._progress
        if before is None:
            raise start.nothing_to_go_on_from(self._capture.slot_name)
        if before.phase is not Phase.CREATING:
            topic = table_topic(self._capture.topic_prefix)
            states = read_all(self._settings.kafka, topic, TableState, self.hold.keep_alive)
            self.writer.write(start.new_epoch(self._settings, self._system, before, states))
            self.writer.commit()
            reach(FaultPoint.EPOCH_RECORDED)
            before = self._last_progress()
            assert before is not None  # noqa: S101 (it was written just now)
        self.end_slot()
        return before.position.epoch

    def find_gap(self) -> str:
        """Look, without taking anything, whether a start would refuse to go on."""
        self._connect()
        self._check_tables()
        # The slot first: a daemon that runs meanwhile moves it to where the record is already.
        self._slot = slot.inspect(self._sql, self._capture.slot_name)
        if self._slot is not None:
            slot.verify_ours(self._sql, self._slot)
        self._progress = progress = self._last_progress()
        if progress is None:
            raise start.nothing_to_go_on_from(self._capture.slot_name)
        if progress.phase is Phase.CREATING:
            return f"epoch {progress.position.epoch} has begun: `millrace run` reads all tables"
        try:
            if not self.is_complete:
                self._check_continuity(progress)
        except GapError as gap:
            return f"gap: {gap.what}"
        return (
            "no gap: `millrace run` goes on where the log ends, unless the stream shows it that "
            "this server was restored from a copy"
        )
