"""A slot and a publication → CopyData in a buffer; positions reached → status updates.

In: CopyData from START_REPLICATION. Out: bytes as received; our status updates. Rules:
- ``read`` takes what has arrived, and blocks for its timeout at most.
- ``keep_alive`` sends the last positions again when an update is due. It reads nothing and never
  blocks, so it can be called between the slices of a Kafka call.
- A server that answers nothing while we listen, though asked to, counts as gone: what lies between
  may keep a dead connection open for ever.
- The walsender sends every row on its own. While much arrives, SO_RCVLOWAT lets the socket fill
  before we are woken, which saves CPU on both sides; when the stream calms down it is taken back.
https://www.postgresql.org/docs/current/protocol-replication.html
"""

import math
import re
import socket
import time
from collections.abc import Callable
from typing import Final, NoReturn, Self

from psycopg.pq.abc import PGconn

from cdc.errors import PublicationError, SourceSettingError, SourceUnreachableError
from cdc.postgres import slot as slots
from cdc.postgres.failures import server_address, statement_error
from cdc.postgres.socket_buffer import RefusedError
from cdc.postgres.wire import PlainWire, Wire, wire
from cdc.records.position import Lsn
from cdc.wal.frames import PrimaryKeepalive, standby_status_update

ASK_AFTER_S: Final = 10.0
"""An idle server that hears from us has no reason to speak: after this long we request a reply."""
SILENCE_S_MAX: Final = 60.0
_ASK_S: Final = 0.1
"""How often a caller who waits may request a reply."""
_LOW_WATER_BYTES: Final = 64 << 10
_LOW_WATER_WAIT_S: Final = 0.005
"""How long rows may wait in a socket that fills slower than we judged."""
_BUSY_BYTES_PER_S: Final = 4 << 20
_JUDGE_S: Final = 0.02

_OBJECT_IN_USE: Final = "55006"
_UNDEFINED_OBJECT: Final = "42704"
_UNDEFINED_FILE: Final = "58P01"
_NOT_IN_PREREQUISITE_STATE: Final = "55000"
_PROTOCOL_VERSIONS: Final = ((160_000, 4), (150_000, 3), (140_000, 2))


