"""The daemon's activity → its output on a terminal, or in a log file."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TextIO, cast

import rich.progress
import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from cdc.postgres.described import TableDescription
from cdc.records.schema import TableName
from cdc.records.state import Progress, TableState
from cdc.tables.reads import ReadProgress
from deploy.commands.printing import printable_line, printable_values

log = structlog.get_logger()
LINE_S: Final = 10.0
"""How often a log file gets a line about a table."""

SHOWN_MAX: Final = 20
"""Maximum bars on a terminal. With more tables, finished ones aren't shown."""


MOVE_S = 0.1
"""How often a table's bar moves."""
WINDOWS_S = 0.5
"""The same for a table that is read while streaming."""
STREAMING_LINE_S = 30.0
"""How often a log file gets a line about streaming."""


@dataclass(slots=True)
class _TableProgress:
    task: TaskID
    bytes: int
    rows: int
    share: float
    began: float
    line: float = field(default=0.0)

    def rate(self, rows: int, now: float) -> float:
        """Return rows per second since the first update."""
        return (rows - self.rows) / max(0.1, now - self.began)

    def left_s(self, share: float, now: float) -> float | None:
        """Return the time left, at the rate since the first update."""
        done = share - self.share
        return (now - self.began) * (1 - share) / done if done > 0 else None


class TableBars:
    """Rows, bytes, rows/s and time left, for each table that is being read."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_terminal = console.is_terminal
        self._clock = clock
        self._bars = rich.progress.Progress(
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
        self._tables: dict[str, _TableProgress] = {}

    def begin(self, table: str, size: int, rows: int = 0, share: float = 0.0) -> None:
        """Show a table of this size, with the share (from 0 to 1) that was read before."""
        task = self._bars.add_task(
            printable_line(table),
            total=max(1, size),
            completed=int(share * size),
            rows=rows,
            rate=0.0,
            note="",
        )
        now = self._clock()
        self._tables[table] = _TableProgress(task, size, rows, share, now, now)
        self._bars.start()

    def move(self, table: str, rows: int, share: float | None, note: str = "") -> None:
        """Show how many rows were read, and their share of the table, if known."""
        entry, now = self._tables[table], self._clock()
        rate = entry.rate(rows, now)
        done = None if share is None else int(share * max(1, entry.bytes))
        self._bars.update(entry.task, completed=done, rows=rows, rate=rate, note=note)
        if self._is_terminal or now - entry.line < LINE_S:
            return
        entry.line = now
        left_s = None if share is None else entry.left_s(share, now)
        log.info(
            "reading",
            table=table,
            rows=rows,
            bytes=done,
            bytes_total=entry.bytes,
            rows_per_s=round(rate),
            percent=None if share is None else round(100 * share, 1),
            left_s=None if left_s is None else round(left_s),
            **({"note": note} if note else {}),
        )

    def done(self, table: str, rows: int, note: str = "") -> None:
        """Show that all of it was read, or that the read ends with the note."""
        self.end(table, rows, note)
        if not self._is_terminal and not note:
            log.info("table read", table=table, rows=rows)

    def end(self, table: str, rows: int, note: str = "") -> None:
        """Show the same, without a log line of our own."""
        entry = self._tables[table]
        if not note:
            self._bars.update(entry.task, completed=max(1, entry.bytes))
        rate = entry.rate(rows, self._clock())
        shown = len(self._tables) <= SHOWN_MAX
        self._bars.update(entry.task, rows=rows, rate=rate, note=note, visible=shown)

    def stop(self) -> None:
        """Stop the bars."""
        self._bars.stop()


class _StandardError:
    """Writes line by line, from any thread, above the bars if they are shown.

    A failure ends nothing: a full disk under a log must not end the daemon.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Write it, or as much of it as there is room for."""
        with self._lock, suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush it."""
        with suppress(OSError):
            sys.stderr.flush()


class _ToStructlog(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, record.getMessage(), logger=record.name)


