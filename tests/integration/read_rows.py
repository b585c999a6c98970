"""Rows as a snapshot reads them, without an encoder's work: texts in place of records."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import psycopg
from psycopg import sql

from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.stream.translation import Limits
from snapshots import reader
from snapshots.copied_rows import Copied
from snapshots.copy_text import Row
from snapshots.pages import Range, next_range


class Texts(NamedTuple):
    """A row in place of its record, which takes as many bytes."""

    row: Row
    key: bytes
    value: None = None


class TextEncoder:
    """Stands in for an encoder of a table with so many columns."""

    def __init__(self, width: int) -> None:
        self.schema = SimpleNamespace(columns=range(width))

    def compiled_read(self, *_: object) -> None:
        """There is none."""

    def snapshot_row(self, row: Row, _position: Position, _lsn: Lsn, _ts_us: int) -> Any:
        """A row's stand-in."""
        return Texts(row, b"".join(text or b"" for text in row))


def batches(
    opened: psycopg.Connection, select: sql.Composed, width: int, limits: Limits = reader.LIMITS
) -> Iterator[list[Row]]:
    """The rows of a SELECT of so many columns, as they are batched."""
    encoder: Any = TextEncoder(width)
    copied = Copied(encoder, Position(1, Lsn(1), 0), Lsn(1), 1)
    for batch in reader.read(opened, select, copied, limits):
        yield [made.row for made in cast("list[Any]", batch)]


def selects(table: TableDescription, chunk_bytes: int = 1 << 20) -> Iterator[sql.Composed]:
    """A table's chunks, in order."""
    columns = [column.name for column in table.columns]
    for leaf in table.leaves:
        taken: list[Range] = []
        pages = chunk_bytes // table.block_bytes
        while (found := next_range(taken, leaf.pages, pages)) is not None:
            taken.append(found)
            yield reader.of_range(leaf, columns, found, [table.row_filter])
