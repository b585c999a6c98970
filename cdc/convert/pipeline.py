"""Decoded rows → records: change → reference → transforms → converter.

Defines what the extension writes. If all of it is JSON, compiled_table.py describes the table to
the extension. Rows that the extension hands back are written here.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cdc.compiled import fast
from cdc.convert.compiled_table import compiled_read, compiled_table, read_source
from cdc.convert.converters import Converters, converters
from cdc.events.changes import Change, Operation, Read, Row
from cdc.events.reference import LogContext, TableEvents, TransactionBlocks
from cdc.events.rules import EventRules
from cdc.records.bounds import EndedRows
from cdc.records.connect import SourceRecord
from cdc.records.position import HEADER, Lsn, Position, Transaction, header
from cdc.records.record import Record
from cdc.records.schema import TableSchema
from cdc.records.topics import Cleanup

Transforms = Callable[[SourceRecord], list[SourceRecord]]
"""All transforms in sequence: cdc/transforms/chain.py."""
OpenTopic = Callable[[str, Cleanup], None]
"""Creates a topic that doesn't exist. A second call does nothing."""
RecordTime = Callable[[str, int], int]
"""Topic and the time (ms since 1970) that a record asks for → the time that it gets. 0: now."""

NO_SCHEMA: Final = 0
"""The schema version in the header of a record about no table."""


def no_topic(_name: str, _cleanup: Cleanup) -> None:
    """Create no topic: all of them exist."""


def any_time(_topic: str, wanted_ms: int) -> int:
    """Return the time unchanged: topics keep records of any time."""
    return wanted_ms


@dataclass(frozen=True, slots=True)
class RecordPipeline:
    """Processing of every Connect record: transforms in order, converter, our header.

    ``routes_events``: the output has the user's own events. None of them replaces another.
    """

    convert: Converters
    transform: Transforms | None = None
    position_header: bool = True
    open_topic: OpenTopic = no_topic
    record_time: RecordTime = any_time
    routes_events: bool = False

    def of_table(
        self,
        made: Sequence[SourceRecord],
        position: Position,
        version: int,
        *,
        compacted: bool,
        reread: tuple[int, ...] = (),
    ) -> list[Record]:
        """Return the records of one frame about a table, in order. Its own topic exists.

        ``reread`` are the columns whose values in ``after`` were read again.
        """
        keeps_last = compacted and not self.routes_events
        own_topics = {source.topic for source in made}
        header_value = header(position, version)
        reread_header_value = header(position, version, reread)
        return [
            record
            for source in made
            for record in self._written(
                source,
                reread_header_value if _has_after(source) else header_value,
                own_topics,
                keeps_last=keeps_last,
            )
        ]

    def of_stream(self, made: Iterable[SourceRecord], position: Position) -> list[Record]:
        """Return the records of one frame about no table."""
        header_value = header(position, NO_SCHEMA)
        return [
            record
            for source in made
            for record in self._written(source, header_value, set(), keeps_last=False)
        ]

    def _written(
        self, source: SourceRecord, header_value: bytes, own_topics: set[str], *, keeps_last: bool
    ) -> Iterator[Record]:
        for event in [source] if self.transform is None else self.transform(source):
            record = self.convert(event)
            if record.topic not in own_topics:
                self.open_topic(record.topic, "compact" if keeps_last else "delete")
            if record.timestamp_ms:
                time_ms = self.record_time(record.topic, record.timestamp_ms)
                record = record._replace(timestamp_ms=time_ms)
            if self.position_header:
                record = record._replace(headers=[*record.headers, (HEADER, header_value)])
            yield record


def _has_after(event: SourceRecord) -> bool:
    return event.value is not None and event.value["after"] is not None


_READ: Final = Read()

NATIVE: Final = RecordPipeline(converters({}))


