"""Dead letters: what stands in the log for a record that couldn't be written, and what it held.

The topic is compacted and has two partitions. The first one has a letter's head, under its id, and
later the same head once more with what became of it; the second one what the record held, in
pieces that fit everywhere, which go when the letter is dealt with. So what nobody has dealt with
stays, and `log.keep` is how long the rest can still be looked at. docs/decisions/0008.
"""

import json
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.position import HEADER
from cdc.records.record import Record
from cdc.records.state import PositionField
from cdc.records.topics import dead_letter_topic

FORMAT: Final = 1
ORDERS: Final = "millrace.dead-letters"
"""Prefix of the logical messages that tell the daemon what to do with a letter."""
PIECE_BYTES_MAX: Final = 1 << 19
"""Half of what brokers take by default."""
HEADS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1
Outcome = Literal["replayed", "discarded"]


class DeadLetter(BaseModel):
    """The head of a letter.

    ``error`` is the exit code's name with which the daemon would have stopped. ``topic`` is where
    the record was to go, None where it wasn't made. ``columns`` names those of ``before`` and
    ``after``, which hold nothing of columns that events mask (``masked``) or leave out. ``sizes``
    are the lengths of what it holds, one behind the other: the record's ``key``, and ``before`` and
    ``after`` as PostgreSQL sent them (pgoutput's TupleData).
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    id: str
    table: str
    op: str
    position: PositionField
    lsn: str
    xid: int | None
    schema_version: int
    error: str
    reason: str
    where: str
    topic: str | None
    columns: tuple[str, ...]
    masked: tuple[str, ...] = ()
    before_is_key: bool
    sizes: dict[str, int]
    pieces: int
    ts_ms: int
    outcome: Outcome | None = None
    outcome_ms: int | None = None

    def parts(self, held: bytes) -> dict[str, bytes]:
        """What it holds, by name."""
        found, start = {}, 0
        for name, size in self.sizes.items():
            found[name] = held[start : start + size]
            start += size
        return found


class Order(BaseModel):
    """A logical message's content: what is to become of a letter, which has that number."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    outcome: Outcome
    number: int
    id: str


def head_key(letter: str) -> bytes:
    """Key of a letter's head."""
    return json.dumps({"letter": letter}, separators=(",", ":")).encode()


def piece_key(letter: str, number: int) -> bytes:
    """Key of one of its pieces."""
    return json.dumps({"letter": letter, "piece": number}, separators=(",", ":")).encode()


def letter_records(
    prefix: str, letter: DeadLetter, parts: Mapping[str, bytes], header: bytes, piece_bytes: int
) -> list[Record]:
    """The records of a new letter; ``header`` is the value of the position header."""
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    held = b"".join(parts.values())
    pieces = [held[start : start + piece_bytes] for start in range(0, len(held), piece_bytes)]
    sizes = {name: len(part) for name, part in parts.items()}
    head = letter.model_copy(update={"sizes": sizes, "pieces": len(pieces)})
    value = head.model_dump_json().encode()
    return [
        *(
            Record(topic, piece_key(letter.id, number), piece, headers, PIECES_PARTITION)
            for number, piece in enumerate(pieces)
        ),
        Record(topic, head_key(letter.id), value, headers, HEADS_PARTITION),
    ]


def outcome_records(
    prefix: str, letter: DeadLetter, outcome: Outcome, header: bytes, ts_ms: int
) -> list[Record]:
    """The records that mark a letter as dealt with, and let go of what it holds."""
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    head = letter.model_copy(update={"outcome": outcome, "outcome_ms": ts_ms})
    return [
        Record(topic, head_key(letter.id), head.model_dump_json().encode(), headers, 0),
        *(
            Record(topic, piece_key(letter.id, number), None, headers, PIECES_PARTITION)
            for number in range(letter.pieces)
        ),
    ]
