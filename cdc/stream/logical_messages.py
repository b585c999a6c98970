"""Logical messages of the stream → events of those that the settings ask for.

Every role that can connect can write them (pg_logical_emit_message is for PUBLIC), with any prefix
and content, up to 1 GB. So none of them may end the daemon, use its memory, or count as ours by its
prefix alone. A message that is left out still counts in its transaction, so positions don't depend
on which messages are wanted.
https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

import time
from collections.abc import Iterable
from typing import Final, Protocol

import structlog

from cdc.convert.pipeline import RecordPipeline
from cdc.errors import ROW_ERRORS
from cdc.events.metadata import SOURCE_HEARTBEAT, MessageEvents
from cdc.records.orders import ORDER_BYTES_MAX, ORDERS
from cdc.records.position import Lsn, Position, Transaction
from cdc.records.record import Record
from cdc.stream.in_progress import InProgress
from cdc.stream.signals import DDL, WATERMARK
from cdc.wal.decoder import logical_message_prefix, without_content
from cdc.wal.frames import XLOG_HEADER_BYTES
from cdc.wal.messages import LogicalMessage

log = structlog.get_logger()
OWN: Final = ORDERS | {SOURCE_HEARTBEAT, WATERMARK, DDL}
"""The prefixes of our own messages, which make no events."""
LEFT_OUT: Final = "millrace.left-out"
"""The prefix of the remainder of an unwanted message."""
_SMALL_BYTES: Final = 200
"""The remainder of a message of this size isn't much smaller."""
_WARN_S: Final = 10.0


class Refused(Protocol):
    """A check of what can't be written (cdc.dead_letters)."""

    def bytes_max(self, topic: str) -> int:
        """Return how many bytes a topic accepts for certain. 0: unknown."""

    def refused(self, records: Iterable[Record], position: Position) -> str | None:
        """Return why records can't be written. None: they can."""

    def count_message(self, reason: str) -> None:
        """Count a message that was left out."""


class LogicalMessages:
    """Converts the messages of one stay on the stream to events."""

    def __init__(
        self,
        events: MessageEvents,
        pipeline: RecordPipeline,
        dead_letters: Refused | None,
        in_progress: InProgress,
    ) -> None:
        self._events = events
        self._pipeline = pipeline
        self._dead_letters = dead_letters
        self._in_progress = in_progress
        self._next_warning = 0.0

    def records(
        self, message: LogicalMessage, latest: Transaction | None, lsn: Lsn, position: Position
    ) -> list[Record]:
        """Return the records of a message's event; none if it isn't wanted, or can't be written."""
        size = len(message.content)
        if message.prefix == LEFT_OUT or not self._takes(message.prefix, size, lsn):
            return []
        made = self._events.record(message, latest, lsn)
        if made is None:
            return []
        try:
            records = self._pipeline.of_stream([made], position)
        except ROW_ERRORS as error:
            if error.retry:
                raise
            self._leave_out(message.prefix, size, lsn, error.what)
            return []
        if self._dead_letters is None:
            return records
        refused = self._dead_letters.refused(records, position)
        if refused is not None:
            self._leave_out(message.prefix, size, lsn, refused)
        return [] if refused is not None else records

    def shortened(self, begun: bytes, size: int) -> bytes | None:
        """Return the replacement of a CopyData payload whose first bytes have arrived.

        None: it isn't a logical message, or is needed whole. ``size`` is its total size.
        """
        head, message = begun[:XLOG_HEADER_BYTES], begun[XLOG_HEADER_BYTES:]
        in_block = self._in_progress.is_inside
        if begun[:1] != b"w" or message[:1] != b"M":
            return None
        prefix, is_whole = logical_message_prefix(message, in_block=in_block)
        lsn = Lsn(int.from_bytes(head[1:9], "big"))
        if is_whole and prefix not in OWN and self._takes(prefix, size, lsn):
            return None
        left = prefix if prefix in OWN else LEFT_OUT
        return head + without_content(message, left, in_block=in_block)

    def kept(self, payload: bytes, size: int) -> bytes | None:
        """Return the part of a message to keep in a block, until its transaction ends. None: all.

        So unwanted messages take neither memory nor disk.
        """
        if size <= _SMALL_BYTES:
            return None
        message = payload[XLOG_HEADER_BYTES:]
        is_own = logical_message_prefix(message, in_block=True)[0] in OWN
        if is_own and size <= ORDER_BYTES_MAX:
            return None
        return self.shortened(payload, size)

    def _takes(self, prefix: str, size: int, lsn: Lsn) -> bool:
        """Whether a message of this size becomes an event."""
        if not self._events.wants(prefix):
            self._count("unwanted")
            return False
        limit = self._dead_letters.bytes_max(self._events.topic) if self._dead_letters else 0
        if limit and size > limit:
            reason = f"it has {size} bytes; the topic accepts {limit}"
            self._leave_out(prefix, size, lsn, reason)
            return False
        return True

    def _leave_out(self, prefix: str, size: int, lsn: Lsn, reason: str) -> None:
        self._count("refused")
        now = time.monotonic()
        if now < self._next_warning:
            return
        self._next_warning = now + _WARN_S
        log.warning(
            "a logical message is left out",
            prefix=prefix[:100],
            bytes=size,
            lsn=str(lsn),
            reason=reason,
            remedy="write smaller ones, or raise [kafka] message.max.bytes and the topic's"
            " max.message.bytes",
        )

    def _count(self, reason: str) -> None:
        if self._dead_letters is not None:
            self._dead_letters.count_message(reason)
