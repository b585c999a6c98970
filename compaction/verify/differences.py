"""A table's hashes at the source, and its derived table → which rows differ.

Sums by buckets tell where to look: of a table that is right, nothing else is asked for. Of the
other buckets, the rows of both sides are gone through in the order of their keys' hashes, so that
memory holds one group at most.
"""

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from compaction.verify.rules import ComparedTable
from compaction.verify.source import HashedTable, Sums

Difference = Literal["missing", "extra", "different"]
"""A row that the derived table lacks, that it has and the source hasn't, or that is another."""
DIFFERENCES_MAX: Final = 100_000
"""So many are looked at one by one; all are counted."""
KeyTexts = tuple[str | None, ...]
"""The texts of a key's columns, as PostgreSQL reads them."""
_HEAD: Final = struct.Struct("=qqI")
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANING: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_KEY: Final = "_key"
_ROW: Final = "_row"
_BUCKET: Final = "_bucket"
_HALF: Final = 0xFFFF_FFFF
_FIRST_BUCKET: Final = 1 << 15


class DifferingRow(NamedTuple):
    """A key (its hash) whose rows differ; ``texts`` are its columns', if the source has it."""

    key: int
    difference: Difference
    texts: KeyTexts | None


class TableComparison(NamedTuple):
    """What was compared, how many rows differ by how, and the first of them."""

    source_rows: int
    derived_rows: int
    counts: Counter[Difference]
    rows: list[DifferingRow]


class DerivedHashes:
    """The hashes of a derived table's rows, and their sums, for which it is read once."""

    def __init__(self, rows: DataFrame, table: ComparedTable) -> None:
        self.hashed = rows.select(table.key_hash().alias(_KEY), table.row_hash().alias(_ROW))
        self.sums = _sums(self.hashed)


def compare(source: HashedTable, derived: DerivedHashes, table: ComparedTable) -> TableComparison:
    """Compare the source's rows with all derived ones."""
    counts: Counter[Difference] = Counter()
    rows = list[DifferingRow]()
    buckets = {
        bucket
        for bucket in source.sums.keys() | derived.sums
        if source.sums.get(bucket) != derived.sums.get(bucket)
    }
    if buckets:
        for row in _differing(source, derived.hashed, buckets, is_keyed=bool(table.key)):
            counts[row.difference] += 1
            if len(rows) < DIFFERENCES_MAX:
                rows.append(row)
    derived_rows = sum(each[0] for each in derived.sums.values())
    return TableComparison(source.rows, derived_rows, counts, rows)


def _bucket() -> SparkColumn:
    return F.shiftright(_KEY, 48) + F.lit(_FIRST_BUCKET)


def _sums(hashed: DataFrame) -> Sums:
    """By bucket: rows, and the sums of the halves of their hashes."""
    low = F.col(_ROW).bitwiseAND(F.lit(_HALF))
    high = F.shiftrightunsigned(_ROW, 32)
    summed = hashed.groupBy(_bucket().alias(_BUCKET)).agg(F.count("*"), F.sum(low), F.sum(high))
    return {row[0]: (row[1], row[2], row[3]) for row in summed.collect()}


def _differing(
    source: HashedTable, hashed: DataFrame, buckets: Collection[int], *, is_keyed: bool
) -> Iterator[DifferingRow]:
    """The rows of some buckets that aren't the same on both sides, by their keys' hashes."""
    some = hashed.where(_bucket().isin(*buckets)) if len(buckets) < _FIRST_BUCKET else hashed
    derived = groupby(some.orderBy(_KEY, _ROW).toLocalIterator(), key=itemgetter(0))
    here = next(derived, None)
    for key, records in _by_key(source, buckets, is_keyed=is_keyed):
        while here is not None and here[0] < key:
            yield from _compared(here[0], [], [row[1] for row in here[1]])
            here = next(derived, None)
        rows = list[int]()
        if here is not None and here[0] == key:
            rows = [row[1] for row in here[1]]
            here = next(derived, None)
        yield from _compared(key, records, rows)
    while here is not None:
        yield from _compared(here[0], [], [row[1] for row in here[1]])
        here = next(derived, None)


def _by_key(
    source: HashedTable, buckets: Collection[int], *, is_keyed: bool
) -> Iterator[tuple[int, list[tuple[int, KeyTexts]]]]:
    """The source's rows and their keys' texts, by the hashes of their keys, ascending."""
    shift = 16 - source.group_bits
    for group in sorted({bucket >> shift for bucket in buckets}):
        records = [
            record
            for record in _records(source.records(group))
            if (record[0] >> 48) + _FIRST_BUCKET in buckets
        ]
        for key, same in groupby(sorted(records), key=itemgetter(0)):
            yield key, [(row, key_texts(text) if is_keyed else ()) for _, row, text in same]


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        key, row, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield key, row, data[at : at + size]
        at += size


def _compared(
    key: int, source: list[tuple[int, KeyTexts]], derived: list[int]
) -> Iterator[DifferingRow]:
    """How the rows of one key differ; each row counts as often as it is there."""
    there, here = Counter(row for row, _ in source), Counter(derived)
    if there == here:
        return
    texts = source[0][1] if source else None
    lacking, extra = (there - here).total(), (here - there).total()
    both = min(lacking, extra)
    yield from (DifferingRow(key, "different", texts) for _ in range(both))
    yield from (DifferingRow(key, "missing", texts) for _ in range(lacking - both))
    yield from (DifferingRow(key, "extra", texts) for _ in range(extra - both))


def key_texts(text: bytes) -> KeyTexts:
    """A key as COPY has it → the texts of its columns."""
    return tuple(map(_unescaped, text.split(b"\t")))


def _unescaped(field: bytes) -> str | None:
    if field == b"\\N":
        return None
    plain = _ESCAPE.sub(lambda match: _MEANING.get(match[1], match[1]), field)
    return plain.decode("utf-8", "replace")
