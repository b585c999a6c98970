"""Valid bytes → bytes with errors that confuse parsers; a seed always gives the same."""

import random
from collections.abc import Callable, Sequence
from typing import Final

INTERESTING: Final = (
    0, 1, 2, 3, 4, 5, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000,
    0x3FFF_FFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFF0, 0xFFFF_FFFF,
)  # fmt: skip
"""Lengths and counts around the limits of their types."""
_LENGTH_MAX: Final = 2_000


class Mutator:
    """Starts from one of ``seeds``, and changes it one to four times; now and then pure noise."""

    def __init__(self, seeds: Sequence[bytes], chance: random.Random) -> None:
        self._seeds = seeds
        self._random = chance.random
        self._noise = chance.randbytes
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._flip,
            self._overwrite,
            self._overwrite_number,
            self._cut,
            self._delete,
            self._duplicate,
            self._splice,
            self._insert,
        )

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def make(self) -> bytes:
        """Make the next input."""
        if self._random() < 0.02:
            return self._noise(self._below(80))
        return self.changed(self.unchanged())

    def unchanged(self) -> bytes:
        """One of the seeds as it is."""
        return self._seeds[self._below(len(self._seeds))]

    def changed(self, seed: bytes) -> bytes:
        """Change a seed."""
        made = bytearray(seed)
        while True:
            self._changes[self._below(len(self._changes))](made)
            if self._random() < 0.5:
                return bytes(made[:_LENGTH_MAX])

    def _flip(self, made: bytearray) -> None:
        if made:
            made[self._below(len(made))] ^= 1 << self._below(8)

    def _overwrite(self, made: bytearray) -> None:
        if made:
            made[self._below(len(made))] = self._below(256)

    def _overwrite_number(self, made: bytearray) -> None:
        """A number of two or four bytes, which may be a length, gets another value."""
        width = 4 if self._random() < 0.7 else 2
        start = self._below(max(1, len(made) - width + 1))
        number = INTERESTING[self._below(len(INTERESTING))] & ((1 << 8 * width) - 1)
        made[start : start + width] = number.to_bytes(width, "big")

    def _cut(self, made: bytearray) -> None:
        del made[self._below(len(made) + 1) :]

    def _span(self, made: bytearray) -> tuple[int, int]:
        start = self._below(len(made) + 1)
        return start, min(len(made), start + 1 + self._below(12))

    def _delete(self, made: bytearray) -> None:
        start, end = self._span(made)
        del made[start:end]

    def _duplicate(self, made: bytearray) -> None:
        start, end = self._span(made)
        made[start:start] = made[start:end] * (1 + self._below(20))

    def _splice(self, made: bytearray) -> None:
        """Go on as another seed does."""
        other = self.unchanged()
        made[self._below(len(made) + 1) :] = other[self._below(len(other) + 1) :]

    def _insert(self, made: bytearray) -> None:
        start = self._below(len(made) + 1)
        made[start:start] = self._noise(1 + self._below(8))
