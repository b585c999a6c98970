"""A record that is too large for its topic → its value in pieces elsewhere, and a smaller record.

For `oversized.record = "claim_check"`: docs/decisions/0008-dead-letters.md. All these records are
in the Kafka transaction that the large record belongs to.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdc.errors import RecordRefusedError
from cdc.kafka.topics import TopicLimits
from cdc.records.dead_letters import (
    CLAIM_HEADER,
    PIECE_BYTES_MAX,
    ClaimHead,
    claim_head,
    claim_of,
    piece_records,
)
from cdc.records.record import Record, record_bytes, to_json
from cdc.records.topics import TRUNCATE_KEY, claim_topic

_ROOM_BYTES: Final = 1_024
"""Room for our header, and for the bytes that a broker counts in addition to ours."""
_IMAGES: Final = ("before", "after")


class Claims:
    """Makes the claims of one stay on the stream, and removes those that no record needs."""

    def __init__(
        self, prefix: str, limits: Mapping[str, TopicLimits], heads: Iterable[ClaimHead] = ()
    ) -> None:
        """``heads`` are the claims that the log has."""
        self._prefix = prefix
        self._topic = claim_topic(prefix)
        self._limits = limits
        self._kept: dict[str, dict[bytes, ClaimHead]] = {}
        for head in heads:
            self.kept(head.topic)[head.key.encode()] = head

    def kept(self, topic: str) -> dict[bytes, ClaimHead]:
        """Return the records of a compacted topic that refer to a claim, by their keys."""
        return self._kept.setdefault(topic, {})

    def claimed(self, record: Record) -> list[Record]:
        """Return the records that replace one that is too large.

        Raise RecordRefusedError if it is too large even without its columns.
        """
        assert record.value is not None, "it is large"  # noqa: S101
        limits, claim_limits = self._limits[record.topic], self._limits[self._topic]
        piece_bytes = min(PIECE_BYTES_MAX, claim_limits.bytes_max // 2)
        claim, pieces = claim_of(self._prefix, uuid.uuid4().hex, record.value, piece_bytes)
        claim_header = CLAIM_HEADER, claim.model_dump_json().encode()
        excess = record_bytes(record) + sum(len(n) + len(v) for n, v in record.headers)
        excess += _ROOM_BYTES - limits.bytes_max
        small = record._replace(
            value=_reduced(record, excess), headers=[*record.headers, claim_header]
        )
        made = self.let_go(record)
        made += piece_records(self._topic, "claim", claim.id, pieces, record.headers)
        if limits.keyless or record.key is None:
            # log.keep removes the record itself.
            made += self._without_pieces(claim.id, claim.pieces, record)
        else:
            key = record.key.decode()
            head = ClaimHead(topic=record.topic, key=key, id=claim.id, pieces=claim.pieces)
            self.kept(record.topic)[record.key] = head
            made.append(claim_head(self._topic, head, record.headers))
        return [*made, small]

    def let_go(self, record: Record) -> list[Record]:
        """Return the records that remove the claims of records that this one replaces."""
        kept = self._kept.get(record.topic)
        if not kept or record.key is None:
            return []
        if record.key == TRUNCATE_KEY:
            gone = list(kept.values())
            kept.clear()
        else:
            head = kept.pop(record.key, None)
            gone = [head] if head is not None else []
        made: list[Record] = []
        for head in gone:
            made += self._without_pieces(head.id, head.pieces, record)
            made.append(claim_head(self._topic, head, record.headers, gone=True))
        return made

    def _without_pieces(self, claim: str, pieces: int, record: Record) -> list[Record]:
        return piece_records(self._topic, "claim", claim, [None] * pieces, record.headers)


def _reduced(record: Record, excess: int) -> bytes:
    """Return the envelope without its largest columns, as many as needed. Keys stay."""
    event: dict[str, Any] = json.loads(record.value or b"")
    keys = set(json.loads(record.key)) if record.key is not None else set()
    members = sorted(
        (
            (len(to_json(value)), image, name)
            for image in _IMAGES
            for name, value in (event[image] or {}).items()
            if name not in keys
        ),
        reverse=True,
    )
    for size, image, name in members:
        if excess <= 0:
            break
        del event[image][name]
        excess -= size
    if excess > 0:
        raise RecordRefusedError(
            "a record is too large for the log, even without its large columns",
            where=f"topic {record.topic}, key {(record.key or b'none')[:200]!r}",
            remedy="raise the topic's max.message.bytes, and message.max.bytes in [kafka] if that"
            " is lower; or add the table to errors.dead.letter.include.list",
        )
    return to_json(event)
