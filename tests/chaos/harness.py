"""Parts that all runs of chaos share: servers that end with it, a line of figures, an exit code."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self


class Servers(ABC):
    """All that a run starts: there within a ``with`` block, and gone behind it."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._end()

    @abstractmethod
    def _start(self) -> None:
        """Start them."""

    @abstractmethod
    def _end(self) -> None:
        """End those that were started."""


def tell(
    name: str, complaints: Iterable[str], figures: Mapping[str, Any], folder: Path, failure: str
) -> int:
    """Print what is wrong, and the figures; returns the exit code.

    The folder, which has all logs, goes where there is no ``failure``.
    """
    for complaint in complaints:
        print(complaint)
    print(json.dumps({"benchmark": name, "figures": figures}, ensure_ascii=False))
    if not failure:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"{failure}; logs of daemon and servers: {folder}")
    return 1
