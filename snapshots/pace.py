"""How the source feels, and a limit → how many rows may be read now; pure, but for the clock.

Rows are paid for out of a bucket that fills at the allowed rate. Without a limit that is any rate,
until trivial statements take several times as long as they did: then it is halved, and grows again
by steps (AIMD), as TCP does it. Where nobody else uses the source, nobody suffers: it isn't halved.
https://www.rfc-editor.org/rfc/rfc5681 (section 3.1)
"""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import Final

BURST_S: Final = 0.25
"""What isn't taken is kept for so long."""
_PIECE_S: Final = 0.01
"""So much is waited for at least: each row by itself would cost more than the rows do."""
JUDGE_S: Final = 1.0
"""So long latencies are gathered before they are judged."""
SLOW: Final = 3.0
"""A source is slow whose latency is so many times its baseline, ..."""
SLOW_S_MIN: Final = 0.000_5
"""... and more than so much above it."""
_RECENT: Final = 300
"""The baseline is the best of so many."""
_STEP: Final = 1 / 32
_LEAST: Final = 1 / 64
"""Parts of the highest rate so far: by what it grows each time, and what it never goes below."""
_UNLIMITED: Final = 1 << 40


class Pace:
    """One for all that is read; ``felt`` may be called by a thread of its own."""

    def __init__(
        self,
        rows_per_second_max: int = 0,
        *,
        adaptive: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``rows_per_second_max`` 0: no limit."""
        self.limit = rows_per_second_max or math.inf
        self.adaptive = adaptive
        self._bearable = math.inf
        """The rate that the source bears."""
        self._clock = clock
        self._filled_at = clock()
        self._left = self._burst
        self._judged_at = clock()
        self._felt: list[float] = []
        self._means: deque[float] = deque(maxlen=_RECENT)
        self._taken = 0
        self._highest = 0.0

    @property
    def rate(self) -> float:
        """Rows a second that may be read now."""
        return min(self.limit, self._bearable)

    def room(self) -> int:
        """How many rows may be taken at once; 0: none for now."""
        if math.isinf(self.rate):
            return _UNLIMITED
        self._fill()
        return max(0, math.floor(self._left))

    def plan(self, rows: int) -> None:
        """Pay for rows that are going to be taken, also for more than there is room for."""
        if math.isfinite(self.rate):
            self._fill()
            self._left -= rows

    def took(self, rows: int, planned: int = 0) -> None:
        """Take notice of rows, and pay for those that weren't planned; others are given back."""
        self._taken += rows
        self.plan(rows - planned)

    def wait_s(self) -> float:
        """How long until it pays to go on."""
        if math.isinf(self.rate):
            return 0.0
        self._fill()
        return max(0.0, max(1.0, self.rate * _PIECE_S) - self._left) / self.rate

    def rows_at_once(self, rows_max: int) -> int:
        """How many rows a statement may ask for: at most as many as given, and at least one."""
        return rows_max if math.isinf(self.rate) else max(1, min(rows_max, int(self._burst)))

    def felt(self, latency_s: float, *, is_shared: bool) -> None:
        """Take in how long a trivial statement took; ``is_shared``: others use the source."""
        self._felt.append(latency_s)
        now = self._clock()
        elapsed = now - self._judged_at
        if elapsed < JUDGE_S:
            return
        taken, self._taken = self._taken / elapsed, 0
        self._judged_at = now
        self._highest = max(self._highest, taken)
        self.calibrate(self._felt)
        latency, base = self._means[-1], min(self._means)
        self._felt = []
        if taken > 0 and is_shared and latency > max(SLOW * base, base + SLOW_S_MIN):
            self._fill()
            least = max(self._highest * _LEAST, 1.0)
            self._bearable = max(min(self._bearable, taken) / 2, least)
            self._left = min(self._left, self._burst)
        elif math.isfinite(self._bearable):
            self._fill()
            self._bearable += self._highest * _STEP
            if self._bearable > self._highest:
                self._bearable = math.inf  # it isn't what holds us back

    def calibrate(self, latencies_s: list[float]) -> None:
        """Take in latencies for the baseline alone: nothing is being read."""
        # Without the longest one: a single hiccup says nothing.
        self._means.append(fmean(sorted(latencies_s)[:-1] or latencies_s))

    @property
    def _burst(self) -> float:
        return max(1.0, self.rate * BURST_S)

    def _fill(self) -> None:
        now = self._clock()
        if math.isinf(self._left):  # there was no limit
            self._left = self._burst
        else:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self.rate)
        self._filled_at = now
