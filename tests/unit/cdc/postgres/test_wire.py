"""Answers that break the protocol → an error, and never memory of a size that they claim."""

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

from cdc.postgres.failures import RefusedError
from cdc.postgres.wire import BUFFER_BYTES, PlainWire
from cdc.wal.frames import copy_data_end

GIGABYTE = 1 << 30


class Connection:
    """libpq's side: a descriptor, and whether it was closed."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours
        self.socket = ours.fileno()

    def finish(self) -> None:
        self._ours.close()


@pytest.fixture
def ends() -> Iterator[tuple[PlainWire, socket.socket]]:
    ours, server = socket.socketpair()
    wire = PlainWire(cast("Any", Connection(ours)), lambda *_: None)
    yield wire, server
    server.close()
    wire.drop()


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def receive(wire: PlainWire, server: socket.socket, data: bytes) -> list[bytes]:
    """Send it all; returns the CopyData that were whole, as the daemon takes them."""
    found, view = [], memoryview(data)
    while view:
        sent = server.send(view[: 64 << 10])
        view = view[sent:]
        while sent:
            sent -= wire.fill()
            while (stop := copy_data_end(wire.buffer, wire.start, wire.end)) != wire.start:
                found.append(bytes(wire.buffer[wire.start + 5 : stop]))
                wire.start = stop
        wire.control()
    return found


def test_messages_of_any_size_come_out_as_they_were_sent(
    ends: tuple[PlainWire, socket.socket],
) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate((0, 3 << 20, 1, 900_000, 5))]
    bodies += [bytes([number]) * 200_000 for number in range(20)]
    data = b"".join(message(b"d", body) for body in bodies)
    assert receive(*ends, data) == bodies


def test_the_buffer_is_small_again_after_a_large_message(
    ends: tuple[PlainWire, socket.socket],
) -> None:
    wire, server = ends
    large = message(b"d", bytes(9 << 20))
    assert len(receive(wire, server, large + message(b"d", b"begun")[:-1])) == 1
    server.send(b"n")
    wire.fill()
    assert len(wire.buffer) == BUFFER_BYTES


def test_a_length_is_believed_as_far_as_bytes_have_come(
    ends: tuple[PlainWire, socket.socket],
) -> None:
    wire, server = ends
    receive(wire, server, b"d" + struct.pack(">I", GIGABYTE) + bytes(100_000))
    assert len(wire.buffer) == BUFFER_BYTES
    receive(wire, server, bytes(3 << 20))
    assert len(wire.buffer) < 4 * (3 << 20)


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, 30 << 20])
def test_what_has_replaced_a_message_is_all_that_comes_of_it(
    ends: tuple[PlainWire, socket.socket], size: int
) -> None:
    wire, server = ends
    bodies = [b"before", b"L" * size, b"behind", b"R" * size, b"L" * size, b"last"]
    found, view, largest = list[bytes](), memoryview(b"".join(message(b"d", b) for b in bodies)), 0
    while view:
        view = view[server.send(view[:50_000]) :]
        while wire.fill():
            while (stop := copy_data_end(wire.buffer, wire.start, wire.end)) != wire.start:
                found.append(bytes(wire.buffer[wire.start + 5 : stop]))
                wire.start = stop
            if (begun := wire.begun()) is not None and begun[0].startswith(b"L"):
                assert begun[1] == size
                wire.replace(b"left")
                largest = max(largest, len(wire.buffer))
    assert found == [b"before", b"left", b"behind", b"R" * size, b"left", b"last"]
    assert largest <= max(BUFFER_BYTES, 3 * size)


@pytest.mark.parametrize("length", [0, 3, GIGABYTE + 1, 0xFFFF_FFFF])
@pytest.mark.parametrize("kind", [b"d", b"N"])
def test_a_length_that_cannot_be_is_an_error(
    ends: tuple[PlainWire, socket.socket], kind: bytes, length: int
) -> None:
    with pytest.raises(RefusedError, match="isn't PostgreSQL's protocol"):
        receive(*ends, kind + struct.pack(">I", length) + b"text")


@pytest.mark.parametrize("answer", [message(b"d", b"row"), message(b"Z", b"I")])
def test_an_answer_that_does_not_begin_the_stream_is_an_error(
    ends: tuple[PlainWire, socket.socket], answer: bytes
) -> None:
    wire, server = ends
    server.send(answer)
    with pytest.raises(RefusedError, match="didn't begin"):
        wire.begin("START_REPLICATION")


def test_any_text_of_a_notice_is_taken(ends: tuple[PlainWire, socket.socket]) -> None:
    receive(*ends, message(b"N", b"") + message(b"N", b"\xff\0M\xfe\0") + message(b"x", b"?"))


def test_dropping_closes_both_descriptors() -> None:
    ours, server = socket.socketpair()
    wire = PlainWire(cast("Any", Connection(ours)), lambda *_: None)
    copied = wire.socket.fileno()
    wire.drop()
    for descriptor in (copied, ours.fileno()):
        with pytest.raises((OSError, ValueError)):
            os.fstat(descriptor)
    server.close()
