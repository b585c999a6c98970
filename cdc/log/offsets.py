"""Kafka → what there is to apply: state records, and the offsets of the data partitions.

The cut is found as docs/decisions/0004-sinks-and-cuts.md says: the last progress record first,
then end offsets that hide nothing, then a wait until a reader of committed records can see as far.
A run that finds nothing new ends here, before any JVM has started.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from cdc.errors import LogAccessError, LogError, LogUnreachableError
from cdc.kafka.options import LOGGER, admin_options, reader_options
from cdc.log.state import last_progress, read_all
from cdc.records.schema import TableSchema
from cdc.records.state import Progress, TableState
from cdc.records.topics import progress_topic, schema_topic, table_topic

Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""
Report = Callable[[str], None]

CALL_S: Final = 15.0
"""How long one call to Kafka may take before the log counts as unreachable."""
MARKERS_S: Final = 150.0
"""How long to wait for open transactions. A daemon that was killed leaves one: Kafka aborts it
after its transaction.timeout.ms (120 s), and looks for such every 10 s."""
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_ACCESS: Final = frozenset({
    KafkaError._AUTHENTICATION,  # noqa: SLF001 (that is how the library names its constants)
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log says of itself at one moment: a run's cut is ``progress.cut``.

    ``tables`` and ``schemas`` (versions ascending) go by ``schema.table``; ``starts`` and
    ``ends`` are the offsets of every data partition.
    """

    progress: Progress
    tables: dict[str, TableState]
    schemas: dict[str, tuple[TableSchema, ...]]
    starts: Offsets
    ends: Offsets


