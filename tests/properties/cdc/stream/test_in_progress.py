"""Transactions in blocks, with some subtransactions rolled back → the committed messages.

A random program of nested subtransactions is cut into blocks, as by a server. The commit returns
the messages of those that weren't rolled back, in their order.
"""

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled import fast
from cdc.errors import UnclearMessagesError
from cdc.records.position import Lsn, Origin
from cdc.stream.in_progress import InProgress
from cdc.wal.decoder import decode
from cdc.wal.frames import COPY_DATA_BYTES, XLogData, copy_data, copy_data_end, parse
from cdc.wal.messages import (
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
)
from tests.fixtures import wal_bytes as wal
from tests.fixtures.stream_model import plain_messages

RELATION = wal.u32(7) + b"public\0t\0d" + struct.pack(">H", 0)


class Program:
    """A transaction's run: messages to be streamed, aborts between them, and what remains."""

    def __init__(self, random: Random, top: int, *, notes: bool) -> None:
        self.top = top
        self._notes = notes
        self._announced = False
        self._random = random
        self._next_xid = top + random.choice((1, 1, 5))
        self._numbers = 0
        self.events: list[tuple[str, int, bytes]] = []
        """('I', xid, message) or ('A', xid, b'')"""
        self.left: list[int] = []
        self._body(top, depth=0)

    def _body(self, xid: int, depth: int) -> list[int]:
        """Run a (sub)transaction; returns the xids that end with it."""
        mine = [xid]
        for _ in range(self._random.randint(0, 5)):
            if depth < 4 and self._random.random() < 0.5:
                sub = self._next_xid % 2**32
                self._next_xid += 1
                before = len(self.left)
                ended = self._body(sub, depth + 1)
                if self._random.random() < 0.4:
                    del self.left[before:]
                    # Children first, as the server does.
                    self.events += [("A", one, b"") for one in sorted(ended, reverse=True)]
                else:
                    mine += ended
            else:
                self._numbers += 1
                self.left.append(self._numbers)
                number = str(self._numbers).encode()
                if self._notes and self._random.random() < 0.2:
                    note = b"\1" + wal.u64(5) + b"p\0" + wal.sized(number)
                    message = b"M" + wal.u32(self.top) + note
                else:
                    if not self._announced:
                        self._announced = True
                        self.events.append(("I", xid, b"R" + wal.u32(xid) + RELATION))
                    message = b"I" + wal.u32(xid) + wal.u32(7) + b"N" + wal.row([number])
                self.events.append(("I", xid, message))
        return mine


def numbers(message: Message) -> list[int]:
    match message:
        case LogicalMessage():
            return [int(message.content)]
        case Insert(new=(bytes(text),)):
            return [int(text)]
        case _:
            return []


