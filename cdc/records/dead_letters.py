"""Dead letters: records that couldn't be written → the records that stand for them in the log.

The topic is compacted and has two partitions. The first one has a dead letter's head, under its
id, and later the same head again with its outcome. The second one has the record's contents, in
pieces that fit everywhere; tombstones remove them once there is an outcome. So a dead letter
without an outcome stays, and the others can be read for `log.keep`. docs/decisions/0008.
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
"""Prefix of the logical messages that tell the daemon what to do with a dead letter."""
PIECE_BYTES_MAX: Final = 1 << 19
"""Half of what brokers take by default."""
HEADS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1
DeadLetterOutcome = Literal["replayed", "discarded"]


class DeadLetter(BaseModel):
    """The head of a dead letter.

    ``error`` is the exit code's name with which the daemon would have stopped. ``topic`` is where
    the record was to go, None where it wasn't made. ``columns`` names those of ``before`` and
    ``after``, which hold nothing of columns that events mask (``masked``) or leave out. ``sizes``
    are the lengths of its contents, one behind the other: the record's ``key``, and ``before`` and
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
    outcome: DeadLetterOutcome | None = None
    outcome_ms: int | None = None

    def contents(self, stored: bytes) -> dict[str, bytes]:
        """Split the joined pieces into the contents, by name."""
        contents, start = {}, 0
        for name, size in self.sizes.items():
            contents[name] = stored[start : start + size]
            start += size
        return contents


class Order(BaseModel):
    """A logical message's content: the outcome that the dead letter with this number gets."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    outcome: DeadLetterOutcome
    number: int
    id: str


def head_key(dead_letter_id: str) -> bytes:
    """Key of a dead letter's head."""
    return json.dumps({"letter": dead_letter_id}, separators=(",", ":")).encode()


def piece_key(dead_letter_id: str, number: int) -> bytes:
    """Key of one of its pieces."""
    return json.dumps({"letter": dead_letter_id, "piece": number}, separators=(",", ":")).encode()


def dead_letter_records(
    prefix: str,
    dead_letter: DeadLetter,
    contents: Mapping[str, bytes],
    header: bytes,
    piece_bytes: int,
) -> list[Record]:
    """The records of a new dead letter; ``header`` is the value of the position header."""
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    stored = b"".join(contents.values())
    pieces = [stored[start : start + piece_bytes] for start in range(0, len(stored), piece_bytes)]
    sizes = {name: len(content) for name, content in contents.items()}
    head = dead_letter.model_copy(update={"sizes": sizes, "pieces": len(pieces)})
    value = head.model_dump_json().encode()
    return [
        *(
            Record(topic, piece_key(dead_letter.id, number), piece, headers, PIECES_PARTITION)
            for number, piece in enumerate(pieces)
        ),
        Record(topic, head_key(dead_letter.id), value, headers, HEADS_PARTITION),
    ]


def outcome_records(
    prefix: str, dead_letter: DeadLetter, outcome: DeadLetterOutcome, header: bytes, ts_ms: int
) -> list[Record]:
    """The records that give a dead letter its outcome and remove its contents."""
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    head = dead_letter.model_copy(update={"outcome": outcome, "outcome_ms": ts_ms})
    return [
        Record(topic, head_key(dead_letter.id), head.model_dump_json().encode(), headers, 0),
        *(
            Record(topic, piece_key(dead_letter.id, number), None, headers, PIECES_PARTITION)
            for number in range(dead_letter.pieces)
        ),
    ]
