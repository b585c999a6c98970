"""Transactions that arrive in progress → at their commit, the same as sent whole.

PostgreSQL sends a large transaction in blocks, between those of others, once it is too large for
logical_decoding_work_mem, so that it needn't keep it. This module keeps each one as plain messages:
in memory up to a common limit, then on disk. At its commit it becomes Begin, messages and Commit,
in the order of commits. So its reader sees no blocks, and counts the same messages as if it were
sent whole. docs/decisions/0010-in-progress.md

The files have no names: the system frees them when they are closed, or this process has died. So
nothing is ever read that an earlier process left, and the slot sends it all again.
https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

import errno
import os
import resource
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from cdc.compiled import fast
from cdc.errors import ConfigError, CorruptMessageError, SpillError, UnclearMessagesError
from cdc.faults import FaultPoint, reach
from cdc.records.position import Lsn
from cdc.wal.frames import (
    COPY_DATA_BYTES,
    POSTGRES_EPOCH_US,
    XLogData,
    copy_data,
    copy_data_end,
    keepalive,
)
from cdc.wal.messages import StreamAbort, StreamCommit, StreamStart

_BEGIN: Final = struct.Struct(">cQqI")
_COMMIT: Final = struct.Struct(">cBQQq")
_XIDS: Final = 1 << 32
READ_BYTES: Final = 256 << 10
_FILES: Final = 65_536
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FIRST_CHOICES: Final = ("TMPDIR", "TEMP", "TMP")
Shortened = Callable[[bytes, int], bytes | None]
"""A logical message's CopyData payload and its size → the part to keep. None: all of it."""


def spill_directory(configured: Path | None) -> Path:
    """Return the directory of the files: configured, from the environment, or /var/tmp.

    /tmp may be memory, which the files must save.
    """
    named = next((value for name in _FIRST_CHOICES if (value := os.environ.get(name))), None)
    return configured or Path(named or "/var/tmp")  # noqa: S108 (its files have no names)


def check_spill(directory: Path) -> None:
    """Raise ConfigError if no file can be created. Allow this process many of them.

    A full disk may have room when it is needed; if it hasn't, the daemon waits for room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems report no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    try:
        with tempfile.TemporaryFile(dir=directory):
            return
    except OSError as error:
        if error.errno in _FULL:
            return
        raise ConfigError(
            f"can't create a file for transactions too large for memory: {error.strerror}",
            where=f"spill.directory: {directory}",
            remedy="choose a directory that the daemon can write to",
        ) from None


class InProgress:
    """The open transactions of a stream, which share ``memory_bytes``."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._transactions: dict[int, _OpenTransaction] = {}
        self._current: _OpenTransaction | None = None
        self.in_memory = 0
        """Bytes that are kept in memory."""

    @property
    def is_inside(self) -> bool:
        """Whether the stream is between the start of a block and its stop."""
        return self._current is not None

    def start(self, message: StreamStart, lsn: Lsn) -> None:
        """Enter a block. ``lsn`` is the place of its first change in the WAL."""
        open_transaction = self._transactions.get(message.xid)
        if self.is_inside or (open_transaction is None) != message.first_segment:
            raise CorruptMessageError("Stream Start out of order", where=f"LSN {lsn}")
        if open_transaction is None:
            open_transaction = _OpenTransaction(message.xid, lsn, self._directory)
            self._transactions[message.xid] = open_transaction
        self._current = open_transaction

    def keep(
        self,
        data: bytearray,
        start: int,
        end: int,
        frame: Callable[[bytes], object],
        shortened: Shortened | None = None,
    ) -> int:
        """Keep messages up to the end of the block. ``frame`` takes the payloads of all others.

        Keeps the shortened form of logical messages. Returns the place of the first unprocessed
        message.
        """
        while self.is_inside:
            start = self.take(data, start, end, shortened)
            stop = copy_data_end(data, start, end)
            if stop == start:
                break
            frame(bytes(data[start + COPY_DATA_BYTES : stop]))
            start = stop
        return start

    def take(
        self, data: bytearray, start: int, end: int, shortened: Shortened | None = None
    ) -> int:
        """Keep the block's messages from ``start`` on. Return the place of the first other one.

        Raise SpillError if they fit neither into memory nor onto the disk.
        """
        assert self._current is not None, "outside of a block"  # noqa: S101
        before = self._current.kept.in_memory
        used = self._current.take(data, start, end, shortened)
        self.in_memory += self._current.kept.in_memory - before
        if self.in_memory > self._memory_bytes:
            self._make_room()
        return used

    def _make_room(self) -> None:
        """Move the largest to disk, until half of the memory is free: there may be thousands."""
        by_size = sorted(
            self._transactions.values(), key=lambda transaction: -transaction.kept.in_memory
        )
        for largest in by_size:
            self.in_memory -= largest.kept.in_memory
            largest.kept.to_disk()
            reach(FaultPoint.SPILLED)
            if self.in_memory <= self._memory_bytes // 2:
                return

    def set_origin(self, frame: XLogData) -> None:
        """Keep the Origin message, which has no xid, even in a block."""
        assert self._current is not None, "outside of a block"  # noqa: S101
        self._current.origin = copy_data(frame.start, frame.payload)

    def stop(self) -> None:
        """Leave the block."""
        if self._current is None:
            raise CorruptMessageError("Stream Stop without a start")
        self._current = None

    def abort(self, message: StreamAbort) -> None:
        """Discard a transaction that was rolled back, or one of its subtransactions."""
        open_transaction = self._transactions.get(message.xid)
        if open_transaction is None:
            return  # nothing of it is kept
        self.in_memory -= open_transaction.kept.in_memory
        if message.subxid != message.xid:
            open_transaction.abort(message.subxid)
            self.in_memory += open_transaction.kept.in_memory
            return
        open_transaction.kept.close()
        del self._transactions[message.xid]

    def commit(self, message: StreamCommit, lsn: Lsn) -> Iterator[bytes]:
        """Yield all of a transaction, as CopyData messages cut anywhere. ``lsn``: Commit's.

        Raise UnclearMessagesError, at the first piece, if it must be read as a whole.
        """
        open_transaction = self._transactions.pop(message.xid, None)
        if open_transaction is None or self.is_inside:
            raise CorruptMessageError("Stream Commit out of order", where=f"LSN {lsn}")
        self.in_memory -= open_transaction.kept.in_memory
        return open_transaction.whole(message, lsn)

    def close(self) -> None:
        """Release files and memory, as the slot has all of it."""
        for transaction in self._transactions.values():
            transaction.kept.close()
        self._transactions.clear()
        self._current = None
        self.in_memory = 0


