"""Keys of a table → records of their current rows, at an order's position.

Later changes of a row follow in the stream. So an order undoes nothing newer, neither in the log
nor in derived tables.
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
"""An order for several rows ends with the row that reaches this size."""


class InVainError(MillraceError):
    """The reason why an order can't be executed."""


class ForgedOrderError(MillraceError):
    """An order that no command wrote. Any role can write these, in any number."""


class Repaired(NamedTuple):
    """What to do with rows that can't be sent: ``leave_out`` gets the reason.

    ``keeps_gone``: the target may be meant to keep a row that the source doesn't have.
    """

    leave_out: LeaveOut
    keeps_gone: bool


class Schemas(Protocol):
    """The tables' schema versions (cdc.tables)."""

    def newest(self, table: TableName) -> TableSchema | None:
        """Return the newest version, if one exists."""

    def described(
        self, table: TableDescription, since: Position
    ) -> tuple[TableSchema, list[Record]]:
        """Return a table's schema from the catalog, and the log's records of it if it is new."""


class EncoderSource(Protocol):
    """The source of encoders (cdc.tables)."""

    def encoder(self, schema: TableSchema) -> Encoder:
        """Return the encoder of a table, in this version of its schema."""


class CurrentRows:
    """Reads rows on a connection that nothing else uses at that time."""

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
        """Return the table's current description, as seen after the order's transaction."""
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
        """Return the log's records for these keys. A new schema version comes first.

        ``repaired`` rows may be left out. Others may not.
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
        # At the end: only then must a new schema version get into the log.
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
    """Do something for one row. Pass its error to ``leave_out`` if that is given."""
    try:
        yield
    except (InVainError, *ROW_ERRORS) as error:
        if leave_out is None:
            raise
        leave_out(error)


def key_of(table: TableDescription, values: Mapping[str, object]) -> Key | None:
    """Return the row's key from its columns' texts by name. None: one is missing."""
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
