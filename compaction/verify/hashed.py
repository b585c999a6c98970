"""Rows of one side → their sums by buckets, and records by groups, in files.

Records have a row's hashes and the text of its key (cdc/compiled/digests.pyx).
"""

import re
import struct
import threading
from collections.abc import Collection, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from cdc.compiled.digests import Digests
from compaction.verify.rules import ComparedTable

Sums = dict[int, tuple[int, int, int]]
"""Bucket → rows, and the sums of the halves of their hashes."""
KeyTexts = tuple[str | None, ...]
"""The texts of a key's columns, as PostgreSQL reads them."""
RowsOfKey = tuple[int, list[tuple[int, KeyTexts | None]]]
"""A key's hash → the hash of each of its rows, and the key's texts if this side has them."""
UNREADABLE: Final = frozenset("\0\ufffd")
"""A text with these isn't the source's, or isn't UTF-8 there."""
GROUP_BITS: Final = 8
FIRST_BUCKET: Final = 1 << 15
"""The bucket of a key whose hash is 0: buckets are in the order of signed numbers."""
PENDING_BYTES: Final = 4 << 20
"""Up to this many are collected before a write to files."""
ROWS_OF_GROUPS: Final = 100_000
"""A table of fewer rows has one group."""
_HEAD: Final = struct.Struct("=qqI")
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANING: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def is_text(texts: KeyTexts | None) -> TypeGuard[KeyTexts]:
    """Whether the source may have this key, and all of it is known."""
    return texts is not None and not any(
        text is None or UNREADABLE.intersection(text) for text in texts
    )


class HashedTable(NamedTuple):
    """A side's rows at the instant: their number, their sums, and files of records by group."""

    rows: int
    sums: Sums
    group_bits: int
    folder: Path
    is_keyed: bool = True

    def by_key(self, buckets: Collection[int]) -> Iterator[RowsOfKey]:
        """Yield the rows of some buckets, by the hashes of their keys, ascending."""
        shift = 16 - self.group_bits
        for group in sorted({bucket >> shift for bucket in buckets}):
            records = [
                record
                for record in self._records(group)
                if (record[0] >> 48) + FIRST_BUCKET in buckets
            ]
            for key, same in groupby(sorted(records), key=itemgetter(0)):
                yield (
                    key,
                    [(row, key_texts(text) if self.is_keyed else ()) for _, row, text in same],
                )

    def _records(self, group: int) -> Iterator[tuple[int, int, bytes]]:
        path = self.folder / str(group)
        data = path.read_bytes() if path.exists() else b""
        at = 0
        while at < len(data):
            key, row, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            yield key, row, data[at : at + size]
            at += size


class RowHashes:
    """The hashes of a table's rows, from several threads. Files are in a ``folder``.

    Records of a table that ``is_large`` are kept in groups.
    """

    def __init__(self, compared: ComparedTable, folder: Path, *, is_large: bool) -> None:
        folder.mkdir(parents=True)
        self._compared = compared
        self._folder = folder
        self._group_bits = GROUP_BITS if is_large else 0
        self._digests = list[Digests]()
        self._rows = 0
        self._sums: Sums = {}
        self._writing = threading.Lock()

    def digests(self) -> Digests:
        """Return new digests for the rows that one thread reads."""
        digests = self._compared.digests(self._group_bits)
        self._digests.append(digests)
        return digests

    def has(self, digests: Digests) -> bool:
        """Whether these aren't summed up yet."""
        return digests in self._digests

    def write(self, digests: Digests) -> None:
        """Append new records to the groups' files."""
        with self._writing:
            for group, records in digests.take():
                with (self._folder / str(group)).open("ab") as file:
                    file.write(records)

    def sum_up(self) -> None:
        """Add up the sums once every row is read, and release the digests, which are large."""
        for digests in self._digests:
            self._rows += digests.rows
            for bucket, (rows, low, high) in digests.sums_of_buckets().items():
                before = self._sums.get(bucket, (0, 0, 0))
                self._sums[bucket] = (before[0] + rows, before[1] + low, before[2] + high)
        self._digests.clear()

    def table(self) -> HashedTable:
        """Return the table, once it is summed up."""
        is_keyed = bool(self._compared.key)
        return HashedTable(self._rows, self._sums, self._group_bits, self._folder, is_keyed)


def key_texts(text: bytes) -> KeyTexts:
    """Return the texts of a key's columns from its COPY text."""
    return tuple(map(_unescaped, text.split(b"\t")))


def _unescaped(field: bytes) -> str | None:
    if field == b"\\N":
        return None
    plain = _ESCAPE.sub(lambda match: _MEANING.get(match[1], match[1]), field)
    return plain.decode("utf-8", "replace")
