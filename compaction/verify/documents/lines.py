"""Rows in lines of COPY → their hashes, or those of some keys' columns."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from struct import pack
from typing import Final, NamedTuple, TypeVar

from cdc.compiled.digests import Digests
from compaction.verify.confirm import RowsByKey, TextsByKey
from compaction.verify.differences import HashedSide
from compaction.verify.hashed import PENDING_BYTES, KeyTexts, RowHashes, key_texts
from compaction.verify.rules import ComparedTable

_PARTS_AT_ONCE: Final = 2
_SPECIAL: Final = re.compile(r"[\\\t\n\r]")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
NULL: Final = "\\N"
Batches = Callable[[], Iterable[Sequence[bytes]]]
"""Lines in batches. Each call reads them again."""
BatchedItem = TypeVar("BatchedItem")


def line_of(texts: Iterable[str | None]) -> bytes:
    """Return the texts of a row's columns as a line of COPY."""
    fields = (NULL if text is None else _escaped(text) for text in texts)
    return "\t".join(fields).encode("utf-8", "surrogatepass") + b"\n"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text


def batched(items: Iterable[BatchedItem], size: int) -> Iterator[Sequence[BatchedItem]]:
    """Yield batches of up to ``size`` items."""
    left = iter(items)
    while some := [*islice(left, size)]:
        yield some


def no_lines() -> Iterable[Sequence[bytes]]:
    """Return no lines."""
    return ()


class CopyLines(NamedTuple):
    """A table's rows: ``parts`` that are read side by side, and the rows ``after`` them.

    ``refused`` are those that a search server has refused.
    """

    parts: Sequence[Batches]
    after: Batches = no_lines
    refused: Batches = no_lines


class RowsOfLines:
    """The rows of a table in lines. Records of one that ``is_large`` have groups."""

    def __init__(
        self, compared: ComparedTable, lines: CopyLines, folder: Path, *, is_large: bool
    ) -> None:
        self._compared = compared
        self._lines = lines
        self._folder = folder
        self._is_large = is_large
        self.refused: frozenset[int] = frozenset()

    def hashes(self) -> HashedSide:
        """Return the hashes of all rows, which are read once."""
        hashes = RowHashes(self._compared, self._folder, is_large=self._is_large)

        def take(part: Batches) -> None:
            digests = hashes.digests()
            for lines in part():
                _feed(digests, lines)
                if digests.pending_bytes > PENDING_BYTES:
                    hashes.write(digests)
            hashes.write(digests)

        with ThreadPoolExecutor(_PARTS_AT_ONCE) as executor:
            for each in [executor.submit(take, part) for part in self._lines.parts]:
                each.result()
        take(self._lines.after)
        hashes.sum_up()
        self.refused = self._keys_of(self._lines.refused)
        return hashes.table()

    def key_texts(self, keys: Sequence[int]) -> Mapping[int, KeyTexts]:
        """Return nothing, as the records have all texts."""
        del keys
        return {}

    def by_key(self, keys: Sequence[int]) -> RowsByKey:
        """Return the hashes of some keys' columns. This reads all rows."""
        wanted, found = frozenset(keys), RowsByKey()
        digests = self._compared.digests(keeps_columns=True)
        for lines in chain.from_iterable(
            part() for part in [*self._lines.parts, self._lines.after]
        ):
            _feed(digests, lines)
            digests.take()
            for key, hashes in digests.take_columns():
                if key in wanted:
                    found.setdefault(key, []).append(tuple(hashes))
        self.refused = self._keys_of(self._lines.refused)
        return found

    def texts(self, keys: Sequence[int]) -> TextsByKey:
        """Return the texts of some keys' columns. This reads all rows."""
        wanted, found = frozenset(keys), TextsByKey()
        digests = self._compared.digests(keeps_columns=True)
        for lines in chain.from_iterable(
            part() for part in [*self._lines.parts, self._lines.after]
        ):
            _feed(digests, lines)
            digests.take()
            for (key, _), line in zip(digests.take_columns(), lines, strict=True):
                if key in wanted:
                    found[key] = key_texts(line[:-1])
        return found

    def _keys_of(self, part: Batches) -> frozenset[int]:
        digests = self._compared.digests(keeps_columns=True)
        for lines in part():
            _feed(digests, lines)
            digests.take()
        return frozenset(key for key, _ in digests.take_columns())


def _feed(digests: Digests, lines: Sequence[bytes]) -> None:
    """Feed lines in a server's messages."""
    data = bytearray()
    for line in lines:
        data += b"d" + pack(">I", len(line) + 4) + line
    digests.feed(data, 0, len(data))
