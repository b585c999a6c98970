"""Decoded rows → keyed records in Debezium's envelope: the hot path, bytes straight from the row.

What it writes is defined by cdc/events/reference.py (Change → Envelope → bytes), and held
byte-equal to it by tests/properties. What is the same for all rows of a transaction is written once
(``begin``); a row costs one fragment per column, one join and one encode.
"""

import time
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from typing import Final

from cdc import values
from cdc.compiled.extension import fast
from cdc.errors import CorruptMessageError
from cdc.events.changes import ABSENT, Operation, Read, Row, filled, no_key
from cdc.records.envelope import CONNECTOR, VERSION
from cdc.records.position import HEADER, Lsn, Position, filled_field
from cdc.records.record import Record
from cdc.records.schema import TableSchema
from cdc.records.topics import TRUNCATE_KEY
from cdc.records.transaction import Transaction, after_lsn
from cdc.settings.modes import ValueModes

NATIVE: Final = ValueModes()


class TableEncoder:
    """Turns the rows of one table, in one version of its schema, into records.

    ``begin`` must have been called for the transaction that a row belongs to; snapshot rows need
    none. All records of one call share the position, and keep their order. A text that isn't of
    its column's type raises CorruptMessageError, a missing old key TableRefusedError.
    """

    def __init__(
        self,
        schema: TableSchema,
        *,
        prefix: str,
        database: str,
        partitions: int,
        compacted: bool,
        reselects: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.reselects = frozenset(range(len(schema.columns))) if reselects else frozenset[int]()
        """Indexes of the columns whose unchanged values are read again."""
        self._schema = schema
        self._topic = schema.topic
        self._partitions = partitions
        self._compacted = compacted
        self._clock_ns = clock_ns
        self._columns = [
            (f",{encode_basestring(column.name)}:", values.json_fragment(column))
            for column in schema.columns
        ]
        self._width = len(self._columns)
        self._key = [schema.columns.index(column) for column in schema.key]
        self._single_key = self._key[0] if len(self._key) == 1 else None
        self._source = SourceText(schema, prefix, database)
        self._transaction = self._snapshot = ("", "", "")
        self._snapshot_ts_us: int | None = None
        self._commit: tuple[int, Lsn] | None = None
        self._header_start = ""
        self._header_end = f"/{schema.version}"

    @property
    def schema(self) -> TableSchema:
        """The table's schema, in the version that the rows have."""
        return self._schema

    def compiled(self) -> "fast.Table | None":
        """The same for the compiled way, which does everything but key changes and TRUNCATE."""
        if fast is None:
            return None
        columns: list[fast.CompiledColumn] = []
        for column, (name, fragment) in zip(self._schema.columns, self._columns, strict=True):
            codec, text = values.codec(column, NATIVE), name.encode()
            kind, digits = (codec.kind, codec.digits) if codec else (values.ValueKind.OTHER, 0)
            columns.append((kind, digits, text, text + b"null", b"", b"", fragment))
        source = self._source.around()
        version = self._header_end.encode()
        flags = self._compacted, bool(self.reselects), True
        return fast.Table(self._topic, columns, self._key, source, flags, version)

    def compiled_read(self, lsn: Lsn, ts_us: int, _read: Read) -> "tuple[fast.Table, bytes] | None":
        """The same for snapshot rows, and what stands between a row and the event's own time."""
        table = self.compiled()
        if table is None:
            return None
        return table, self._source.of_read(lsn, self._source.of_snapshot(ts_us))

    def begin(self, transaction: Transaction) -> None:
        """Enter a transaction: writes what it gives to every event's source block."""
        self._transaction = self._source.of_transaction(transaction)

    def insert(self, new: Row, lsn: Lsn, position: Position) -> list[Record]:
        """A new row: one create."""
        members = self._row_members(new)
        return [
            Record(
                self._topic,
                self._key_of(members),
                self._value("null", _row(members), "c", lsn),
                self._headers(position),
            )
        ]

    def update(
        self,
        old: Row | None,
        old_is_key: bool,
        new: Row,
        lsn: Lsn,
        position: Position,
        reread: tuple[int, ...] = (),
    ) -> list[Record]:
        """A changed row: one update; where its key changed: delete, tombstone, create.

        ``reread`` are the indexes of the columns whose values were read again.
        """
        new_headers = self._headers(position, filled_field(reread))
        if old is None:
            members = self._row_members(new)
            key = self._key_of(members)
            value = self._value("null", _row(members), "u", lsn)
            return [Record(self._topic, key, value, new_headers)]
        self._check(old)
        self._check(new)
        new = filled(new, old, old_is_key=old_is_key)
        old_members = self._old_members(old, old_is_key)
        members = self._row_members(new)
        old_key, key = self._old_key(old_members), self._key_of(members)
        if old_key == key:
            before = "null" if old_is_key else _row(old_members)
            value = self._value(before, _row(members), "u", lsn)
            return [Record(self._topic, key, value, new_headers)]
        create = self._value("null", _row(members), "c", lsn)
        return [
            *self._deleted(old_key, old_members, lsn, self._headers(position)),
            Record(self._topic, key, create, new_headers),
        ]

    def delete(self, old: Row, old_is_key: bool, lsn: Lsn, position: Position) -> list[Record]:
        """A deleted row: a delete, followed by a tombstone in a compacted topic."""
        members = self._old_members(old, old_is_key)
        key = self._old_key(members)
        return self._deleted(key, members, lsn, self._headers(position))

    def truncate(self, lsn: Lsn, position: Position) -> list[Record]:
        """All rows gone: one record per partition, since each partition holds some of the keys."""
        return self._truncated(lsn, position, self._transaction)

    def snapshot_truncate(self, position: Position, ts_us: int) -> list[Record]:
        """All rows gone that the log has up to there: a snapshot's own are all that there are."""
        return self._truncated(position.commit_lsn, position, self._source.of_snapshot(ts_us))

    def _truncated(
        self, lsn: Lsn, position: Position, source: tuple[str, str, str]
    ) -> list[Record]:
        key = TRUNCATE_KEY if self._compacted else None
        value = self._value("null", "null", "t", lsn, source)
        headers = self._headers(position)
        return [
            Record(self._topic, key, value, headers, partition)
            for partition in range(self._partitions)
        ]

    def snapshot_row(self, row: Row, position: Position, lsn: Lsn, ts_us: int) -> Record:
        """A row read by a snapshot at ``lsn``, at ``ts_us`` (µs since 1970, UTC)."""
        if self._snapshot_ts_us != ts_us:
            self._snapshot_ts_us = ts_us
            self._snapshot = self._source.of_snapshot(ts_us)
        members = self._row_members(row)
        value = self._value("null", _row(members), "r", lsn, self._snapshot)
        return Record(self._topic, self._key_of(members), value, self._headers(position))

    def _deleted(
        self, key: bytes | None, members: list[str], lsn: Lsn, headers: list[tuple[str, bytes]]
    ) -> list[Record]:
        deleted = Record(self._topic, key, self._value(_row(members), "null", "d", lsn), headers)
        if not self._compacted:
            return [deleted]
        return [deleted, Record(self._topic, key, None, headers)]

    def _check(self, row: Row) -> None:
        if len(row) != self._width:
            raise CorruptMessageError(
                f"a row of {len(row)} columns where {self._width} were announced",
                where=f"table {self._schema.name}",
            )

    def _row_members(self, row: Row) -> list[str]:
        """Per column ``,"name":value``, or nothing where no value was sent."""
        if len(row) != self._width:
            self._check(row)
        try:
            return [
                name + fragment(value)
                if value.__class__ is bytes
                else (name + "null" if value is None else "")
                for (name, fragment), value in zip(self._columns, row, strict=True)
            ]
        except values.MALFORMED:
            raise self._malformed(row) from None

    def _old_members(self, old: Row, old_is_key: bool) -> list[str]:
        """As ``_row_members``; of an old key what is None wasn't sent."""
        if not old_is_key:
            return self._row_members(old)
        return self._row_members(tuple(ABSENT if value is None else value for value in old))

    def _malformed(self, row: Row) -> CorruptMessageError:
        """Find the column that ``_row_members`` stumbled over."""
        for column, value in zip(self._schema.columns, row, strict=True):
            if isinstance(value, bytes):
                try:
                    values.json_fragment(column)(value)
                except values.MALFORMED:
                    return values.malformed(column, self._schema.name)
        raise AssertionError("a row failed whose columns are all right")

    def _key_of(self, members: list[str]) -> bytes | None:
        """The key in key order; a column that wasn't sent has left an empty text."""
        if self._single_key is not None and (text := members[self._single_key]):
            return f"{{{text[1:]}}}".encode()
        if not self._key:
            return None
        texts = [members[index] for index in self._key]
        if "" in texts:
            raise CorruptMessageError("a row without its key", where=f"table {self._schema.name}")
        return _row(texts).encode()

    def _old_key(self, members: list[str]) -> bytes | None:
        if not all(members[index] for index in self._key):
            raise no_key(self._schema)
        return self._key_of(members)

    def _value(
        self, before: str, after: str, op: str, lsn: Lsn, source: tuple[str, str, str] | None = None
    ) -> bytes:
        """The envelope; ``source`` is the transaction's unless given."""
        start, middle, end = source or self._transaction
        number = int.__repr__(lsn)
        clock = self._clock_ns()
        return (
            f'{{"before":{before},"after":{after}{start}{number}{middle}{number}{end}{op}"'
            f',"ts_ms":{clock // 1_000_000},"ts_us":{clock // 1_000},"ts_ns":{clock}}}'
        ).encode()

    def _headers(self, position: Position, filled: str = "") -> list[tuple[str, bytes]]:
        """As records.position.header, with what the transaction's rows share written once."""
        epoch, commit_lsn, index = position
        if self._commit != (epoch, commit_lsn):
            self._commit = (epoch, commit_lsn)
            self._header_start = str(position)[:-16]
        text = f"{self._header_start}{index:016x}{self._header_end}{filled}"
        return [(HEADER, text.encode())]


class SourceText:
    """The source block's text, cut at the places where a row's own LSN goes."""

    def __init__(self, schema: TableSchema, prefix: str, database: str) -> None:
        self._start = _members(("version", VERSION), ("connector", CONNECTOR), ("name", prefix))
        self._database = _members(("db", database))
        self._table = _members(("schema", schema.namespace), ("table", schema.table))

    def of_transaction(self, transaction: Transaction) -> tuple[str, str, str]:
        """Text up to the LSN in ``sequence``, from there to ``lsn``, from there to ``op``."""
        previous = transaction.previous_commit_lsn
        before = "null" if previous is None else f'\\"{previous:d}\\"'
        start, middle = self._around(transaction.commit_ts_us, '"false"', before)
        return start, f'{middle},"txId":{transaction.xid},"lsn":', after_lsn(transaction.origin)

    def around(self, snapshot: str = '"false"') -> tuple[bytes, bytes, bytes]:
        """Text up to ``ts_ms``, from there to ``sequence``, and from ``ts_ns`` to ``txId``."""
        return (
            f',"source":{{{self._start},"ts_ms":'.encode(),
            f',"snapshot":{snapshot},{self._database},"sequence":"['.encode(),
            f',{self._table},"txId":'.encode(),
        )

    def of_snapshot(
        self, ts_us: int, snapshot: str = '"true"', xid: int | None = None
    ) -> tuple[str, str, str]:
        """The same for a row of a snapshot; ``snapshot`` is its marker in JSON."""
        start, middle = self._around(ts_us, snapshot, "null")
        number = "null" if xid is None else xid
        return start, f'{middle},"txId":{number},"lsn":', after_lsn(None)

    @staticmethod
    def of_read(lsn: Lsn, texts: tuple[str, str, str], *, tells_lsn: bool = True) -> bytes:
        """The texts of a snapshot's rows put together, up to their operation."""
        start, middle, end = texts
        lsn_text = f"{lsn:d}" if tells_lsn else "null"
        return f"{start}{lsn:d}{middle}{lsn_text}{end}{Operation.READ}".encode()

    def _around(self, ts_us: int, snapshot: str, previous: str) -> tuple[str, str]:
        return (
            (
                f',"source":{{{self._start},"ts_ms":{ts_us // 1_000},"snapshot":{snapshot},'
                f'{self._database},"sequence":"[{previous},\\"'
            ),
            f'\\"]","ts_us":{ts_us},"ts_ns":{ts_us * 1_000},{self._table}',
        )


def _members(*pairs: tuple[str, str]) -> str:
    return ",".join(f'"{name}":{encode_basestring(text)}' for name, text in pairs)


def _row(members: Iterable[str]) -> str:
    """An object of ``_row_members``, without the first one's comma."""
    return f"{{{''.join(members)[1:]}}}"
