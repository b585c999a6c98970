"""Keys of a table → records of their rows as they are now, at an order's position.

What changes a row later follows in the stream: so nothing newer is undone, in the log nor in what
is derived from it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import psycopg

from cdc.convert.pipeline import Encoder
from cdc.errors import ROW_ERRORS, MillraceError, SourceUnreachableError
from cdc.events.changes import Row
from cdc.postgres.captured import described_tables
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import explained
from cdc.postgres.reselect import INVISIBLE, PATIENCE, await_visible, current_row
from cdc.records.position import Position, Transaction
from cdc.records.record import Record
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import TableState
from cdc.settings import CaptureSettings

Key = tuple[bytes, ...]
"""The texts of a row's key, in the order of the table's columns."""
LeaveOut = Callable[[MillraceError], None]
_KEPT: Final = (
    "the source doesn't have the row; it may have been in a dropped partition, and these rows"
    " are kept (partition.drop.policy)"
)
_BYTES_MAX: Final = 32 << 20
"""An order for several rows ends with the one that reaches this."""


class InVainError(MillraceError):
    """Why an order can't be followed."""


class ForgedOrderError(MillraceError):
    """An order that no command wrote: anybody can, as often as they like."""


class Repaired(NamedTuple):
    """What becomes of rows that can't be sent: ``leave_out`` is told why.

    ``keeps_gone``: a row that the source doesn't have may be one that is kept.
    """

    leave_out: LeaveOut
    keeps_gone: bool


class Schemas(Protocol):
    """The tables' schema versions (cdc.tables)."""

    def newest(self, table: TableName) -> TableSchema | None:
        """The newest version, if there is one."""

    def described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        """The schema of a table as the catalog has it, and what the log gets if it is new."""


class EncoderSource(Protocol):
    """What encodes rows (cdc.tables)."""

    def encoder(self, schema: TableSchema) -> Encoder:
        """The encoder of a table, in this version of its schema."""


class CurrentRows:
    """Reads rows on a connection that nothing else uses meanwhile."""

    def __init__(
        self,
        settings: CaptureSettings,
        connection: psycopg.Connection,
        keep_alive: Callable[[], None],
        schemas: Schemas,
        encoders: EncoderSource,
    ) -> None:
        """``keep_alive`` is called before each query."""
        self._settings = settings
        self.connection = connection
        self._keep_alive = keep_alive
        self.schemas = schemas
        self.encoders = encoders

    def described(self, state: TableState, transaction: Transaction) -> TableDescription:
        """The table as it is, for whoever sees the order's transaction."""
        with explained(self.connection.pgconn):
            xids = frozenset({transaction.xid})
            is_visible = await_visible(self.connection, xids, self._keep_alive)
        if not is_visible:
            raise SourceUnreachableError(INVISIBLE)
        captured = [CapturedTable(state.oid, state.name)]
        self._keep_alive()
        with at_one_instant(self.connection):
            for limit in PATIENCE:
                query(self.connection, limit)
            described = described_tables(self.connection, self._settings, captured)
        if not described:
            raise InVainError(f"table {state.name} no longer exists")
        return described[0]

    def records(
        self,
        table: TableDescription,
        keys: Iterable[Key],
        position: Position,
        transaction: Transaction,
        repaired: "Repaired | None" = None,
    ) -> list[Record]:
        """What the log gets of these keys; a schema version that is new, first.

        Rows that are ``repaired`` may be left out; of others none may.
        """
        leave_out = repaired.leave_out if repaired is not None else None
        rows, size = dict[Key, Row | None](), 0
        for key in dict.fromkeys(keys):
            self._keep_alive()
            with _one_row(leave_out):
                row = current_row(self.connection, table, key)
                size += sum(len(value) for value in row or () if isinstance(value, bytes))
                if size > _BYTES_MAX and rows and leave_out is not None:
                    leave_out(InVainError("the rows of one order are larger than the memory limit"))
                    break
                if row is None and repaired is not None and repaired.keeps_gone:
                    raise InVainError(_KEPT)
                rows[key] = row
        # At the end: a schema version that is new then has to get into the log.
        schema, made = self.schemas.described(table, position)
        with _one_row(leave_out):
            encoder = self.encoders.encoder(schema)
            encoder.begin(transaction)
            for key, row in rows.items():
                with _one_row(leave_out):
                    made += _as_it_is(table, key, row, position, encoder)
        return made


@contextmanager
def _one_row(leave_out: LeaveOut | None) -> Iterator[None]:
    """Do something for one row; what is wrong with it is told, where somebody asks for that."""
    try:
        yield
    except (InVainError, *ROW_ERRORS) as error:
        if leave_out is None:
            raise
        leave_out(error)


def key_of(table: TableDescription, values: Mapping[str, object]) -> Key | None:
    """The row's key, of its columns' texts by name; None where one is missing."""
    texts = [values.get(column.name) for column in table.columns if column.key is not None]
    key = tuple(text for text in texts if isinstance(text, bytes))
    return key if len(key) == len(texts) else None


def _as_it_is(
    table: TableDescription, key: Key, row: Row | None, position: Position, encoder: Encoder
) -> list[Record]:
    lsn = position.commit_lsn
    if row is not None:
        return encoder.snapshot_row(row, position, lsn, time.time_ns() // 1_000)
    texts = iter(key)
    old = tuple(None if column.key is None else next(texts) for column in table.columns)
    return encoder.delete(old, True, lsn, position)