class Log:
    """A reader of committed records; one call, one answer, and errors that name the log."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._where = kafka["bootstrap.servers"]
        self._failures: list[KafkaError] = []
        heard: dict[str, Any] = {"error_cb": self._failures.append}
        try:
            self._admin = AdminClient({**admin_options(kafka), **heard}, logger=LOGGER)
            self._consumer = Consumer({**reader_options(kafka), **heard}, logger=LOGGER)
        except KafkaException as error:
            raise self._error(error) from None

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def state(self, prefix: str, slot: str, report: Report = print) -> LogState | None:
        """Return the log's state once it can be read up to its ends; None before a first start."""
        progress = last_progress(self._kafka, progress_topic(prefix), slot)
        if progress is None:
            return None
        state_topics = [(table_topic(prefix), 0), (schema_topic(prefix), 0)]
        self._wait_for_markers(self._offsets(state_topics, _LATEST), report)
        tables = {
            str(table.name): table
            for table in read_all(self._kafka, table_topic(prefix), TableState)
        }
        schemas: dict[str, tuple[TableSchema, ...]] = {}
        for schema in sorted(
            read_all(self._kafka, schema_topic(prefix), TableSchema),
            key=lambda schema: schema.version,
        ):
            schemas[str(schema.name)] = (*schemas.get(str(schema.name), ()), schema)
        partitions = [
            (table.topic, number) for table in tables.values() for number in range(table.partitions)
        ]
        starts = self._offsets(partitions, _EARLIEST)
        ends = self._offsets(partitions, _LATEST)
        self._wait_for_markers(ends, report)
        return LogState(progress, tables, schemas, starts, ends)

    def forgotten(self, offsets: Offsets, keep: timedelta) -> Offsets:
        """Those of the offsets that have records older than ``keep`` at or after them."""
        since_ms = int((time.time() - keep.total_seconds()) * 1000)
        asked = [
            TopicPartition(topic, partition, since_ms)
            for topic, partitions in offsets.items()
            for partition in partitions
        ]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=CALL_S)
            late: Offsets = {}
            for answer in answers:
                offset = offsets[answer.topic][answer.partition]
                kept_from = answer.offset
                if kept_from < 0:  # every record is older, or there is none
                    bounds = self._consumer.get_watermark_offsets(answer, timeout=CALL_S)
                    kept_from = bounds[1] if bounds else offset
                if offset < kept_from:
                    late.setdefault(answer.topic, {})[answer.partition] = kept_from
        except KafkaException as error:
            raise self._error(error) from None
        return late

    def since(
        self, topic: str, partition: int, ts_ms: int, report: Report = print
    ) -> tuple[Offsets, Offsets]:
        """Offsets from a time (ms since 1970) to the end; none of a topic that doesn't exist."""
        if self._bounds(topic) is None:
            return {topic: {}}, {topic: {}}
        ends = self._offsets([(topic, partition)], _LATEST)
        self._wait_for_markers(ends, report)
        asked = [TopicPartition(topic, partition, max(0, ts_ms))]
        try:
            (found,) = self._consumer.offsets_for_times(asked, timeout=CALL_S)
        except KafkaException as error:
            raise self._error(error) from None
        end = ends[topic][partition]
        start = found.offset if 0 <= found.offset < end else end
        return {topic: {partition: start}}, ends

    def _wait_for_markers(self, ends: Offsets, report: Report) -> None:
        """Wait until committed records can be read up to the ends (decision 0004, step 4)."""
        waiting = [(topic, partition) for topic in ends for partition in ends[topic]]
        deadline = time.monotonic() + MARKERS_S
        told = False
        while True:
            committed = self._offsets(waiting, _LATEST, IsolationLevel.READ_COMMITTED)
            waiting = [(t, p) for t, p in waiting if committed[t][p] < ends[t][p]]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise LogError(
                    f"a transaction has been open for more than {MARKERS_S:.0f} s",
                    where=f"topic {waiting[0][0]}, partition {waiting[0][1]}",
                    remedy="is a daemon hanging? The next run tries again",
                )
            if not told and time.monotonic() > deadline - MARKERS_S + 2:
                report(f"waiting for an open Kafka transaction in {waiting[0][0]}")
                told = True
            time.sleep(0.05)

    def _bounds(self, topic: str) -> tuple[int, int] | None:
        try:
            failure = self._admin.list_topics(topic, timeout=CALL_S).topics[topic].error
            if failure is None:
                first = TopicPartition(topic, 0)
                return self._consumer.get_watermark_offsets(first, timeout=CALL_S)
        except KafkaException as error:
            raise self._error(error) from None
        if failure.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise self._error(KafkaException(failure))

    def _offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        failed: dict[str, LogError] | None = None,
    ) -> Offsets:
        """By topic and partition; where ``failed`` is given, it gets the topics that have none."""
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}
        answers: Offsets = {}
        if not asked:
            return answers
        try:
            futures = self._admin.list_offsets(
                asked, isolation_level=isolation, request_timeout=CALL_S
            )
        except KafkaException as error:
            raise self._error(error) from None
        for partition, future in futures.items():
            try:
                offset = future.result(timeout=CALL_S + 1).offset
            except KafkaException as error:
                if failed is None:
                    raise self._error(error) from None
                failed[partition.topic] = self._error(error)
            else:
                answers.setdefault(partition.topic, {})[partition.partition] = offset
        return answers

    def _error(self, error: KafkaException) -> LogError:
        failures = [*self._failures, error.args[0]]
        for failure in failures:
            if isinstance(failure, KafkaError) and failure.code() in _ACCESS:
                return LogAccessError(
                    f"Kafka refuses us: {failure.str()}",
                    where=self._where,
                    remedy="check the security options and rights of [kafka]",
                )
        return self._unreachable(failures[-1])

    def _unreachable(self, failure: object = None) -> LogUnreachableError:
        failure = failure or (self._failures[-1] if self._failures else "no answer")
        text = failure.str() if isinstance(failure, KafkaError) else str(failure)
        return LogUnreachableError(
            f"Kafka doesn't answer: {text}",
            where=self._where,
            remedy="check bootstrap.servers in [kafka], and that the broker runs",
        )