def messages(pieces: list[bytes]) -> list[Message]:
    data = bytearray(b"".join(pieces))
    found, start = [], 0
    while (stop := copy_data_end(data, start, len(data))) != start:
        frame = parse(bytes(data[start + COPY_DATA_BYTES : stop]))
        if isinstance(frame, XLogData):
            found.append(decode(frame.payload))
        start = stop
    assert start == len(data)
    return found


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 3),
    st.sampled_from([0, 200, 1 << 20]),
    st.sampled_from([1, 1_000, 2**32 - 3]),
    st.booleans(),
)
def test_what_is_left_at_the_commit_is_what_was_not_rolled_back(
    tmp_path_factory: pytest.TempPathFactory,
    random: Random,
    count: int,
    memory_bytes: int,
    top: int,
    notes: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    open_ones = InProgress(folder, memory_bytes)
    tops = [(top + 100 * number) % 2**32 for number in range(count)]
    running = [Program(random, one, notes=notes) for one in tops]
    programs = {program.top: program for program in running}
    started: set[int] = set()
    while programs:
        program = programs[random.choice(sorted(programs))]
        open_ones.start(StreamStart(program.top, program.top not in started), Lsn(1))
        started.add(program.top)
        block = bytearray()
        for _ in range(random.randint(0, 6)):
            if not program.events or program.events[0][0] == "A":
                break
            block += copy_data(Lsn(9), program.events.pop(0)[2])
        used = 0
        while used < len(block):
            more = random.randint(1, len(block))
            used = open_ones.take(block, used, min(len(block), used + 40 + more))
        open_ones.stop()
        while program.events and program.events[0][0] == "A":
            open_ones.abort(StreamAbort(program.top, program.events.pop(0)[1]))
        if not program.events:
            del programs[program.top]
            pieces = open_ones.commit(StreamCommit(program.top, Lsn(5), Lsn(6), 7), Lsn(5))
            try:
                found = messages(list(pieces))
            except UnclearMessagesError:
                assert notes
                continue
            if not program.left:
                assert not any(isinstance(message, Begin | Commit) for message in found)
                continue
            begin, *rest, commit = found
            assert begin == Begin(Lsn(5), 7, program.top)
            assert commit == Commit(Lsn(5), Lsn(6), 7)
            assert [number for message in rest for number in numbers(message)] == program.left
            kinds = [type(message) for message in rest]
            assert Insert not in kinds or Relation in kinds[: kinds.index(Insert)]
    assert open_ones.in_memory == 0


def test_a_relation_that_came_in_a_part_rolled_back_is_kept(tmp_path: Path) -> None:
    open_ones = InProgress(tmp_path, 1 << 20)
    open_ones.start(StreamStart(1, first_segment=True), Lsn(1))
    row = wal.u32(7) + b"N" + wal.row([])
    parts = (b"R" + wal.u32(2) + RELATION, b"I" + wal.u32(2) + row)
    data = bytearray(b"".join(copy_data(Lsn(2), part) for part in parts))
    open_ones.take(data, 0, len(data))
    open_ones.stop()
    open_ones.abort(StreamAbort(1, 2))
    open_ones.start(StreamStart(1, first_segment=False), Lsn(1))
    data = bytearray(copy_data(Lsn(3), b"I" + wal.u32(3) + row))
    open_ones.take(data, 0, len(data))
    open_ones.stop()
    found = messages(list(open_ones.commit(StreamCommit(1, Lsn(5), Lsn(6), 7), Lsn(5))))
    assert [type(message) for message in found] == [Begin, Relation, Insert, Commit]


def test_parts_that_are_rolled_back_leave_nothing_however_many_there_are(tmp_path: Path) -> None:
    open_ones = InProgress(tmp_path, 1 << 20)
    sizes = set()
    for number in range(20):
        open_ones.start(StreamStart(1, first_segment=number == 0), Lsn(1))
        xid = wal.u32(2 + number)
        parts = (b"R" + xid + RELATION, b"I" + xid + wal.u32(7) + b"N" + wal.row([]))
        data = bytearray(b"".join(copy_data(Lsn(number), part) for part in parts))
        open_ones.take(data, 0, len(data))
        open_ones.stop()
        open_ones.abort(StreamAbort(1, 2 + number))
        sizes.add(open_ones.in_memory)
    assert len(sizes) == 1


def test_an_origin_is_the_whole_transactions(tmp_path: Path) -> None:
    open_ones = InProgress(tmp_path, 0)
    row = wal.u32(7) + b"N" + wal.row([])
    for top in (1, 5):
        open_ones.start(StreamStart(top, first_segment=True), Lsn(1))
        origin = b"O" + wal.u64(0) + b"elsewhere\0"
        open_ones.set_origin(XLogData(Lsn(2), origin))
        data = bytearray(copy_data(Lsn(2), b"I" + wal.u32(top + 1) + row))
        open_ones.take(data, 0, len(data))
        open_ones.stop()
    open_ones.abort(StreamAbort(5, 6))

    def committed(top: int) -> list[type[Message]]:
        pieces = open_ones.commit(StreamCommit(top, Lsn(5), Lsn(6), 7), Lsn(5))
        return [type(message) for message in messages(list(pieces))]

    assert committed(1) == [Begin, Origin, Insert, Commit]
    assert committed(5) == []


@given(st.binary(max_size=80), st.lists(st.integers(0, 7), max_size=6), st.data())
def test_a_block_is_taken_as_the_model_takes_it(
    junk: bytes, kinds: list[int], data: st.DataObject
) -> None:
    made = bytearray()
    for kind in kinds:
        letter = b"IUDRYTMS"[kind : kind + 1]
        size = data.draw(st.integers(0, 40))
        made += copy_data(Lsn(4), letter + wal.u32(data.draw(st.integers(1, 3))) + bytes(size))
    made += junk
    start = data.draw(st.integers(0, len(made)))
    end = data.draw(st.integers(start, len(made)))
    last = data.draw(st.sampled_from([None, 1, 2]))
    after = data.draw(st.booleans())
    found = fast.plain_messages(made, start, end, last, after, None)
    assert found == plain_messages(made, start, end, last, after)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=8), st.integers(0, 400))
def test_of_a_logical_message_what_is_left_is_taken(
    made: list[tuple[bool, int]], left_bytes: int
) -> None:
    """Unless it is larger, or no message at all."""
    letters = [
        (b"M" if is_message else b"I") + wal.u32(1) + bytes(size) for is_message, size in made
    ]
    given_ones = [copy_data(Lsn(4), letter) for letter in letters]
    left = (
        given_ones[0][COPY_DATA_BYTES : COPY_DATA_BYTES + 30] + bytes(left_bytes) if made else b""
    )
    expected = b""
    for message in given_ones:
        payload = message[COPY_DATA_BYTES:]
        if payload[25:26] == b"M" and len(left) <= len(payload):
            payload = left
        payload = payload[:26] + payload[30:]
        expected += b"d" + (len(payload) + 4).to_bytes(4) + payload
    whole_block = bytearray(b"".join(given_ones))
    used, messages, *_ = fast.plain_messages(
        whole_block, 0, len(whole_block), None, False, lambda _payload, _size: left
    )
    assert (used, messages) == (len(whole_block), expected)
