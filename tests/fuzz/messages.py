"""Bytes instead of a pgoutput message and of a frame → a message, or CorruptMessageError."""

import re

from cdc.errors import CorruptMessageError
from cdc.wal import messages
from cdc.wal.decoder import decode
from cdc.wal.frames import PrimaryKeepalive, XLogData, parse
from tests.fixtures.wal_bytes import u8, u64
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target
from tests.unit.cdc.wal.test_decoder import CASES

_WHERE = re.compile(
    r"(?:(['\"]).+\1|empty) message of (\d+) bytes, byte (\d+)", re.DOTALL
).fullmatch
_KINDS = frozenset(message.__class__ for _, message in CASES.values())


class Messages(Target):
    """Every message that a slot of ours sends, mutated."""

    name = "messages"
    share = 100

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._mutator = Mutator([case[0] for case in CASES.values()], self.random)

    def make(self) -> bytes:
        """Make a message."""
        return self._mutator.make()

    def check(self, made: bytes) -> None:
        """Decode it."""
        try:
            message = decode(made)
        except CorruptMessageError as error:
            _check_place(error, made)
        else:
            assert message.__class__ in _KINDS
            _check_size(message, made)


class Frames(Target):
    """CopyData payloads, mutated."""

    name = "frames"
    share = 20

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        keepalive = b"k" + u64(1 << 40, 5) + u8(1)
        heads = [b"w" + u64(1 << 40, 1 << 41, 5) + case[0] for case in CASES.values()]
        self._mutator = Mutator([*heads, keepalive, keepalive[:-1] + b"\0"], self.random)

    def make(self) -> bytes:
        """Make a payload."""
        return self._mutator.make()

    def check(self, made: bytes) -> None:
        """Parse it."""
        try:
            frame = parse(made)
        except CorruptMessageError as error:
            _check_place(error, made)
            return
        if isinstance(frame, XLogData):
            assert made == b"w" + made[1:25] + frame.payload
        else:
            assert isinstance(frame, PrimaryKeepalive)
            assert len(made) == 18


def _check_place(error: CorruptMessageError, made: bytes) -> None:
    """The error tells the kind of message, its size, and a byte within or at the end."""
    match = _WHERE(error.where)
    assert match is not None, error.where
    assert int(match[2]) == len(made)
    assert int(match[3]) <= len(made)


def _check_size(message: messages.Message, made: bytes) -> None:
    """A row message takes every byte that there is, and no more."""
    rows: tuple[messages.Row | None, ...]
    match message:
        case messages.Insert(new=new):
            rows = (new,)
        case messages.Update(old=old, new=new):
            rows = (old, new)
        case messages.Delete(old=old):
            rows = (old,)
        case _:
            return
    size = 5
    for row in rows:
        if row is not None:
            size += 3 + sum(5 + len(value) if value.__class__ is bytes else 1 for value in row)
    assert size == len(made)
