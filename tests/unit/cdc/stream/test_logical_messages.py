"""Logical messages that have arrived in part → their replacement, with any prefix."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.events.metadata import MessageEvents
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.orders import DEAD_LETTER_ORDERS
from cdc.records.position import Lsn
from cdc.settings.modes import Patterns
from cdc.stream.in_progress import InProgress
from cdc.stream.logical_messages import LEFT_OUT, OWN, LogicalMessages
from cdc.wal.decoder import decode
from cdc.wal.frames import XLOG_HEADER_BYTES
from cdc.wal.messages import LogicalMessage, StreamCommit, StreamStart


class Limits:
    """Topics that take so many bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def bytes_max(self, _topic: str) -> int:
        return self._limit

    def refused(self, _records: object, _position: object) -> None:
        return None

    def count_message(self, _reason: str) -> None: ...


HEADER = b"w" + struct.pack(">QQq", 700, 800, 0)
XID = struct.pack(">I", 77)
BEGUN_BYTES = 4_000


def payload(prefix: bytes, content: bytes, *, in_block: bool) -> bytes:
    lsn = struct.pack(">BQ", 1, 700)
    length = struct.pack(">I", len(content))
    return HEADER + b"M" + (XID if in_block else b"") + lsn + prefix + b"\0" + length + content


def shortened(prefix: bytes, content: bytes, *, in_block: bool = False) -> LogicalMessage | None:
    """What is left of a message, by a daemon that was asked for those of ``app``."""
    rules = EventRules(message_prefix_include=Patterns(("app",)))
    events = MessageEvents(rules, LogContext("pre", "shop", 1, compacted=False))
    in_progress = cast("InProgress", SimpleNamespace(is_inside=in_block))
    messages = LogicalMessages(events, PLAIN, Limits(20_000), in_progress)
    whole = payload(prefix, content, in_block=in_block)
    left = messages.shortened(whole[:BEGUN_BYTES], len(whole))
    if left is None:
        return None
    message = left[XLOG_HEADER_BYTES:]
    made = decode(message[:1] + message[1 + len(XID) :] if in_block else message)
    assert left[:XLOG_HEADER_BYTES] == HEADER
    assert isinstance(made, LogicalMessage)
    return made


@pytest.mark.parametrize("in_block", [False, True])
@given(prefix=st.binary(max_size=2 * BEGUN_BYTES).filter(lambda prefix: b"\0" not in prefix))
def test_whatever_the_prefix_what_is_left_is_a_message(prefix: bytes, *, in_block: bool) -> None:
    left = shortened(prefix, bytes(9_000), in_block=in_block)
    assert (left is None) == (prefix.lower() == b"app")
    if left is not None:
        assert (left.transactional, left.lsn, left.content) == (True, 700, b"")
        assert left.prefix == (LEFT_OUT if prefix.decode(errors="replace") not in OWN else prefix)


@pytest.mark.parametrize("prefix", sorted(OWN))
def test_our_own_prefixes_stay_so_that_they_count_as_before(prefix: str) -> None:
    left = shortened(prefix.encode(), bytes(9_000))
    assert left is not None
    assert left.prefix == prefix


def test_one_that_is_wanted_is_left_whole_as_far_as_its_topic_takes_it() -> None:
    assert shortened(b"app", bytes(19_000)) is None
    left = shortened(b"app", bytes(21_000))
    assert left is not None
    assert left.prefix == LEFT_OUT


def test_other_messages_are_none_of_its_business() -> None:
    events = MessageEvents(EventRules(), LogContext("pre", "shop", 1, compacted=False))
    in_progress = cast("InProgress", SimpleNamespace(is_inside=False))
    messages = LogicalMessages(events, PLAIN, None, in_progress)
    assert messages.shortened(HEADER + b"I" + bytes(4_000), 1 << 30) is None
    assert messages.shortened(b"k" + bytes(17), 18) is None


def test_what_nobody_asked_for_is_kept_neither_in_memory_nor_on_disk() -> None:
    """In the blocks of a transaction that goes on; what it counts for stays."""
    rules = EventRules(message_prefix_include=Patterns(("app",)))
    events = MessageEvents(rules, LogContext("pre", "shop", 1, compacted=False))
    in_progress = InProgress(Path("/nowhere"), 1 << 20)
    messages = LogicalMessages(events, PLAIN, Limits(20_000), in_progress)
    in_progress.start(StreamStart(77, first_segment=True), Lsn(1))
    order = DEAD_LETTER_ORDERS.encode()
    sizes = [(b"other", 10_000), (b"app", 20_000), (order, 900), *[(b"other", 10_000)] * 500]
    for prefix, size in (*sizes, *[(own.encode(), 10_000) for own in OWN] * 100):
        made = payload(prefix, bytes(size - 200), in_block=True)
        data = bytearray(b"d" + (len(made) + 4).to_bytes(4) + made)
        assert in_progress.keep(data, 0, len(data), bytes, messages.kept) == len(data)
    assert 20_000 < in_progress.in_memory < 90_000
    in_progress.stop()
    kept = b"".join(in_progress.commit(StreamCommit(77, Lsn(9), Lsn(10), 0), Lsn(9)))
    assert kept.count(LEFT_OUT.encode()) == 501
    assert order + b"\0" + (900 - 200).to_bytes(4) + bytes(700) in kept
    assert all(kept.count(own.encode() + b"\0" + bytes(4)) == 100 for own in OWN)
