"""Kafka → the input of a run: state records, and the offsets of the data partitions.

docs/decisions/0004-sinks-and-cuts.md has the steps to the cut: the last progress record first, then
end offsets that include open transactions, then a wait until a reader of committed records can
reach them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from confluent_kafka import IsolationLevel
from confluent_kafka.admin._listoffsets import OffsetSpec

from cdc.errors import LogError, LogMissingError, MillraceError
from cdc.kafka.admin import EARLIEST, LATEST, LogAdmin, do_nothing
from cdc.log.state import StateReader
from cdc.records.schema import TableSchema
from cdc.records.state import Progress, TableState
from cdc.records.topics import progress_topic, schema_topic, table_topic

Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""

MARKERS_S: Final = 150.0
"""How long to wait for open transactions. A killed daemon leaves one. Kafka aborts it after its
transaction.timeout.ms (120 s), and checks every 10 s.
"""
_SAY_S: Final = 2.0
"""Shorter waits aren't reported."""
_ASK_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LogState:
    """The log's state at one moment. A run's cut is ``progress.cut``.

    ``tables`` and ``schemas`` (versions ascending) have ``schema.table`` as keys. ``starts`` and
    ``ends`` are the offsets of every data partition, no older than ``read_ms`` (since 1970).
    """

    progress: Progress
    tables: dict[str, TableState]
    schemas: dict[str, tuple[TableSchema, ...]]
    starts: Offsets
    ends: Offsets
    read_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def newest_schemas(self) -> dict[str, TableSchema]:
        """Return the newest schema version of each table that has one."""
        return {name: versions[-1] for name, versions in self.schemas.items() if versions}


def log_missing(prefix: str, slot: str, servers: str) -> LogMissingError:
    """Return the error for names under which no daemon has written a log."""
    return LogMissingError(
        f"topic.prefix {prefix} has no log: no daemon has written one",
        where=f"slot.name {slot}, bootstrap.servers {servers}",
        remedy="start the daemon first (millrace run); or correct topic.prefix, slot.name or"
        " bootstrap.servers; or allow the user Describe on the log's topics: brokers hide"
        " them without it",
    )


def versions_by_table(schemas: Iterable[TableSchema]) -> dict[str, tuple[TableSchema, ...]]:
    """Return the versions of each table, ascending."""
    versions: dict[str, tuple[TableSchema, ...]] = {}
    for schema in sorted(schemas, key=lambda schema: schema.version):
        versions[str(schema.name)] = (*versions.get(str(schema.name), ()), schema)
    return versions


