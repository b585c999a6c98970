"""A running stand → how soon changes arrive, whether too much is acknowledged, and memory.

The probe is a table that gets a row every tenth of a second, and a `read_committed` consumer of its
topic. A fault is over when a row committed after its end can be read.
"""

import contextlib
import json
import threading
import time
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from cdc.errors import MillraceError
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.topics import TRUNCATE_KEY, data_topic
from tests.chaos.stand import PREFIX, Stand

_PROBE_S: Final = 0.1
_SAMPLE_S: Final = 0.5
_SETTLE_S: Final = 20.0
"""For so long a commit's markers may be on their way while a broker is down."""


class Probe:
    """Rows that go in, and when each came out (seconds of the monotonic clock)."""

    def __init__(self, stand: Stand, stop: threading.Event) -> None:
        self._stand = stand
        self._stop = stop
        self._sent: list[tuple[int, float]] = []
        self._arrived: dict[int, float] = {}
        self._topic = data_topic(PREFIX, TableName("public", "probe"))
        self.threads = [
            threading.Thread(target=self._write, name="probe's rows"),
            threading.Thread(target=self._read, name="probe's reader"),
        ]

    def recovered(self, since: float, timeout_s: float) -> float | None:
        """Seconds from then until a row that was inserted after it could be read."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            later = [number for number, sent in list(self._sent) if sent >= since]
            arrivals = [self._arrived[number] for number in later if number in self._arrived]
            if arrivals:
                return min(arrivals) - since
            time.sleep(0.02)
        return None

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.Error):
                where = self._stand.conninfo
                with psycopg.connect(where, autocommit=True, connect_timeout=5) as connection:
                    while not self._stop.wait(_PROBE_S):
                        number += 1
                        begun = time.monotonic()
                        connection.execute("INSERT INTO probe VALUES (%s, now())", [number])
                        self._sent.append((number, begun))
            self._stop.wait(_PROBE_S)

    def _read(self) -> None:
        options: dict[str, Any] = {
            **self._stand.reader,
            "group.id": "chaos-probe",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        consumer = Consumer(options)
        count = self._stand.topics()[self._topic]
        consumer.assign([TopicPartition(self._topic, number, 0) for number in range(count)])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            key = message.key() if message is not None and message.error() is None else None
            if key not in {None, TRUNCATE_KEY}:
                self._arrived.setdefault(json.loads(key)["id"], time.monotonic())
        consumer.close()


class Watch(threading.Thread):
    """Looks at slot, progress and memory twice a second."""

    def __init__(self, stand: Stand, stop: threading.Event) -> None:
        super().__init__(name="watch")
        self.violations: list[str] = []
        self.samples = 0
        self.peak_mb = 0.0
        self._stand = stand
        self._stop_event = stop

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._stop_event.wait(_SAMPLE_S):
            self.peak_mb = max(self.peak_mb, *(daemon.peak_mb() for daemon in self._stand.daemons))
            with contextlib.suppress(psycopg.Error, MillraceError):
                self._compare()

    def _compare(self) -> None:
        """What is acknowledged now has to be recorded already: the slot is read first."""
        text = self._stand.ask(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
            f" WHERE slot_name = '{self._stand.slot}'"
        )
        confirmed = Lsn.parse(text)
        self.samples += 1
        # Once the run is over, its end is looked at, and nothing is waited for.
        settled = self._stand.until(
            lambda: self._stop_event.is_set() or self._is_recorded(confirmed), _SETTLE_S
        )
        if not settled:
            progress = self._stand.progress()  # raises where Kafka is down: nobody can tell
            recorded = progress.flush_lsn if progress else Lsn(0)
            if confirmed > recorded:
                self.violations.append(f"{confirmed} is acknowledged, {recorded} recorded")

    def _is_recorded(self, lsn: Lsn) -> bool:
        progress = self._stand.progress()
        return progress is not None and progress.flush_lsn >= lsn
