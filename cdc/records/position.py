"""LSNs and positions → order: a change's place in the source's single order of commits.

docs/decisions/0001-positions.md says why an LSN alone isn't an order. The text forms are part of
the log's format: their meaning never changes under the same format number.
"""

import re
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Final, NamedTuple

HEADER = "millrace.position"
"""Name of the record header with a position and a schema version."""

FIRST_EPOCH: Final = 1
"""A source's first history. A log that continues from another one increments it
(docs/decisions/0009).
"""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")
_POSITION = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{16})\.([0-9a-f]{16})\Z")


class Lsn(int):
    """A byte position in the WAL, written as PostgreSQL writes it (``16/B374D848``).

    https://www.postgresql.org/docs/current/datatype-pg-lsn.html
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "Lsn":
        """Parse PostgreSQL's text form. Raise ValueError for anything else."""
        match = _LSN.match(text)
        if match is None:
            raise ValueError(f"{text!r} isn't an LSN")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


INDEX_MAX: Final = (1 << 64) - 1


class Position(NamedTuple):
    """A change's place: history, then transaction, then frame within the transaction.

    ``epoch`` counts histories from 1. ``commit_lsn`` is the LSN in Begin/Commit (or a snapshot's
    consistent point). ``index`` counts the transaction's row, truncate and message frames from 1; a
    snapshot's rows, and messages outside transactions, have index 0. Positions compare in the order
    in which changes took effect.
    """

    epoch: int
    commit_lsn: Lsn
    index: int  # type: ignore[assignment]  # replaces tuple's own index()

    def __str__(self) -> str:
        """Return fixed-width text, which sorts as the position does."""
        return f"{self.epoch:08x}.{self.commit_lsn:016x}.{self.index:016x}"

    def just_before(self) -> "Position":
        """Return a position after everything that was committed before this one's transaction."""
        if self.commit_lsn == 0:
            return Position(self.epoch, Lsn(0), 0)
        return Position(self.epoch, Lsn(self.commit_lsn - 1), INDEX_MAX)

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse the text form. Raise ValueError for anything else."""
        match = _POSITION.match(text)
        if match is None:
            raise ValueError(f"{text!r} isn't a position")
        return cls(int(match[1], 16), Lsn(int(match[2], 16)), int(match[3], 16))


def header(position: Position, schema_version: int, filled: Sequence[int] = ()) -> bytes:
    """Return the value of the ``millrace.position`` header: ``<position>/<schema version>``.

    If values were filled (docs/decisions/0007), ``/<ordinals>`` follows: the places of those
    columns in their schema version, from 1, separated by commas. ``filled`` has them from 0.
    """
    return f"{position}/{schema_version}{filled_field(filled)}".encode()


def filled_field(filled: Sequence[int]) -> str:
    """Return the header's field about filled columns; empty if there are none."""
    return f"/{','.join(str(index + 1) for index in filled)}" if filled else ""


class RecordPosition(NamedTuple):
    """The contents of a header. ``filled`` are the indexes of the filled columns."""

    position: Position
    schema_version: int
    filled: tuple[int, ...] = ()


def parse_header(value: bytes) -> RecordPosition:
    """Parse the header. Raise ValueError for anything else.

    Fields that a later format appends are ignored.
    """
    position, version, *more = value.decode("ascii").split("/")
    ordinals = more[0].split(",") if more and more[0] else ()
    filled = tuple(int(ordinal) - 1 for ordinal in ordinals)
    return RecordPosition(Position.parse(position), int(version), filled)


class Origin(NamedTuple):
    """The origin of a transaction that was replicated from elsewhere."""

    commit_lsn: Lsn
    name: str


class Transaction(NamedTuple):
    """A source transaction, as Begin announces it.

    ``commit_lsn`` is Begin's final LSN. ``commit_ts_us`` is µs since 1970, UTC.
    ``previous_commit_lsn`` is that of the transaction before it in this stream, if there was one
    (Debezium's ``sequence`` has it). ``origin`` is set if it was replicated from elsewhere.
    """

    xid: int
    commit_lsn: Lsn
    commit_ts_us: int
    previous_commit_lsn: Lsn | None
    origin: Origin | None = None


def after_lsn(origin: Origin | None) -> str:
    """Return an event's text from its source's LSN to its operation: see cdc.events.reference."""
    name, lsn = (
        ("null", "null")
        if origin is None
        else (encode_basestring(origin.name), int(origin.commit_lsn))
    )
    return f',"xmin":null,"origin":{name},"origin_lsn":{lsn}}},"transaction":null,"op":"'
