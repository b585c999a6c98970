"""A slot and a publication → a wire to read; positions reached → status updates.

The bytes stay in the wire's buffer, where the translation takes them. Rules:
- ``read`` takes what has arrived, and blocks for its timeout at most.
- ``keep_alive`` sends the last positions again when an update is due. It reads nothing and never
  blocks, so it can be called between the slices of a Kafka call.
- A server that doesn't answer a request while we listen counts as gone, as network devices can keep
  a dead connection open without limit.
- The walsender sends every row separately. While much arrives, SO_RCVLOWAT lets the socket fill
  before we are woken, which saves CPU on both sides. It is reset when the stream calms down.
https://www.postgresql.org/docs/current/protocol-replication.html
"""

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from psycopg.pq.abc import PGconn

from cdc.errors import MillraceError, SourceUnreachableError, UndecodableError
from cdc.postgres import slot as slots
from cdc.postgres.failures import RefusedError, server_address
from cdc.postgres.wire import PlainWire, Wire, wire
from cdc.records.position import Lsn
from cdc.wal.frames import PrimaryKeepalive, standby_status_update

ASK_AFTER_S: Final = 10.0
"""An idle server that hears from us has no reason to send. After this time we request a reply."""
SILENCE_S_MAX: Final = 60.0
_ASK_S: Final = 0.1
"""How often a waiting caller may request a reply."""
_LOW_WATER_BYTES: Final = 64 << 10
_LOW_WATER_WAIT_S: Final = 0.005
"""How long rows may wait in a socket that fills more slowly than expected."""
_BUSY_BYTES_PER_S: Final = 4 << 20
_JUDGE_S: Final = 0.02

