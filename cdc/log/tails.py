"""Offsets → the last committed record at or after each, and the commit time of its change.

These show how far a sink is behind. An end offset alone would count transactions' markers.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition

from cdc.errors import LogUnreachableError, MillraceError
from cdc.kafka import options
from cdc.kafka.admin import EARLIEST, LATEST, LogAdmin, do_nothing
from cdc.kafka.errors import log_error
from cdc.log.offsets import Offsets
from cdc.log.partitions import is_end, reaches

_FIRST_STEP: Final = 16
_STEP_GROWTH: Final = 64
_ATTEMPT_S: Final = 0.5
_PATIENCE_S: Final = 30.0
_PARSED_BYTES_MAX: Final = 1 << 20
_NONE: Final = -1
"""The offset of a missing record."""
PartitionKey = tuple[str, int]
"""A topic and one of its partitions."""


class LastRecord(NamedTuple):
    """A partition's last record: its offset, and its change's commit time (µs since 1970).

    The partition reaches from ``first`` to ``end`` (None: it continues). If that is unknown,
    ``unknown`` is the reason.
    """

    offset: int
    ts_us: int
    first: int = 0
    end: int | None = None
    unknown: str = ""

    def lacks(self, start: int) -> str:
        """Return why the records from an offset on aren't complete. Empty: they are."""
        if self.unknown:
            return self.unknown
        if self.end is not None and self.end < start:
            return "it was made again, or has lost records"
        return "it no longer has records that weren't applied" if start < self.first else ""


def last_records(
    kafka_options: Mapping[str, str],
    starts: Offsets,
    while_waiting: Callable[[], None] = do_nothing,
) -> dict[PartitionKey, LastRecord]:
    """Return the last committed record of each partition at or after an offset, and its bounds."""
    return Tails(kafka_options, while_waiting).last(starts)


class Tails:
    """Reads partitions' ends repeatedly, with one consumer."""

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self._while_waiting = while_waiting
        self._admin = LogAdmin(kafka_options, while_waiting)
        ignored: dict[str, Any] = {"error_cb": lambda _error: None}
        config = {**options.reader_options(kafka_options), **ignored}
        self._consumer = options.client(Consumer, config, kafka_options)

    def last(self, starts: Offsets) -> dict[PartitionKey, LastRecord]:
        """Return the last committed record of each partition at or after an offset, and its bounds.

        A record of an open transaction counts as committed.
        """
        places = [(topic, number) for topic, numbers in starts.items() for number in numbers]
        if not places:
            return {}
        failed: dict[str, MillraceError] = {}
        first = self._admin.list_offsets(places, EARLIEST, failed=failed)
        written = self._admin.list_offsets(places, LATEST, failed=failed)
        ends = self._admin.list_offsets(places, LATEST, IsolationLevel.READ_COMMITTED, failed)
        now_us = time.time_ns() // 1_000
        last: dict[PartitionKey, LastRecord] = {}
        left: dict[PartitionKey, int] = {}
        begins: dict[PartitionKey, int] = {}
        for topic, number in places:
            place, start = (topic, number), starts[topic][number]
            if topic in failed or not (place in first and place in written and place in ends):
                why = failed[topic].what if topic in failed else "it doesn't answer"
                last[place] = LastRecord(_NONE, now_us, unknown=why)
                continue
            is_open = ends[place] < written[place]
            offset = ends[place] if is_open else _NONE
            last[place] = LastRecord(offset, now_us, first[place], written[place])
            start = max(start, first[place])
            if not is_open and ends[place] > start:
                left[place], begins[place] = ends[place], start
        step = _FIRST_STEP
        while left:
            begun = {place: max(begins[place], end - step) for place, end in left.items()}
            records = self._read(begun, left)
            for place, record in records.items():
                offset, ts_us, *_ = record
                last[place] = last[place]._replace(offset=offset, ts_us=ts_us)
            left = {
                place: begun[place]
                for place in left.keys() - records.keys()
                if begun[place] > begins[place]
            }
            step *= _STEP_GROWTH
        return last

    def _read(
        self, begun: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, LastRecord]:
        """Return the last record of each partition from an offset until before an end."""
        last: dict[PartitionKey, LastRecord] = {}
        open_places = set(begun)
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in begun.items()])
        deadline = time.monotonic() + _PATIENCE_S
        while open_places:
            message = self._consumer.poll(_ATTEMPT_S)
            if message is None:
                self._while_waiting()
                if time.monotonic() > deadline:
                    raise LogUnreachableError(
                        "reading the log: no record arrived", where="its topics"
                    )
                continue
            place = message.topic() or "", message.partition() or 0
            if is_end(message):
                if reaches(message, ends[place]):  # a follower may be behind
                    open_places.discard(place)
                continue
            if (error := message.error()) is not None:
                raise log_error(error, "reading the log", f"topic {place[0]}")
            offset = message.offset() or 0
            if offset < ends[place]:
                last[place] = LastRecord(offset, _committed_us(message, last.get(place)))
            if offset >= ends[place] - 1:
                open_places.discard(place)
        self._consumer.unassign()
        return last


def _committed_us(message: Message, before: LastRecord | None) -> int:
    """Return the commit time of a record's change. A tombstone follows the record of its change."""
    value = message.value()
    if value is None and before is not None:
        return before.ts_us
    written_us = message.timestamp()[1] * 1_000
    if value is None or len(value) > _PARSED_BYTES_MAX:
        return written_us
    try:
        envelope = json.loads(value)
        source = envelope.get("payload", envelope)["source"]
        return int(source.get("ts_us") or source["ts_ms"] * 1_000) or written_us
    except (ValueError, KeyError, TypeError, AttributeError):
        return written_us  # it isn't JSON, or was transformed
