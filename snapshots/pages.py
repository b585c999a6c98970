"""Which rows of a leaf were read → which are read next; pure.

A TID is a number: ``page << 16 | offset``, as PostgreSQL packs it. A range has its first TID, and
not its end. What has no end reaches up to END, so that rows are read, too, that were added after
somebody asked how many pages there are.
https://www.postgresql.org/docs/current/ddl-system-columns.html (ctid)
"""

from collections.abc import Iterable, Iterator
from typing import Final

Range = tuple[int, int]
Ranges = tuple[Range, ...]

_OFFSET_BITS: Final = 16
END: Final = 1 << 48
ALL: Final[Range] = (0, END)


def merged(ranges: Iterable[Range]) -> Ranges:
    """The same rows in as few ranges as that takes, in order."""
    done: list[Range] = []
    for first, end in sorted(ranges):
        if done and first <= done[-1][1]:
            done[-1] = done[-1][0], max(done[-1][1], end)
        elif first < end:
            done.append((first, end))
    return tuple(done)


def missing(ranges: Iterable[Range]) -> Iterator[Range]:
    """What lies between the ranges, before and behind them."""
    first = 0
    for start, end in merged(ranges):
        if first < start:
            yield first, start
        first = end
    if first < END:
        yield first, END


def next_range(taken: Iterable[Range], pages: int, chunk_pages: int) -> Range | None:
    """The first pages that nobody has taken, at most ``chunk_pages``; None: there are none.

    ``pages`` is how many the leaf is believed to have: behind the last one a range has no end.
    """
    for first, end in missing(taken):
        stop = ((first >> _OFFSET_BITS) + chunk_pages) << _OFFSET_BITS
        return first, end if stop >= pages << _OFFSET_BITS else min(stop, end)
    return None


def pages_of(ranges: Iterable[Range], pages: int) -> int:
    """How many of a leaf's pages are in the ranges, about."""
    limit = pages << _OFFSET_BITS
    sizes = (min(end, limit) - min(first, limit) for first, end in merged(ranges))
    return sum(sizes) >> _OFFSET_BITS


def tid(number: int) -> str:
    """As PostgreSQL writes it: ``(page,offset)``."""
    return f"({number >> _OFFSET_BITS},{number & ((1 << _OFFSET_BITS) - 1)})"


def parse_tid(text: bytes) -> int:
    """Read ``(page,offset)``."""
    page, _, offset = text.strip(b"()").partition(b",")
    return int(page) << _OFFSET_BITS | int(offset)