class Committed:
    """A transaction that came in blocks. ``buffer[start:]`` isn't translated yet."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.buffer = bytearray()
        self.start = 0

    def fill(self) -> bool:
        """Load a whole message into the buffer. Return whether there is one."""
        while copy_data_end(self.buffer, self.start, len(self.buffer)) == self.start:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            del self.buffer[: self.start]
            self.start = 0
            self.buffer += piece
        return True


class Spilled:
    """One transaction's bytes, in order: first those in its file, then those in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._on_disk = 0
        self._memory = bytearray()

    @property
    def in_memory(self) -> int:
        """The number of bytes in memory."""
        return len(self._memory)

    @property
    def size(self) -> int:
        """The total number of bytes."""
        return self._on_disk + self.in_memory

    def append(self, piece: bytes) -> None:
        """Add bytes, in memory."""
        self._memory += piece

    def to_disk(self) -> None:
        """Move the bytes in memory to the file. Raise SpillError if the disk refuses them."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            while self._memory:
                written = os.pwrite(self._file.fileno(), self._memory, self._on_disk)
                self._on_disk += written
                del self._memory[:written]
        except OSError as error:
            raise self._failed(error) from error

    def truncate(self, size: int) -> None:
        """Discard everything behind the first ``size`` bytes."""
        del self._memory[max(0, size - self._on_disk) :]
        if size < self._on_disk and self._file is not None:
            self._file.truncate(size)
            self._on_disk = size

    def read(self) -> Iterator[bytes]:
        """Yield all bytes in pieces, once, and release what was read. Raises SpillError."""
        offset = 0
        while self._file is not None and offset < self._on_disk:
            try:
                piece = os.pread(self._file.fileno(), READ_BYTES, offset)
            except OSError as error:
                raise self._failed(error) from error
            if not piece:
                raise self._failed(OSError(0, "the file is shorter than what was written"))
            offset += len(piece)
            yield piece
        while self._memory:
            piece = bytes(self._memory[:READ_BYTES])
            del self._memory[:READ_BYTES]
            yield piece
        self.close()

    def close(self) -> None:
        """Release file and memory."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._memory.clear()
        self._on_disk = 0

    def _failed(self, error: OSError) -> SpillError:
        few = error.errno in {errno.EMFILE, errno.ENFILE}
        remedy = "free some space, or choose another directory"
        return SpillError(
            f"can't keep a transaction too large for memory on disk: {error.strerror}",
            where=f"spill.directory: {self._directory}, at {self._on_disk:,} bytes of it",
            remedy="raise the limit of open files, or spill.memory.bytes" if few else remedy,
        )


