"""A slot and a publication → batches of frames; positions reached → status updates.

In: CopyData from START_REPLICATION. Out: frames as read; our status updates. Rules:
- ``read`` takes what has arrived, at most FRAME_BYTES_MAX a call, and blocks no longer than told.
- ``keep_alive`` sends the last positions again when an update is due. It reads nothing and never
  blocks, so it can be called between the slices of a Kafka call.
- A server that answers nothing while we listen, though asked to, counts as gone: what lies between
  may keep a dead connection open for ever.
- The walsender sends every row on its own. While much arrives, SO_RCVLOWAT lets the socket fill
  before we are woken, which saves CPU on both sides; when the stream calms down it is taken back.
https://www.postgresql.org/docs/current/protocol-replication.html
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Final, NoReturn, Self

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.errors import MillraceError, PublicationError, SourceSettingError, SourceUnreachableError
from cdc.postgres import slot as slots
from cdc.postgres.connection import wait_readable
from cdc.postgres.failures import explained, place, raise_result, result_sqlstate, result_text
from cdc.records.position import Lsn
from cdc.wal.frames import Frame, PrimaryKeepalive, parse, standby_status_update

FRAMES_MAX: Final = 10_000
FRAME_BYTES_MAX: Final = 1 << 20
"""A call of read returns once it has this much, so that status updates stay on time."""

ASK_AFTER_S: Final = 10.0
"""An idle server that hears from us has no reason to speak: after this long it is asked to."""
SILENCE_S_MAX: Final = 60.0
_LOW_WATER_BYTES: Final = 64 << 10
_LOW_WATER_WAIT_S: Final = 0.005
"""How long rows may wait in a socket that fills slower than we judged."""
_BUSY_BYTES_PER_S: Final = 4 << 20
_JUDGE_S: Final = 0.02
_CLOSE_S: Final = 2.0
_LOOKS_MAX: Final = 2
"""libpq may keep decrypted bytes that the socket doesn't show: look this often before waiting."""

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
        self._pgconn = pgconn
        self._slot = slot
        self._publication = publication
        self._interval_s = status_interval_s
        self._clock = clock
        self._where = place(pgconn)
        self._received = Lsn(0)
        self._flushed = Lsn(0)
        self._sent_at = clock()
        self._reply_requested = False
        self._silent_s = 0.0
        self._warning = ""
        self._tcp = _tcp_socket(pgconn)
        self._patient = False
        self._judged_at = clock()
        self._judged_bytes = 0

    @classmethod
    def start(
        cls,
        pgconn: PGconn,
        slot: str,
        publication: str,
        *,
        status_interval_ms: int = 2_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """START_REPLICATION from where the slot stands; raises SlotInUseError with the pid."""
        stream = cls(pgconn, slot, publication, status_interval_ms / 1000, clock)
        pgconn.notice_handler = stream._notice
        with explained(pgconn):
            result = pgconn.exec_(_start_command(pgconn.server_version, slot, publication).encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            stream._raise_not_started(result)
        pgconn.nonblocking = 1
        return stream

    def read(self, timeout_s: float) -> list[Frame]:
        """The frames that have arrived; an empty list when the time is over and none came."""
        deadline = self._clock() + timeout_s
        while True:
            frames = self._drain()
            if frames:
                self._silent_s = 0.0
                return frames
            now = self._clock()
            left = deadline - now
            if left <= 0:
                return []
            wait_s = min(left, _LOW_WATER_WAIT_S) if self._patient else left
            if wait_readable(self._pgconn, wait_s):
                self._silent_s = 0.0
            else:
                self._set_patient(patient=False)
                self._bear_silence(self._clock() - now)

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

    def close(self) -> None:
        """End the stream so that the server has processed our last status update."""
        if self._tcp is not None:
            self._tcp.close()
            self._tcp = None
        with contextlib.suppress(psycopg.Error, MillraceError, OSError):
            if self._pgconn.status == pq.ConnStatus.OK:
                self._end_copy()
        self._pgconn.finish()

    def _end_copy(self) -> None:
        deadline = self._clock() + _CLOSE_S
        self._pgconn.put_copy_end()
        while self._clock() < deadline:
            self._pgconn.flush()
            size, _ = self._pgconn.get_copy_data(1)
            if size < 0:
                return
            if size == 0:
                wait_readable(self._pgconn, 0.1)

    def _drain(self) -> list[Frame]:
        """Every whole frame that libpq and the socket have, up to the limits."""
        frames: list[Frame] = []
        take = self._pgconn.get_copy_data
        size_total = looks = 0
        while size_total < FRAME_BYTES_MAX and len(frames) < FRAMES_MAX:
            try:
                size, data = take(1)
            except psycopg.Error as error:
                raise self._disconnected(str(error)) from error
            if size > 0:
                frames.append(parse(data))
                size_total += size
                looks = 0
            elif size < 0:
                self._raise_ended()
            elif looks < _LOOKS_MAX:
                looks += 1
                self._consume()
            else:
                break
        if self._warning:
            raise self._unpublished(self._warning)
        self._note(frames)
        self._judge(size_total)
        return frames

    def _bear_silence(self, waited_s: float) -> None:
        """Count the time in which we listened and nothing came; ask for a word, or give up."""
        asked = self._silent_s // ASK_AFTER_S
        self._silent_s += waited_s
        if self._silent_s >= SILENCE_S_MAX:
            raise self._disconnected(f"nothing came for {SILENCE_S_MAX:.0f} s")
        if self._silent_s // ASK_AFTER_S > asked:
            self._send(reply_requested=True)

    def _note(self, frames: list[Frame]) -> None:
        """Remember how far the server is, and whether it wants to hear from us."""
        for frame in frames:
            if isinstance(frame, PrimaryKeepalive):
                self._received = max(self._received, frame.wal_end)
                self._reply_requested |= frame.reply_requested
        if frames and not isinstance(frames[-1], PrimaryKeepalive):
            self._received = max(self._received, frames[-1].start)

    def _judge(self, size: int) -> None:
        """Decide by the rate of arrival whether waiting for more at once pays."""
        if self._tcp is None:
            return
        self._judged_bytes += size
        now = self._clock()
        elapsed = now - self._judged_at
        if elapsed >= _JUDGE_S:
            self._set_patient(patient=self._judged_bytes >= _BUSY_BYTES_PER_S * elapsed)
            self._judged_at = now
            self._judged_bytes = 0

    def _set_patient(self, *, patient: bool) -> None:
        if self._tcp is None or patient == self._patient:
            return
        low_water = _LOW_WATER_BYTES if patient else 1
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
        self._patient = patient

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._disconnected(str(error)) from error

    def _send(self, *, reply_requested: bool = False) -> None:
        if not self._flush():
            return
        now_us = time.time_ns() // 1_000
        update = standby_status_update(
            self._flushed, self._received, now_us, reply_requested=reply_requested
        )
        try:
            self._pgconn.put_copy_data(update)
        except psycopg.Error as error:
            raise self._disconnected(str(error)) from error
        self._sent_at = self._clock()
        self._reply_requested = False
        self._flush()

    def _flush(self) -> bool:
        """Send what can be sent without blocking; returns whether that was all."""
        try:
            return self._pgconn.flush() == 0
        except psycopg.Error as error:
            raise self._disconnected(str(error)) from error

    def _notice(self, notice: PGresult) -> None:
        """From PostgreSQL 18 on, a publication that is missing is only warned about."""
        if result_sqlstate(notice) == _NOT_IN_PREREQUISITE_STATE:
            self._warning = result_text(notice)

    def _unpublished(self, text: str) -> PublicationError:
        return PublicationError(
            text,
            where=self._where,
            remedy="the slot decodes with the publications of the change's time: if"
            f" {self._publication} was dropped, create it anew as it was, then drop the slot"
            " (`millrace drop --yes`) and capture again under another topic.prefix",
        )

    def _disconnected(self, text: str) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"the replication connection was lost: {' '.join(text.split())}",
            where=self._where,
            remedy="check the server and the network in between; the slot keeps what comes after",
        )

    def _raise_ended(self) -> NoReturn:
        """The server ended the stream: say why."""
        try:
            result = self._pgconn.get_result()
        except psycopg.Error as error:
            raise self._disconnected(str(error)) from error
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            raise self._disconnected("the server ended the stream")
        sqlstate, text = result_sqlstate(result), result_text(result)
        if sqlstate is None:
            raise self._disconnected(text)
        if sqlstate == _UNDEFINED_OBJECT:
            raise self._unpublished(text)
        self._raise_slot_failure(result)

    def _raise_not_started(self, result: PGresult) -> NoReturn:
        sqlstate, text = result_sqlstate(result), result_text(result)
        if sqlstate == _OBJECT_IN_USE:
            pid = re.search(r"\bPID (\d+)|(\d+)\D*\Z", text)
            number = int(pid[1] or pid[2]) if pid else None
            raise slots.in_use(self._slot, number, self._where)
        if sqlstate == _UNDEFINED_OBJECT:
            raise slots.lost(self._slot, "the slot doesn't exist any more", self._where)
        self._raise_slot_failure(result)

    def _raise_slot_failure(self, result: PGresult) -> NoReturn:
        sqlstate, text = result_sqlstate(result), result_text(result)
        if sqlstate == _NOT_IN_PREREQUISITE_STATE and "wal_level" in text:
            raise SourceSettingError(
                text,
                where=self._where,
                remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
            )
        if sqlstate in {_NOT_IN_PREREQUISITE_STATE, _UNDEFINED_FILE}:
            raise slots.lost(self._slot, text, self._where)
        raise_result(result, self._where)


def _start_command(server_version: int, slot: str, publication: str) -> str:
    protocol = next(v for since, v in _PROTOCOL_VERSIONS if server_version >= since)
    names = '"' + publication.replace('"', '""') + '"'
    literal = "'" + names.replace("'", "''") + "'"
    return (
        f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0'
        f" (proto_version '{protocol}', publication_names {literal}, messages 'true')"
    )


def _tcp_socket(pgconn: PGconn) -> socket.socket | None:
    """A second descriptor of the connection's socket, for its options; None unless it is TCP."""
    duplicate = socket.socket(fileno=os.dup(pgconn.socket))
    if duplicate.family in {socket.AF_INET, socket.AF_INET6} and hasattr(socket, "SO_RCVLOWAT"):
        return duplicate
    duplicate.close()
    return None
