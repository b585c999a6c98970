"""Requests, watermarks and changed rows → the rows of chunks, in their place in the stream.

A chunk is read while the stream goes on, between two watermarks in the signal table (DBLog). Its
rows get into the log where the second one arrives, with its position, together with how far the
table is: a start goes on behind the last chunk. Rows of which the stream had a newer state are left
out (overtaken.py).
https://arxiv.org/abs/2010.12597
"""

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from cdc.changes import Read, Row
from cdc.errors import MillraceError
from cdc.postgres.catalog import CapturedTable
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.state import SnapshotRequest
from cdc.reference import INCREMENTAL
from cdc.signals import SeenRow
from cdc.tables import Tables
from snapshots.keyset import Chunk
from snapshots.overtaken import Changes
from snapshots.windows import Reading, Wanted, WatermarkError, WindowReader

log = structlog.get_logger()

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class IncrementalSnapshots:
    """Serves the requests of kind incremental, one chunk at a time."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._tables = tables
        self._clock = clock
        self._reading: Reading | None = None
        self._is_open = False
        self._changes = Changes(tables.key_names)
        self._not_before = 0.0
        self._delay_s = RETRY_S

    def turn(self) -> list[Record]:
        """Begin the next window where none is open; returns the records of what was given up."""
        if self._reading is None:
            wanted = self._wanted()
            if wanted and self._clock() >= self._not_before:
                self._reading = self._reader.start(str(uuid.uuid4()), wanted)
            return []
        if self._reading.failure is not None:
            return self._failed(self._reading.failure)
        if self._reading.job is not None and self._reading.job.done():
            self._reading.job.result()  # raises what is a bug of ours
        return []

    def changed(self, row: SeenRow) -> None:
        """Take notice of a change to a table that is being read."""
        asked = self._tables.states[row.table].requests
        if not any(one.kind == "incremental" and not one.paused for one in asked):
            return
        self._changes.note(row, inside=self._is_open)

    def opened(self, row_id: str) -> None:
        """Take notice of a watermark: what changes from here on is newer than the chunk."""
        if self._reading is not None and row_id == f"{self._reading.name}-open":
            self._is_open = True

    def closed(self, row_id: str, position: Position) -> list[Record]:
        """Take notice of a watermark; returns the chunk's rows, which have its position."""
        reading = self._reading
        if reading is None or not self._is_open or not row_id.startswith(reading.name):
            return []
        self._reading, self._is_open = None, False
        window = reading.window
        if window is None:
            raise AssertionError("a watermark that was written before its window was read")
        self._delay_s = RETRY_S
        records = [self._finish(wanted) for wanted in window.finished if self._is_asked(wanted)]
        for wanted in window.finished:
            log.info("incremental snapshot: table read", table=str(wanted.table.name))
        for refused in window.refused:
            if self._is_asked(refused.wanted):
                _warn(refused.wanted, refused.error)
                records.append(self._finish(refused.wanted))
        if window.chunk is None or window.of is None:
            self._changes.clear()
            return records
        kept = self._changes.kept(window.chunk)
        if kept is not None and self._is_asked(window.of):
            records += self._rows(window.chunk, kept, position)
            records.append(self._advance(window.of, window.chunk))
        return records

    def close(self) -> None:
        """End what goes on in the background."""
        self._reader.close()

    def _wanted(self) -> list[Wanted]:
        """What is to be read, in order."""
        wanted = [
            Wanted(CapturedTable(state.oid, state.name), request)
            for state in map(self._tables.states.__getitem__, self._tables.requested)
            for request in state.requests
            if request.kind == "incremental" and not request.paused
        ]
        return sorted(wanted, key=lambda one: one.request.order)

    def _is_asked(self, wanted: Wanted) -> bool:
        """Whether nobody has stopped it, or begun it anew, meanwhile."""
        asked = self._tables.states[wanted.table.name].requests
        return any(_same(request, wanted.request) for request in asked)

    def _finish(self, wanted: Wanted) -> Record:
        return self._replace(wanted, ())

    def _advance(self, wanted: Wanted, chunk: Chunk) -> Record:
        last = tuple((value or b"").decode() for value in chunk.keys[-1])
        (now,) = (
            request
            for request in self._tables.states[wanted.table.name].requests
            if _same(request, wanted.request)
        )
        place = {"last_key": last, "max_key": chunk.max_key}
        return self._replace(wanted, (now.model_copy(update=place),))

    def _replace(self, wanted: Wanted, by: Iterable[SnapshotRequest]) -> Record:
        table = wanted.table.name
        asked = self._tables.states[table].requests
        others = [one for one in asked if not _same(one, wanted.request)]
        return self._tables.set_requests(table, sorted([*others, *by], key=lambda one: one.order))

    def _rows(self, chunk: Chunk, kept: list[Row], position: Position) -> list[Record]:
        encoder, records = self._tables.chunk_encoder(chunk.table, position)
        marker = Read(INCREMENTAL)
        for row in kept:
            records += encoder.marked_row(row, position, position.commit_lsn, chunk.read_us, marker)
        return records

    def _failed(self, error: MillraceError | WatermarkError) -> list[Record]:
        """A window that came to nothing: try again, or give up where that can't help."""
        self._reading, self._is_open = None, False
        if isinstance(error, WatermarkError):
            log.error(
                "incremental snapshots are given up: the signal table refuses watermarks",
                reason=error.reason.what,
                remedy="let its owner GRANT INSERT (and DELETE) on it to the role in [source], with"
                " the columns id, type and data first; then send the signal again",
            )
            return [self._finish(wanted) for wanted in self._wanted()]
        log.warning("incremental snapshot: trying again", reason=error.what, delay_s=self._delay_s)
        self._not_before = self._clock() + self._delay_s
        self._delay_s = min(2 * self._delay_s, RETRY_S_MAX)
        return []


def _same(one: SnapshotRequest, other: SnapshotRequest) -> bool:
    """Whether it is one request, at the same place; it may have been paused meanwhile."""
    place = one.signal, one.order, one.last_key
    return place == (other.signal, other.order, other.last_key)


def _warn(wanted: Wanted, error: MillraceError) -> None:
    log.warning(
        "incremental snapshot: a table is left out",
        table=str(wanted.table.name),
        signal=wanted.request.signal,
        reason=error.what,
        remedy=error.remedy,
    )
