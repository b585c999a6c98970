"""What the daemon does → what a person at a terminal, or a log file, sees of it."""

import logging
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bars,
)

from cdc.backfill import SnapshotBatch
from cdc.postgres.catalog import TableDescription
from cdc.records.schema import TableName
from cdc.records.state import Progress

log = structlog.get_logger()
STREAMING_LINE_S = 30.0
"""How often a log file gets a line about streaming."""


class _ToStructlog(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, record.getMessage(), logger=record.name)


def configure_logging(*, json: bool = False) -> None:
    """Log to standard error: for people, or one JSON object a line."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_ToStructlog()], force=True)


class ConsoleObserver:
    """Shows a bar per table where there is a terminal, and log lines where there is none."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[TableName, TaskID] = {}
        self._unfinished: set[TableName] = set()
        self._snapshot_started = self._last_line = time.monotonic()
        self._rows = 0
        self._events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Show a bar for each table, against the number of rows that the catalog estimates."""
        self._snapshot_started = time.monotonic()
        self._unfinished = {table.name for table in tables}
        self._tasks = {
            table.name: self._bars.add_task(str(table.name), total=table.rows_estimated or None)
            for table in tables
        }
        if tables:
            self._bars.start()

    def snapshot_batch(self, batch: SnapshotBatch) -> None:
        """Move the table's bar on."""
        self._bars.update(self._tasks[batch.table], completed=batch.rows)
        if not batch.table_done:
            return
        self._bars.update(self._tasks[batch.table], total=batch.rows)
        self._rows += batch.rows
        self._unfinished.discard(batch.table)
        if not self._console.is_terminal:
            log.info("table read", table=str(batch.table), rows=batch.rows)
        if not self._unfinished:
            self._bars.stop()
            seconds = time.monotonic() - self._snapshot_started
            log.info("snapshot complete", rows=self._rows, seconds=round(seconds, 1))

    def streaming(self, progress: Progress) -> None:
        """Log a line now and then: how many events, and up to where."""
        now = time.monotonic()
        if now - self._last_line >= STREAMING_LINE_S:
            log.info(
                "streaming",
                events=progress.events,
                events_per_s=round((progress.events - self._events) / (now - self._last_line)),
                position=str(progress.position),
            )
            self._last_line, self._events = now, progress.events