class ReplicationStream:
    """A started replication stream; owns its connection."""

    def __init__(
        self,
        pgconn: PGconn,
        slot: str,
        publication: str,
        status_interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._slot = slot
        self._publication = publication
        self._interval_s = status_interval_s
        self._clock = clock
        self._where = server_address(pgconn)
        self._received = Lsn(0)
        self._flushed = Lsn(0)
        self._sent_at = clock()
        self._reply_requested = False
        self._silent_s = 0.0
        self._requested_at = -math.inf
        self._warning = ""
        self._wire: Wire = wire(pgconn, self._notice)
        self._tcp = _tcp_socket(self._wire)
        self.is_busy = False
        """Whether so much arrives that waiting for more at once pays."""
        self._judged_at = clock()
        self._judged_bytes = 0
        self._closed = False

    @classmethod
    def start(
        cls,
        pgconn: PGconn,
        slot: str,
        publication: str,
        *,
        status_interval_ms: int = 2_000,
        in_progress: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """START_REPLICATION from where the slot stands; raises SlotInUseError with the pid.

        ``in_progress``: large transactions are to be sent before they have ended.
        """
        stream = cls(pgconn, slot, publication, status_interval_ms / 1000, clock)
        try:
            stream._wire.begin(
                _start_command(pgconn.server_version, slot, publication, in_progress)
            )
        except RefusedError as refusal:
            stream._wire.drop()
            stream._raise_not_started(refusal)
        except BaseException:
            stream._wire.drop()
            raise
        return stream

    @property
    def buffer(self) -> bytearray:
        """What ``read`` fills."""
        return self._wire.buffer

    @property
    def filled(self) -> tuple[int, int]:
        """From where to where the buffer has bytes that weren't used yet."""
        return self._wire.start, self._wire.end

    def read(self, timeout_s: float, wake: int | None = None) -> int:
        """Take what arrives until the time is over or ``wake`` is readable; how many bytes."""
        deadline = self._clock() + timeout_s
        try:
            while True:
                size = self._wire.fill()
                if size:
                    self._silent_s = 0.0
                    self._judge(size)
                    return size
                now = self._clock()
                left = deadline - now
                if left <= 0:
                    return 0
                wait_s = min(left, _LOW_WATER_WAIT_S) if self.is_busy else left
                if self._wire.wait(wait_s, wake):
                    continue
                waited = self._clock() - now
                if waited >= wait_s:
                    self._set_busy(busy=False)
                self._bear_silence(waited)
                if wake is not None:
                    return self._wire.fill()
        except RefusedError as refusal:
            self._raise_ended(refusal)

    def used(self, end: int, received: Lsn) -> None:
        """Let go of the bytes before ``end``; deals with what the server says in between."""
        self._wire.start = end
        self._received = max(self._received, received)
        try:
            self._wire.control()
        except RefusedError as refusal:
            self._raise_ended(refusal)
        if self._warning:
            raise self._unpublished(self._warning)

    def heard(self, keepalive: PrimaryKeepalive) -> None:
        """Take in a keepalive: how far the server is, and whether it wants to hear from us."""
        self._received = max(self._received, keepalive.wal_end)
        self._reply_requested |= keepalive.reply_requested

    def send_status(self, received: Lsn, flushed: Lsn) -> None:
        """Tell the server now what we have, and what it may forget."""
        self._received = max(received, self._received)
        self._flushed = flushed
        self._send()

    def keep_alive(self) -> None:
        """Send a status update if one is due or was asked for; never blocks, reads nothing."""
        if self._reply_requested or self._clock() - self._sent_at >= self._interval_s:
            self._send()
        else:
            self._flush()

    def ask(self) -> None:
        """Let the server say how far it is, without waiting for that."""
        now = self._clock()
        if now - self._requested_at >= _ASK_S:
            self._requested_at = now
            self._send(reply_requested=True)

    def close(self) -> None:
        """End the stream so that the server has processed our last status update."""
        if not self._closed:
            self._closed = True
            self._wire.close()

    def _bear_silence(self, waited_s: float) -> None:
        """Count the time in which we listened and nothing came; ask for a word, or give up."""
        requested = self._silent_s // ASK_AFTER_S
        self._silent_s += waited_s
        if self._silent_s >= SILENCE_S_MAX:
            raise self._disconnected(f"nothing came for {SILENCE_S_MAX:.0f} s")
        if self._silent_s // ASK_AFTER_S > requested:
            self._send(reply_requested=True)

    def _judge(self, size: int) -> None:
        """Decide by the rate of arrival whether waiting for more at once pays."""
        self._judged_bytes += size
        now = self._clock()
        elapsed = now - self._judged_at
        if elapsed >= _JUDGE_S:
            self._set_busy(busy=self._judged_bytes >= _BUSY_BYTES_PER_S * elapsed)
            self._judged_at = now
            self._judged_bytes = 0

    def _set_busy(self, *, busy: bool) -> None:
        if busy == self.is_busy:
            return
        self.is_busy = busy
        if self._tcp is not None:
            low_water = _LOW_WATER_BYTES if busy else 1
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def _send(self, *, reply_requested: bool = False) -> None:
        if not self._flush():
            return
        now_us = time.time_ns() // 1_000
        update = standby_status_update(
            self._flushed, self._received, now_us, reply_requested=reply_requested
        )
        try:
            self._wire.send(update)
        except RefusedError as refusal:
            raise self._disconnected(refusal.text) from refusal
        self._sent_at = self._clock()
        self._reply_requested = False

    def _flush(self) -> bool:
        """Send what can be sent without blocking; returns whether that was all."""
        try:
            return self._wire.flush()
        except RefusedError as refusal:
            raise self._disconnected(refusal.text) from refusal

    def _notice(self, sqlstate: str | None, text: str) -> None:
        """From PostgreSQL 18 on, a publication that is missing is only warned about."""
        if sqlstate == _NOT_IN_PREREQUISITE_STATE:
            self._warning = text

    def _unpublished(self, text: str) -> PublicationError:
        return PublicationError(
            text,
            where=self._where,
            remedy="the slot decodes with the publications of the change's time: if"
            f" {self._publication} was dropped, create it again as it was; {slots.NEW_EPOCH}",
        )

    def _disconnected(self, text: str) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"the replication connection was lost: {' '.join(text.split())}",
            where=self._where,
            remedy="check the server and the network in between; the slot keeps what comes after",
        )

    def _raise_ended(self, refusal: RefusedError) -> NoReturn:
        """The server ended the stream: say why."""
        if refusal.sqlstate is None:
            raise self._disconnected(refusal.text) from refusal
        if refusal.sqlstate == _UNDEFINED_OBJECT:
            raise self._unpublished(refusal.text) from refusal
        self._raise_slot_failure(refusal)

    def _raise_not_started(self, refusal: RefusedError) -> NoReturn:
        if refusal.sqlstate == _OBJECT_IN_USE:
            pid = re.search(r"\bPID (\d+)|(\d+)\D*\Z", refusal.text)
            number = int(pid[1] or pid[2]) if pid else None
            raise slots.in_use(self._slot, number, self._where) from refusal
        if refusal.sqlstate == _UNDEFINED_OBJECT:
            gone = "the slot doesn't exist any more"
            raise slots.lost(self._slot, gone, self._where) from refusal
        self._raise_slot_failure(refusal)

    def _raise_slot_failure(self, refusal: RefusedError) -> NoReturn:
        sqlstate, text = refusal.sqlstate, refusal.text
        if sqlstate == _NOT_IN_PREREQUISITE_STATE and "wal_level" in text:
            raise SourceSettingError(
                text,
                where=self._where,
                remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
            ) from refusal
        if sqlstate in {_NOT_IN_PREREQUISITE_STATE, _UNDEFINED_FILE}:
            raise slots.lost(self._slot, text, self._where) from refusal
        raise statement_error(sqlstate, text, self._where) from refusal


def _start_command(server_version: int, slot: str, publication: str, in_progress: bool) -> str:
    protocol = next(v for since, v in _PROTOCOL_VERSIONS if server_version >= since)
    names = '"' + publication.replace('"', '""') + '"'
    literal = "'" + names.replace("'", "''") + "'"
    return (
        f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0'
        f" (proto_version '{protocol}', publication_names {literal}, messages 'true',"
        f" streaming '{'on' if in_progress else 'off'}')"
    )


def _tcp_socket(wire: Wire) -> socket.socket | None:
    """The socket whose low-water mark can be set; None unless it is TCP that we read ourselves."""
    if isinstance(wire, PlainWire) and wire.socket.family in {socket.AF_INET, socket.AF_INET6}:
        return wire.socket if hasattr(socket, "SO_RCVLOWAT") else None
    return None