class LogReader:
    """The log's state and offsets, read again at each call. For one run, as its LogAdmin.

    Its waits call ``while_waiting``, which may raise to give up.
    """

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self._options = kafka_options
        self._while_waiting = while_waiting
        self._admin = LogAdmin(kafka_options, while_waiting)

    def state(self, prefix: str, slot: str, report: Callable[[str], None] = print) -> LogState:
        """Return the log's state once it can be read up to its ends.

        Raise LogMissingError before a first start.
        """
        reader = StateReader(self._options, self._while_waiting)
        progress = reader.last_progress(progress_topic(prefix), slot)
        if progress is None:
            raise log_missing(prefix, slot, self._admin.servers)
        state_topics = [(table_topic(prefix), 0), (schema_topic(prefix), 0)]
        self.wait_until_shown(state_topics, report)
        states = reader.read_all(table_topic(prefix), TableState)
        states = [state for state in states if state.is_in_log]
        tables = {str(table.name): table for table in states}
        schemas = versions_by_table(reader.read_all(schema_topic(prefix), TableSchema))
        partitions = [
            (table.topic, number) for table in states for number in range(table.partitions)
        ]
        read_ms = time.time_ns() // 1_000_000
        starts = self._offsets(partitions, EARLIEST)
        ends = self._offsets(partitions, LATEST)
        self._wait_for_markers(ends, report)
        return LogState(progress, tables, schemas, starts, ends, read_ms)

    def forgotten(self, offsets: Offsets, keep: timedelta) -> Offsets:
        """Return the offsets that have records older than ``keep`` at or after them."""
        since_ms = int((time.time() - keep.total_seconds()) * 1000)
        partitions = [(topic, number) for topic in offsets for number in offsets[topic]]
        kept_from = self._first_since(partitions, since_ms)
        return {
            topic: older
            for topic, numbers in offsets.items()
            if (
                older := {
                    number: kept_from[topic][number]
                    for number, offset in numbers.items()
                    if offset < kept_from[topic][number]
                }
            )
        }

    def since(self, topic: str, partition: int, ts_ms: int) -> tuple[Offsets, Offsets]:
        """Return offsets from a time (ms since 1970) to the end. A missing topic has none."""
        if topic not in self._admin.partitions():
            return {topic: {}}, {topic: {}}
        ends = self._offsets([(topic, partition)], LATEST)
        self._wait_for_markers(ends, print)
        start = self._first_since([(topic, partition)], max(0, ts_ms))
        return {topic: {partition: min(start[topic][partition], ends[topic][partition])}}, ends

    def wait_until_shown(
        self, partitions: Iterable[tuple[str, int]], report: Callable[[str], None] = print
    ) -> None:
        """Wait until all records written so far can be read, or are aborted."""
        self._wait_for_markers(self._offsets(partitions, LATEST), report)

    def _first_since(self, partitions: Iterable[tuple[str, int]], ts_ms: int) -> Offsets:
        """Return the first committed record at or after a time, or the end."""
        committed = IsolationLevel.READ_COMMITTED
        spec = OffsetSpec.for_timestamp(ts_ms)
        first = self._offsets(partitions, spec, committed)
        missing = [(t, p) for t, numbers in first.items() for p in numbers if numbers[p] < 0]
        for topic, ends in self._offsets(missing, LATEST, committed).items():
            first[topic] |= ends
        return first

    def _wait_for_markers(self, ends: Offsets, report: Callable[[str], None]) -> None:
        """Wait until committed records can be read up to the ends (decision 0004, step 4)."""
        waiting = [(topic, partition) for topic in ends for partition in ends[topic]]
        began = time.monotonic()
        is_reported = False
        while True:
            committed = self._offsets(waiting, LATEST, IsolationLevel.READ_COMMITTED)
            waiting = [(t, p) for t, p in waiting if committed[t][p] < ends[t][p]]
            if not waiting:
                return
            if time.monotonic() > began + MARKERS_S:
                raise LogError(
                    f"a transaction has been open for more than {MARKERS_S:.0f} s",
                    where=f"topic {waiting[0][0]}, partition {waiting[0][1]}",
                    remedy="check whether a daemon hangs; the next run tries again",
                )
            if not is_reported and time.monotonic() > began + _SAY_S:
                report(f"waiting for an open Kafka transaction in {waiting[0][0]}")
                is_reported = True
            self._while_waiting()
            time.sleep(_ASK_AGAIN_S)

    def _committed_bounds(
        self, partitions: list[tuple[str, int]], failed: dict[str, MillraceError]
    ) -> tuple[Offsets, Offsets]:
        """Return first offsets and committed ends. ``failed`` gets topics without an answer."""
        starts = self._offsets(partitions, EARLIEST, failed=failed)
        ends = self._offsets(partitions, LATEST, IsolationLevel.READ_COMMITTED, failed)
        return starts, ends

    def _offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        failed: dict[str, MillraceError] | None = None,
    ) -> Offsets:
        """Return offsets by topic and partition.

        ``failed``, if given, gets topics without an answer.
        """
        offsets: Offsets = {}
        answers = self._admin.list_offsets(partitions, spec, isolation, failed)
        for (topic, partition), offset in answers.items():
            offsets.setdefault(topic, {})[partition] = offset
        return offsets