def configure_logging(*, json: bool = False) -> None:
    """Log to standard error: for people, or one JSON object per line."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            printable_values,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _StandardError())),
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_ToStructlog()], force=True)


class ConsoleObserver:
    """Shows a bar per table on a terminal, and log lines elsewhere."""

    def __init__(
        self, console: Console | None = None, standby_trouble: Callable[[], str] = lambda: ""
    ) -> None:
        """``standby_trouble`` returns why no rows come from [snapshot_source]. Empty: they do."""
        self._standby_trouble = standby_trouble
        self._console = console or Console(stderr=True)
        self._bars = TableBars(self._console)
        self._tables: dict[TableName, TableDescription] = {}
        self._shown: set[TableName] = set()
        self._pages_done: dict[TableName, int] = {}
        self._unfinished: set[TableName] = set()
        self._snapshot_started = self._last_line = time.monotonic()
        self._next_move = 0.0
        self._windows: dict[str, int] = {}
        """Tables that are read while streaming, and their number of rows."""
        self._rows = 0
        self._events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._bars.stop()

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Expect these tables."""
        self._snapshot_started = time.monotonic()
        self._unfinished = {table.name for table in tables}
        self._tables = {table.name: table for table in tables}
        self._shown.clear()
        self._pages_done.clear()
        self._rows = 0

    def snapshot_progress(self, progress: ReadProgress) -> None:
        """Show the table's progress, by its pages and the catalog's estimate of its rows."""
        now = time.monotonic()
        if progress.read is None and now < self._next_move and progress.table in self._shown:
            return
        self._next_move = now + MOVE_S
        name, share = str(progress.table), self._share(progress)
        if progress.table not in self._shown:
            self._shown.add(progress.table)
            table = self._tables[progress.table]
            self._bars.begin(name, table.pages * table.block_bytes, progress.rows, share)
        if not progress.is_done:
            self._bars.move(name, progress.rows, share)
            return
        self._bars.done(name, progress.rows)
        self._rows += progress.rows
        self._unfinished.discard(progress.table)
        if not self._unfinished:
            self._bars.stop()
            seconds = time.monotonic() - self._snapshot_started
            log.info("snapshot complete", rows=self._rows, seconds=round(seconds, 1))

    def _show_windows(self, states: Iterable[TableState]) -> None:
        """Show the progress of tables that are read while streaming."""
        shown: dict[str, int] = {}
        for state in states:
            request = min(state.requests, key=lambda each: each.order)
            if request.kind == "blocking":
                continue
            name, share = str(state.name), state.share_of(request)
            if name not in self._windows and state.name not in self._shown:
                size = state.pages_total * state.block_bytes
                self._bars.begin(name, size, request.rows, share)
            shown[name] = request.rows
            awaited = "waits for the standby" if self._standby_trouble() else ""
            note = "paused" if request.paused else awaited
            self._bars.move(name, request.rows, share, note)
        for name in self._windows.keys() - shown.keys():
            self._bars.end(name, self._windows[name])
        if not shown and (self._windows or self._shown):
            self._shown.clear()
            self._bars.stop()
        self._windows = shown

    def _share(self, progress: ReadProgress) -> float:
        """Return the share of the table that was read: whole chunks, and known rows."""
        if progress.read is not None:
            self._pages_done[progress.table] = progress.pages_done
        table = self._tables[progress.table]
        by_pages = self._pages_done.get(progress.table, 0) / max(1, table.pages)
        by_rows = progress.rows / table.rows_estimated if table.rows_estimated else 0.0
        return min(max(by_pages, by_rows), 1.0)

    def streaming(self, progress: Progress, states: Mapping[TableName, TableState]) -> None:
        """Show active reads. Log the number of events and the position from time to time."""
        now = time.monotonic()
        if now >= self._next_move:
            self._next_move = now + WINDOWS_S
            self._show_windows([state for state in states.values() if state.requests])
        if now - self._last_line >= STREAMING_LINE_S:
            log.info(
                "streaming",
                events=progress.events,
                events_per_s=round((progress.events - self._events) / (now - self._last_line)),
                position=str(progress.position),
            )
            self._last_line, self._events = now, progress.events
