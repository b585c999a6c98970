"""The frames around pgoutput's messages, in both directions."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn
from cdc.wal.frames import (
    POSTGRES_EPOCH_US,
    PrimaryKeepalive,
    XLogData,
    parse,
    standby_status_update,
)
from tests.fixtures.wal_bytes import u8, u64

HIGH = Lsn((1 << 64) - 1)


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_wal_data(kind: type) -> None:
    frame = parse(kind(b"w" + u64(HIGH, 7, 5) + b"payload"))
    assert frame == XLogData(HIGH, b"payload")
    assert isinstance(frame, XLogData)
    assert type(frame.payload) is bytes
    assert str(frame.start) == "FFFFFFFF/FFFFFFFF"


@pytest.mark.parametrize("reply", [0, 1])
def test_keepalive(reply: int) -> None:
    frame = parse(b"k" + u64(HIGH, 5) + u8(reply))
    assert frame == PrimaryKeepalive(HIGH, bool(reply))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"w",
        b"w" + bytes(23),
        b"k" + bytes(16),
        b"k" + bytes(18),
        b"k" + bytes(16) + b"\2",
    ],
)
def test_anything_else_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        parse(data)


@given(st.binary(max_size=40), st.sampled_from([b"", b"w", b"k"]))
def test_any_bytes_give_a_frame_or_corrupt(data: bytes, kind: bytes) -> None:
    with suppress(CorruptMessageError):
        parse(kind + data)


def test_status_update_says_what_is_durable_and_what_was_received() -> None:
    update = standby_status_update(Lsn(5), HIGH, POSTGRES_EPOCH_US + 9, reply_requested=True)
    assert update == b"r" + u64(HIGH, 5, 5, 9) + b"\1"
    assert standby_status_update(Lsn(5), Lsn(6), POSTGRES_EPOCH_US)[-1:] == b"\0"