class Encoder:
    """Converts the rows of one table, in one version of its schema, to records.

    Call ``begin`` for the transaction of a row first; snapshot rows need none. Records of one call
    share the position and keep their order. Errors are those of TableEvents.
    """

    def __init__(
        self,
        schema: TableSchema,
        rules: EventRules,
        log: LogContext,
        pipeline: RecordPipeline,
        *,
        blocks: TransactionBlocks | None = None,
        reselects: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._events = TableEvents(schema, rules, log, blocks=blocks, clock_ns=clock_ns)
        self.reselects = self._events.columns if reselects else frozenset[int]()
        """Indexes of the columns whose unchanged values are read again."""
        self._pipeline = pipeline
        self._schema = schema
        self._counts = blocks is not None
        self._version = schema.version
        self._compacted = log.compacted
        self._transaction: Transaction | None = None

    @property
    def schema(self) -> TableSchema:
        """The table's schema, in the version of the rows."""
        return self._schema

    def begin(self, transaction: Transaction) -> None:
        """Enter a transaction."""
        self._transaction = transaction

    def compiled(self) -> fast.Table | None:
        """The table for the compiled way, or None."""
        if self._counts:
            return None
        return self._for_compiled(partial(compiled_table, reselects=bool(self.reselects)))

    def compiled_read(self, lsn: Lsn, ts_us: int, read: Read) -> tuple[fast.Table, bytes] | None:
        """The table for snapshot rows, and the bytes between a row and the event's time."""
        table, json = self._for_compiled(compiled_read), self._pipeline.convert.json
        if table is None or json is None:
            return None
        return table, read_source(self._events, json[1], lsn, ts_us, read)

    def _for_compiled(self, make: Callable[..., fast.Table | None]) -> fast.Table | None:
        pipeline = self._pipeline
        json = pipeline.convert.json
        if pipeline.transform is not None or json is None:
            return None
        headers = pipeline.convert.headers(self._events.context)
        position_header = pipeline.position_header
        return make(self._schema, self._events, json, headers, position_header=position_header)

    def insert(self, new: Row, lsn: Lsn, position: Position) -> list[Record]:
        """Return the records of a new row."""
        return self._streamed(Operation.CREATE, None, False, new, lsn, position)

    def update(
        self,
        old: Row | None,
        old_is_key: bool,
        new: Row,
        lsn: Lsn,
        position: Position,
        reread: tuple[int, ...] = (),
    ) -> list[Record]:
        """Return the records of a changed row. ``reread`` are the columns that were read again."""
        return self._streamed(Operation.UPDATE, old, old_is_key, new, lsn, position, reread)

    def delete(self, old: Row, old_is_key: bool, lsn: Lsn, position: Position) -> list[Record]:
        """Return the records of a deleted row."""
        return self._streamed(Operation.DELETE, old, old_is_key, None, lsn, position)

    def truncate(self, lsn: Lsn, position: Position) -> list[Record]:
        """Return the records of a TRUNCATE."""
        return self._streamed(Operation.TRUNCATE, None, False, None, lsn, position)

    def snapshot_truncate(self, position: Position, ts_us: int) -> list[Record]:
        """Return the records that remove all rows up to a position.

        The snapshot has all that exist.
        """
        lsn = position.commit_lsn
        change = Change(Operation.TRUNCATE, None, False, None, position, lsn, None, ts_us)
        return self._records(change)

    def ended(self, rows: EndedRows, position: Position, ts_us: int) -> list[Record]:
        """Return the records that end a dropped partition's rows up to a position."""
        lsn = rows.upto.commit_lsn
        change = Change(Operation.ENDED, None, False, None, position, lsn, None, ts_us, ended=rows)
        return self._records(change)

    def snapshot_row(
        self, row: Row, position: Position, lsn: Lsn, ts_us: int, read: Read = _READ
    ) -> list[Record]:
        """Return the records of a snapshot's row, read at ``lsn``, ``ts_us`` (since 1970, UTC)."""
        return self._records(
            Change(Operation.READ, None, False, row, position, lsn, None, ts_us, read)
        )

    def _streamed(
        self,
        operation: Operation,
        old: Row | None,
        old_is_key: bool,
        new: Row | None,
        lsn: Lsn,
        position: Position,
        reread: tuple[int, ...] = (),
    ) -> list[Record]:
        transaction = self._transaction
        if transaction is None:
            raise AssertionError("begin() wasn't called for the row's transaction")
        ts_us = transaction.commit_ts_us
        return self._records(
            Change(operation, old, old_is_key, new, position, lsn, transaction, ts_us), reread
        )

    def _records(self, change: Change, reread: tuple[int, ...] = ()) -> list[Record]:
        made = self._events.records(change)
        return self._pipeline.of_table(
            made, change.position, self._version, compacted=self._compacted, reread=reread
        )
