"""Dead letters and claims: records that couldn't be written → those that stand for them in the log.

Each has a compacted topic with two partitions: the first one has heads, the second one the contents
in pieces that fit everywhere; tombstones let go of what isn't needed any more, which can still be
read for `log.keep`. docs/decisions/0008.

- A dead letter's head stands under its id, and later the same head again with its outcome, which
  removes the pieces. So a dead letter without an outcome stays.
- A claim is the value of a record that is too large for its topic, which has a header instead. Its
  pieces are cut between characters. Each claim has an id of its own, so that a newer one leaves it
  alone. There is a head per record that a compacted topic keeps, under its topic and key.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.fields import PositionField
from cdc.records.position import HEADER
from cdc.records.record import Record, to_json
from cdc.records.topics import claim_topic, dead_letter_topic

FORMAT: Final = 1
CLAIM_HEADER: Final = "millrace.claim"
"""Name of the record header that says where the whole value is; its value is a ``Claim``."""
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


class Claim(BaseModel):
    """A record's header: its whole value is these pieces of the topic, joined.

    ``bytes`` and ``sha256`` (hexadecimal) are those of the value in UTF-8.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    id: str
    pieces: int
    bytes: int
    sha256: str


class ClaimHead(BaseModel):
    """What stands under a record's topic and key as long as that record refers to a claim."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    topic: str
    key: str
    id: str
    pieces: int


def piece_key(of: Literal["claim", "letter"], id_: str, number: int) -> bytes:
    """Key of one piece of a claim or of a dead letter."""
    return to_json({of: id_, "piece": number})


def piece_records(
    topic: str,
    of: Literal["claim", "letter"],
    id_: str,
    pieces: Iterable[bytes | None],
    headers: list[tuple[str, bytes]],
) -> list[Record]:
    """All pieces of a claim or of a dead letter; None lets go of one."""
    return [
        Record(topic, piece_key(of, id_, number), piece, headers, PIECES_PARTITION)
        for number, piece in enumerate(pieces)
    ]


def dead_letter_records(
    prefix: str,
    dead_letter: DeadLetter,
    contents: Mapping[str, bytes | None],
    header: bytes,
    piece_bytes: int,
) -> list[Record]:
    """The records of a new dead letter; ``header`` is the value of the position header."""
    held = {name: content for name, content in contents.items() if content is not None}
    stored = b"".join(held.values())
    pieces = [stored[start : start + piece_bytes] for start in range(0, len(stored), piece_bytes)]
    sizes = {name: len(content) for name, content in held.items()}
    head = dead_letter.model_copy(update={"sizes": sizes, "pieces": len(pieces)})
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    return [
        *piece_records(topic, "letter", head.id, pieces, headers),
        _dead_letter_head(topic, head, headers),
    ]


def outcome_records(
    prefix: str, dead_letter: DeadLetter, outcome: DeadLetterOutcome, header: bytes, ts_ms: int
) -> list[Record]:
    """The records that give a dead letter its outcome and remove its contents."""
    head = dead_letter.model_copy(update={"outcome": outcome, "outcome_ms": ts_ms})
    topic, headers = dead_letter_topic(prefix), [(HEADER, header)]
    return [
        _dead_letter_head(topic, head, headers),
        *piece_records(topic, "letter", head.id, [None] * head.pieces, headers),
    ]


def _dead_letter_head(topic: str, head: DeadLetter, headers: list[tuple[str, bytes]]) -> Record:
    key, value = to_json({"letter": head.id}), head.model_dump_json().encode()
    return Record(topic, key, value, headers, HEADS_PARTITION)


def claim_of(prefix: str, claim: str, value: bytes, piece_bytes: int) -> tuple[Claim, list[bytes]]:
    """A new claim for a value, and its pieces."""
    pieces = list(_cut(value, piece_bytes))
    digest = hashlib.sha256(value).hexdigest()
    whole = Claim(
        topic=claim_topic(prefix), id=claim, pieces=len(pieces), bytes=len(value), sha256=digest
    )
    return whole, pieces


def claim_head(
    topic: str, head: ClaimHead, headers: list[tuple[str, bytes]], *, gone: bool = False
) -> Record:
    """A head, or what lets go of it."""
    key = to_json({"topic": head.topic, "key": head.key})
    value = None if gone else head.model_dump_json().encode()
    return Record(topic, key, value, headers, HEADS_PARTITION)


def _cut(value: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Slices of a text in UTF-8 that are texts themselves."""
    start = 0
    while start < len(value):
        end = start + piece_bytes
        while end < len(value) and value[end] & 0xC0 == 0x80:  # inside of a character
            end -= 1
        yield value[start:end]
        start = end
