"""The hashes of both sides → the rows that differ.

Sums by buckets show where rows differ. If a table is right, nothing else is read. For the other
buckets, the rows of both sides are compared in the order of their keys' hashes, so that memory
holds at most one group.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple, Protocol

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from compaction.verify.hashed import FIRST_BUCKET, KeyTexts, RowsOfKey, Sums
from compaction.verify.rules import ComparedTable

Difference = Literal["missing", "extra", "different", "refused"]
"""How a row differs: the derived table lacks it, only the derived table has it, or its values
differ. A missing or different row is refused if the search server has refused its document."""
HashedBy = tuple[tuple[str, int, int], ...]
"""Each column's name at the source, and the kind and scale of its texts."""
DIFFERENCES_MAX: Final = 10_000
"""Up to this many are compared one by one. All are counted."""
_KEY: Final = "_key"
_ROW: Final = "_row"
_BUCKET: Final = "_bucket"
_HALF: Final = 0xFFFF_FFFF


class DifferingRow(NamedTuple):
    """A key (its hash) whose rows differ. ``texts`` are its columns' texts, if they are known."""

    key: int
    difference: Difference
    texts: KeyTexts | None


class TableComparison(NamedTuple):
    """The compared rows, the number of differing rows by difference, and the first of them.

    ``hashed_by`` describes the columns of their keys' hashes.
    """

    source_rows: int
    derived_rows: int
    counts: Counter[Difference]
    rows: list[DifferingRow]
    hashed_by: HashedBy = ()


def hashed_by(table: ComparedTable) -> HashedBy:
    """Return the columns that identify a table's rows."""
    columns = [table.columns[place] for place in table.key] if table.key else table.columns
    return tuple((column.source, column.rule.kind, column.rule.scale) for column in columns)


class HashedSide(Protocol):
    """The hashes of one side's rows."""

    @property
    def sums(self) -> Sums:
        """Return the sums of all rows."""

    def by_key(self, buckets: Collection[int], /) -> Iterator[RowsOfKey]:
        """Yield the rows of some buckets, by the hashes of their keys, ascending."""


class DerivedHashes:
    """The hashes of a lakehouse table's rows, and their sums, which one read makes."""

    def __init__(self, rows: DataFrame, table: ComparedTable) -> None:
        self._hashed = rows.select(table.key_hash().alias(_KEY), table.row_hash().alias(_ROW))
        self.sums = _sums(self._hashed)

    def by_key(self, buckets: Collection[int]) -> Iterator[RowsOfKey]:
        """Yield the rows of some buckets, without their keys' texts."""
        is_some = len(buckets) < FIRST_BUCKET
        some = self._hashed.where(_bucket().isin(*buckets)) if is_some else self._hashed
        rows = some.orderBy(_KEY, _ROW).toLocalIterator()
        for key, same in groupby(rows, key=itemgetter(0)):
            yield key, [(row[1], None) for row in same]


def compare(
    source: HashedSide, derived: HashedSide, refused: Collection[int] = frozenset()
) -> TableComparison:
    """Compare the source's rows with all derived ones. ``refused`` are hashes of keys."""
    counts: Counter[Difference] = Counter()
    rows = list[DifferingRow]()
    buckets = {
        bucket
        for bucket in source.sums.keys() | derived.sums
        if source.sums.get(bucket) != derived.sums.get(bucket)
    }
    if buckets:
        for row in _differing(source.by_key(buckets), derived.by_key(buckets), refused):
            counts[row.difference] += 1
            if len(rows) < DIFFERENCES_MAX:
                rows.append(row)
    source_rows, derived_rows = (
        sum(n for n, *_ in side.sums.values()) for side in (source, derived)
    )
    return TableComparison(source_rows, derived_rows, counts, rows)


def as_refused(key: int, difference: Difference, refused: Collection[int]) -> Difference:
    """Return the difference, which is ``refused`` if the server may have refused the document."""
    return "refused" if key in refused and difference != "extra" else difference


def _bucket() -> SparkColumn:
    return F.shiftright(_KEY, 48) + F.lit(FIRST_BUCKET)


def _sums(hashed: DataFrame) -> Sums:
    """Return, by bucket, the rows and the sums of the halves of their hashes."""
    low = F.col(_ROW).bitwiseAND(F.lit(_HALF))
    high = F.shiftrightunsigned(_ROW, 32)
    summed = hashed.groupBy(_bucket().alias(_BUCKET)).agg(F.count("*"), F.sum(low), F.sum(high))
    return {row[0]: (row[1], row[2], row[3]) for row in summed.collect()}


def _differing(
    source: Iterator[RowsOfKey], derived: Iterator[RowsOfKey], refused: Collection[int]
) -> Iterator[DifferingRow]:
    """Yield the rows that aren't the same on both sides, by their keys' hashes."""
    for key, there, here in _side_by_side(source, derived):
        for row in _compared(key, there, here):
            yield row._replace(difference=as_refused(key, row.difference, refused))


def _side_by_side(
    source: Iterator[RowsOfKey], derived: Iterator[RowsOfKey]
) -> Iterator[tuple[int, list[tuple[int, KeyTexts | None]], list[tuple[int, KeyTexts | None]]]]:
    """Yield each key, and its rows on both sides."""
    here = next(derived, None)
    for key, there in source:
        while here is not None and here[0] < key:
            yield here[0], [], here[1]
            here = next(derived, None)
        if here is not None and here[0] == key:
            yield key, there, here[1]
            here = next(derived, None)
        else:
            yield key, there, []
    while here is not None:
        yield here[0], [], here[1]
        here = next(derived, None)


def _compared(
    key: int,
    source: list[tuple[int, KeyTexts | None]],
    derived: list[tuple[int, KeyTexts | None]],
) -> Iterator[DifferingRow]:
    """Yield how the rows of one key differ. Duplicate rows count individually."""
    there, here = Counter(row for row, _ in source), Counter(row for row, _ in derived)
    if there == here:
        return
    texts = (source or derived)[0][1]
    lacking, extra = (there - here).total(), (here - there).total()
    both = min(lacking, extra)
    yield from (DifferingRow(key, "different", texts) for _ in range(both))
    yield from (DifferingRow(key, "missing", texts) for _ in range(lacking - both))
    yield from (DifferingRow(key, "extra", texts) for _ in range(extra - both))
