"""Records that couldn't be written → the dead letters and claims that replace them in the log.

Each kind has a compacted topic with two partitions. The first has heads, the second has contents in
pieces that fit everywhere. Tombstones release what isn't needed any longer, which stays readable
for `log.keep`. docs/decisions/0008.

- A dead letter's head has its id as the key. Later the same head follows with its outcome, which
  removes the pieces. So a dead letter without an outcome stays.
- A claim is the value of a record that is too large for its topic, which has a header instead. Its
  pieces are cut between characters. Each claim has its own id, so a newer one doesn't affect it.
  Each record in a compacted topic has a head, with its topic and key as the key.
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
"""Name of the record header that locates the whole value. Its value is a ``Claim``."""
PIECE_BYTES_MAX: Final = 1 << 19
"""Half of the brokers' default limit."""
HEADS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1
DeadLetterOutcome = Literal["replayed", "discarded"]


class DeadLetter(BaseModel):
    """The head of a dead letter.

    ``error`` is the name of the exit code with which the daemon would have stopped. ``topic`` is
    the record's destination; None: it wasn't made. ``columns`` names those of ``before`` and
    ``after``, which have no values of columns that events mask (``masked``) or leave out. ``sizes``
    are the lengths of its contents in sequence: the record's ``key``, and ``before`` and ``after``
    as PostgreSQL sent them (pgoutput's TupleData).
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
    """A record's header: its whole value is these pieces of the topic, joined."""

    model_config = ConfigDict(frozen=True)

    topic: str
    id: str
    pieces: int
    bytes: int
    sha256: str


class ClaimHead(BaseModel):
    """The record with a record's topic and key, as long as that refers to a claim."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    topic: str
    key: str
    id: str
    pieces: int


def piece_key(of: Literal["claim", "letter"], id_: str, number: int) -> bytes:
    """Return the key of one piece of a claim or of a dead letter."""
    return to_json({of: id_, "piece": number})


def piece_records(
    topic: str,
    of: Literal["claim", "letter"],
    id_: str,
    pieces: Iterable[bytes | None],
    headers: list[tuple[str, bytes]],
) -> list[Record]:
    """Return all pieces of a claim or of a dead letter. None releases one."""
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
    """Return the records of a new dead letter. ``header`` is the value of the position header."""
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
    """Return the records that give a dead letter its outcome and remove its contents."""
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
    """Return a new claim for a value, and its pieces."""
    pieces = list(_cut(value, piece_bytes))
    digest = hashlib.sha256(value).hexdigest()
    whole = Claim(
        topic=claim_topic(prefix), id=claim, pieces=len(pieces), bytes=len(value), sha256=digest
    )
    return whole, pieces


def claim_head(
    topic: str, head: ClaimHead, headers: list[tuple[str, bytes]], *, gone: bool = False
) -> Record:
    """Return a head, or its tombstone."""
    key = to_json({"topic": head.topic, "key": head.key})
    value = None if gone else head.model_dump_json().encode()
    return Record(topic, key, value, headers, HEADS_PARTITION)


def _cut(value: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yield slices of a text in UTF-8 that are texts themselves."""
    start = 0
    while start < len(value):
        end = start + piece_bytes
        while end < len(value) and value[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield value[start:end]
        start = end
