"""How far tables are → a bar each on a terminal, and lines now and then where there is none."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

log = structlog.get_logger()
LINE_S: Final = 10.0
"""How often a log file gets a line about a table."""

SHOWN_MAX: Final = 20
"""So many bars fit on a terminal; of more tables, those that are done aren't shown."""


@dataclass(slots=True)
class _Table:
    task: TaskID
    bytes: int
    rows: int
    share: float
    began: float
    line: float = field(default=0.0)

    def rate(self, rows: int, now: float) -> float:
        """Rows a second since we look."""
        return (rows - self.rows) / max(0.1, now - self.began)

    def left_s(self, share: float, now: float) -> float | None:
        """Time left, as fast as it went since we look."""
        done = share - self.share
        return (now - self.began) * (1 - share) / done if done > 0 else None


class TableBars:
    """Rows, bytes, rows/s and time left, for each table that is being read."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_terminal = console.is_terminal
        self._clock = clock
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rows]:,} rows"),
            DownloadColumn(binary_units=True),
            TextColumn("{task.fields[rate]:,.0f} rows/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not self._is_terminal,
        )
        self._tables: dict[str, _Table] = {}

    def begin(self, table: str, size: int, rows: int = 0, share: float = 0.0) -> None:
        """Show a table of so many bytes, of which a share (from 0 to 1) was read before."""
        task = self._bars.add_task(
            table, total=max(1, size), completed=int(share * size), rows=rows, rate=0.0, note=""
        )
        now = self._clock()
        self._tables[table] = _Table(task, size, rows, share, now, now)
        self._bars.start()

    def move(self, table: str, rows: int, share: float | None, note: str = "") -> None:
        """So many rows are read, which is a share of the table, if anybody knows."""
        one, now = self._tables[table], self._clock()
        rate = one.rate(rows, now)
        done = None if share is None else int(share * max(1, one.bytes))
        self._bars.update(one.task, completed=done, rows=rows, rate=rate, note=note)
        if self._is_terminal or now - one.line < LINE_S:
            return
        one.line = now
        left_s = None if share is None else one.left_s(share, now)
        log.info(
            "reading",
            table=table,
            rows=rows,
            bytes=done,
            bytes_total=one.bytes,
            rows_per_s=round(rate),
            percent=None if share is None else round(100 * share, 1),
            left_s=None if left_s is None else round(left_s),
            **({"note": note} if note else {}),
        )

    def done(self, table: str, rows: int, note: str = "") -> None:
        """All of it was read; or no more will be, as the note says."""
        self.end(table, rows, note)
        if not self._is_terminal and not note:
            log.info("table read", table=table, rows=rows)

    def end(self, table: str, rows: int, note: str = "") -> None:
        """The same, where others tell the log of it."""
        one = self._tables[table]
        if not note:
            self._bars.update(one.task, completed=max(1, one.bytes))
        rate = one.rate(rows, self._clock())
        shown = len(self._tables) <= SHOWN_MAX
        self._bars.update(one.task, rows=rows, rate=rate, note=note, visible=shown)

    def stop(self) -> None:
        """Show nothing any more."""
        self._bars.stop()
