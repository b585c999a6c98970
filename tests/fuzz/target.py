"""A target of fuzzing: endless inputs, and a property that must hold for each."""

import faulthandler
import random
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

HANG_S: Final = 60.0
"""So long for a thousand inputs is a hang: every thread's traceback is printed, and that's it."""
SLOW_S: Final = 0.5
"""Of the processor's time: others may use the machine, too."""
_ROUND: Final = 1_000
_SHOWN_CHARS_MAX: Final = 3_000


class Target(ABC):
    """One parser under test; ``make`` and ``check`` are deterministic for a seed."""

    name: ClassVar[str]
    share: ClassVar[int]
    """Of the inputs, relative to the others: those that cost little get more."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (reproducible, not secret)

    @abstractmethod
    def make(self) -> Any:
        """Make the next input."""

    @abstractmethod
    def check(self, made: Any) -> None:
        """Feed it; raises, whatever it is, where that isn't what the code promises."""


def fuzz(target: Target, inputs: int, failures_max: int = 5) -> tuple[int, list[str]]:
    """Check so many inputs; returns how many it were, and how the first ones failed."""
    failures: list[str] = []
    for start in range(0, inputs, _ROUND):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        for number in range(start, min(start + _ROUND, inputs)):
            made = target.make()
            begun = time.thread_time()
            try:
                target.check(made)
            except Exception as error:  # noqa: BLE001 (any error is the finding)
                failures.append(f"{target.name}: {error!r} for {made!r}"[:_SHOWN_CHARS_MAX])
            if time.thread_time() - begun > SLOW_S:
                failures.append(f"{target.name}: slower than {SLOW_S} s for {made!r}")
            if len(failures) >= failures_max:
                faulthandler.cancel_dump_traceback_later()
                return number + 1, failures
    faulthandler.cancel_dump_traceback_later()
    return inputs, failures