class _OpenTransaction:
    """An open transaction: its messages, and the offsets at which subtransactions begin.

    Subtransactions nest, and a parent's xid is smaller than its children's. So a message with a
    smaller xid shows that those with greater ones have ended inside it: they can only be rolled
    back together with it. ``_xids`` are those without a known end, each with the offset from which
    everything belongs to it or its children. Both lists grow together. Xids count from the
    transaction's own, since they wrap around at 2³².

    Logical messages don't name their subtransaction. Those before a subtransaction that is rolled
    back may belong to it. Then it is unknown what was committed (``_is_unclear``).
    """

    def __init__(self, xid: int, lsn: Lsn, directory: Path) -> None:
        self._xid = xid
        self._lsn = lsn
        self.kept = Spilled(directory)
        self.origin = b""
        self._last_xid: int | None = None
        self._xids = array("I")
        self._offsets = array("Q")
        self._xids_after_message = array("B")
        self._after_message = self._is_unclear = False
        self._relations: dict[bytes, tuple[int, bytes]] = {}

    def take(self, data: bytearray, start: int, end: int, shortened: Shortened | None) -> int:
        used, messages, switches, relations, after = fast.plain_messages(
            data, start, end, self._last_xid, self._after_message, shortened
        )
        size = self.kept.size
        for xid, offset, after_message in switches:
            self._last_xid = xid
            self._enter(xid, size + offset, after_message)
        self._after_message = after
        for offset, length in relations:
            message = messages[offset : offset + length]
            oid = _relation_oid(message)
            # The server may repeat it after each rollback; the first one is enough.
            if oid not in self._relations or _payload(self._relations[oid][1]) != _payload(message):
                self._relations[oid] = size + offset, message
        if messages:
            self.kept.append(messages)
        return used

    def _enter(self, xid: int, offset: int, after_message: bool) -> None:
        """Record that messages of a (sub)transaction begin at an offset."""
        xid = (xid - self._xid) % _XIDS
        number = bisect_left(self._xids, xid)
        if number < len(self._xids):
            offset, after_message = self._offsets[number], bool(self._xids_after_message[number])
        self._leave(number)
        self._xids.append(xid)
        self._offsets.append(offset)
        self._xids_after_message.append(after_message)

    def _leave(self, number: int) -> None:
        del self._xids[number:], self._offsets[number:], self._xids_after_message[number:]

    def abort(self, xid: int) -> None:
        """Discard a subtransaction's messages, if any, and its children's."""
        xid = (xid - self._xid) % _XIDS
        number = bisect_left(self._xids, xid)
        if number == len(self._xids) or self._xids[number] != xid:
            self._is_unclear = self._is_unclear or self._after_message
            return
        offset, self._after_message = self._offsets[number], bool(self._xids_after_message[number])
        self._is_unclear = self._is_unclear or self._after_message
        self._leave(number)
        self.kept.truncate(offset)
        self._last_xid = None
        # The server sends a relation once per transaction, even if that savepoint is rolled back.
        for oid, (at, message) in self._relations.items():
            if at >= offset:
                self._relations[oid] = self.kept.size, message
                self.kept.append(message)

    def whole(self, message: StreamCommit, lsn: Lsn) -> Iterator[bytes]:
        if self._is_unclear:
            raise UnclearMessagesError(
                "logical messages of a large transaction may be from a savepoint that was rolled"
                " back",
                where=f"xid {message.xid}, LSN {message.commit_lsn}",
                remedy="none: the daemon reads the whole transaction again",
            )
        if not self._xids and not self._after_message:  # sent whole, it wouldn't be sent at all
            yield from self.kept.read()
            yield keepalive(message.end_lsn)
            return
        commit_us = message.commit_ts_us - POSTGRES_EPOCH_US
        yield copy_data(self._lsn, _BEGIN.pack(b"B", message.commit_lsn, commit_us, message.xid))
        yield self.origin
        yield from self.kept.read()
        commit = _COMMIT.pack(b"C", 0, message.commit_lsn, message.end_lsn, commit_us)
        yield copy_data(lsn, commit)


def _payload(message: bytes) -> bytes:
    return message[30:]


def _relation_oid(message: bytes) -> bytes:
    return message[31:35]