_UNDEFINED_OBJECT: Final = "42704"
_NOT_IN_PREREQUISITE_STATE: Final = "55000"
_LOST: Final = {_NOT_IN_PREREQUISITE_STATE, "58P01"}
"""58P01: a file of the WAL is missing."""
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
        self.wire: Wire = wire(pgconn, self._notice)
        """``wire.buffer[wire.start : wire.end]`` has been received and not used yet."""
        self._tcp = _tcp_socket(self.wire)
        self.is_busy = False
        """Whether enough arrives that it pays to wait for more at once."""
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
        """Send START_REPLICATION from the slot's position. Raise SlotInUseError with the pid.

        ``in_progress``: PostgreSQL sends large transactions before they end.
        """
        stream = cls(pgconn, slot, publication, status_interval_ms / 1000, clock)
        try:
            stream.wire.begin(_start_command(pgconn.server_version, slot, publication, in_progress))
        except BaseException as error:
            stream.wire.drop()
            if isinstance(error, RefusedError):
                raise stream._not_started(error) from error
            raise
        return stream

    def read(self, timeout_s: float, wake: int | None = None) -> int:
        """Read until data arrives, the time is over, or ``wake`` is readable.

        Return the bytes read.
        """
        deadline = self._clock() + timeout_s
        with self._explained():
            while True:
                size = self.wire.fill()
                if size:
                    self._silent_s = 0.0
                    self._judge(size)
                    return size
                now = self._clock()
                left = deadline - now
                if left <= 0:
                    return 0
                wait_s = min(left, _LOW_WATER_WAIT_S) if self.is_busy else left
                if self.wire.wait(wait_s, wake):
                    continue
                waited = self._clock() - now
                if waited >= wait_s:
                    self._set_busy(busy=False)
                self._bear_silence(waited)
                if wake is not None:
                    return self.wire.fill()

    def used(self, end: int, received: Lsn) -> None:
        """Release the bytes before ``end``, and process the server's messages in between."""
        self.wire.start = end
        self._received = max(self._received, received)
        with self._explained():
            self.wire.control()
        if self._warning:
            raise self._unpublished(self._warning)

    def shorten(self, shortened: Callable[[bytes, int], bytes | None]) -> None:
        """Offer a large message whose end hasn't arrived yet, so that a short one can replace it.

        ``shortened`` gets the first bytes of its payload, and its size.
        """
        begun = self.wire.begun()
        if begun is not None and (payload := shortened(*begun)) is not None:
            self.wire.replace(payload)

    def heard(self, keepalive: PrimaryKeepalive) -> None:
        """Record a keepalive: the server's position, and whether it requests a reply."""
        self._received = max(self._received, keepalive.wal_end)
        self._reply_requested |= keepalive.reply_requested

    def send_status(self, received: Lsn, flushed: Lsn) -> None:
        """Send the server the positions that we have, and that it can discard."""
        self._received = max(received, self._received)
        self._flushed = flushed
        self._send()

    def keep_alive(self) -> None:
        """Send a status update if one is due or requested. Never blocks, and reads nothing."""
        if self._reply_requested or self._clock() - self._sent_at >= self._interval_s:
            self._send()
        else:
            with self._explained():
                self.wire.flush()

    def ask(self) -> None:
        """Request the server's position, without waiting for it."""
        now = self._clock()
        if now - self._requested_at >= _ASK_S:
            self._requested_at = now
            self._send(reply_requested=True)

    def close(self) -> None:
        """End the stream so that the server has processed our last status update."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._set_busy(busy=False)  # the server's last message is short
            self.wire.close()

    def _bear_silence(self, waited_s: float) -> None:
        """Add up the time without data. Request a reply, or give up."""
        requested = self._silent_s // ASK_AFTER_S
        self._silent_s += waited_s
        if self._silent_s >= SILENCE_S_MAX:
            raise self._disconnected(f"the server sent nothing for {SILENCE_S_MAX:.0f} s")
        if self._silent_s // ASK_AFTER_S > requested:
            self._send(reply_requested=True)

    def _judge(self, size: int) -> None:
        """Decide by the rate of arrival whether it pays to wait for more at once."""
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
        with self._explained():
            if not self.wire.flush():
                return
            self.wire.send(
                standby_status_update(
                    self._flushed,
                    self._received,
                    time.time_ns() // 1_000,
                    reply_requested=reply_requested,
                )
            )
        self._sent_at = self._clock()
        self._reply_requested = False

    def _notice(self, sqlstate: str | None, text: str) -> None:
        """Record the warning of a missing publication: from PostgreSQL 18 on, it isn't an error."""
        if sqlstate == _NOT_IN_PREREQUISITE_STATE and self._publication in text:
            self._warning = text

    def _unpublished(self, text: str) -> UndecodableError:
        return UndecodableError(
            text,
            where=self._where,
            remedy=f"create publication {self._publication} again with its old definition, and"
            " start again",
        )

    def _disconnected(self, text: str) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"the replication connection was lost: {' '.join(text.split())}",
            where=self._where,
            remedy="check the server and the network; the slot keeps later changes",
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the reason why the server has ended the stream."""
        try:
            yield
        except RefusedError as refusal:
            if refusal.sqlstate is None:
                raise self._disconnected(refusal.text) from refusal
            # In the server's language. A missing type has the same SQLSTATE.
            if refusal.sqlstate == _UNDEFINED_OBJECT and self._publication in refusal.text:
                raise self._unpublished(refusal.text) from refusal
            raise self._failure(refusal) from refusal

    def _not_started(self, refusal: RefusedError) -> MillraceError:
        if refusal.sqlstate == _UNDEFINED_OBJECT:
            return slots.lost(self._slot, "the slot no longer exists", self._where)
        return self._failure(refusal)

    def _failure(self, refusal: RefusedError) -> MillraceError:
        if refusal.sqlstate in _LOST and "wal_level" not in refusal.text:
            return slots.lost(self._slot, refusal.text, self._where)
        return slots.refused(self._slot, refusal, self._where)


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
    """Return the socket with a low-water mark. None unless we read TCP ourselves."""
    if isinstance(wire, PlainWire) and wire.socket.family in {socket.AF_INET, socket.AF_INET6}:
        return wire.socket
    return None
