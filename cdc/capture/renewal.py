"""A gap → a new epoch: a start that doesn't capture, but lets the next one go on in spite of it.

docs/decisions/0009-epochs.md
"""

import contextlib

from cdc.capture import start
from cdc.capture.servers import Servers
from cdc.errors import GapError
from cdc.faults import FaultPoint, reach
from cdc.log.state import read_all
from cdc.records.state import Phase, TableState
from cdc.records.topics import table_topic
from cdc.settings import Settings


class Renewal:
    """Looks for a gap, or begins a new epoch."""

    def __init__(self, settings: Settings, servers: Servers) -> None:
        self._settings = settings
        self._capture = settings.capture
        self._servers = servers

    def begin_epoch(self) -> int:
        """Record that the log goes on from this server's history; returns the epoch.

        The slot is taken away. Where an epoch was begun, and nothing of it is in the log yet, it
        is that one. Raises ConfigError where the log has nothing to go on from.
        """
        servers = self._servers
        servers.take_lock()
        with contextlib.suppress(GapError):  # what a lost slot says is why we are here
            servers.stream_slot()
        servers.open_log(())
        before = servers.progress
        if before is None:
            raise start.nothing_to_go_on_from(self._capture.slot_name)
        if before.phase is not Phase.CREATING:
            topic = table_topic(self._capture.topic_prefix)
            keep_alive = servers.lease.keep_alive
            states = read_all(self._settings.kafka, topic, TableState, keep_alive)
            servers.writer.write(start.new_epoch(self._settings, servers.system, before, states))
            servers.writer.commit()
            reach(FaultPoint.EPOCH_RECORDED)
            servers.read_progress()
            before = servers.progress
            assert before is not None  # noqa: S101 (it was written just now)
        servers.end_slot()
        return before.position.epoch

    def find_gap(self) -> str:
        """Look, without taking anything, whether a start would refuse to go on."""
        servers = self._servers
        servers.connect()
        servers.check_tables()
        # The slot first: a daemon that runs meanwhile moves it to where the record is already.
        servers.find_slot()
        servers.read_progress()
        progress = servers.progress
        if progress is None:
            raise start.nothing_to_go_on_from(self._capture.slot_name)
        if progress.phase is Phase.CREATING:
            return f"epoch {progress.position.epoch} has begun: `millrace run` reads all tables"
        try:
            if not servers.is_complete:
                servers.check_continuity(progress)
        except GapError as gap:
            return f"gap: {gap.what}"
        return (
            "no gap: `millrace run` goes on where the log ends, unless the stream shows it that "
            "this server was restored from a copy"
        )
