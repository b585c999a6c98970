"""Claims: where the value of a record is that is too large for its topic.

The topic is compacted and has two partitions: the first one has a head per record that a compacted
topic keeps, under that record's topic and key, the second one the values, in pieces that are cut
between characters. Each claim has an id of its own, so that a newer one leaves it alone. What no
record needs any more gets tombstones; `log.keep` is how long it can still be read. decisions/0008.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.record import Record
from cdc.records.topics import claim_topic

HEADER: Final = "millrace.claim"
"""Name of the record header that says where the whole value is; its value is a ``Claim``."""
HEADS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1


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

    format: Literal[1] = 1
    topic: str
    key: str
    id: str
    pieces: int


def claim_of(prefix: str, claim: str, value: bytes, piece_bytes: int) -> tuple[Claim, list[bytes]]:
    """A new claim for a value, and its pieces."""
    pieces = list(_cut(value, piece_bytes))
    digest = hashlib.sha256(value).hexdigest()
    whole = Claim(
        topic=claim_topic(prefix), id=claim, pieces=len(pieces), bytes=len(value), sha256=digest
    )
    return whole, pieces


def piece_key(claim: str, number: int) -> bytes:
    """Key of one piece."""
    return json.dumps({"claim": claim, "piece": number}, separators=(",", ":")).encode()


def piece_record(
    topic: str, claim: str, number: int, piece: bytes | None, headers: list[tuple[str, bytes]]
) -> Record:
    """One piece, or what lets go of it."""
    return Record(topic, piece_key(claim, number), piece, headers, PIECES_PARTITION)


def head_record(
    topic: str, head: ClaimHead, headers: list[tuple[str, bytes]], *, gone: bool = False
) -> Record:
    """A head, or what lets go of it."""
    key = json.dumps({"topic": head.topic, "key": head.key}, separators=(",", ":")).encode()
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
