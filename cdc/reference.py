"""Change → keyed envelopes by Debezium's rules: the readable definition of what events.py writes.

The rules: a row's key columns changed → delete and tombstone under the old key, then create under
the new one. A delete in a compacted topic is followed by a tombstone. ``before`` is there for
deletes and, where the replica identity is full, for updates. Values that weren't sent are left
out. TRUNCATE reaches every partition. tests/properties holds both paths byte-equal.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cdc.changes import ABSENT, Change, Operation, Row, filled, no_key
from cdc.errors import CorruptMessageError
from cdc.records.envelope import CONNECTOR, VERSION, Envelope, Source, to_json
from cdc.records.schema import TableSchema
from cdc.records.topics import TRUNCATE_KEY
from cdc.values import decode


class Keyed(NamedTuple):
    """One record to be: key bytes (None: no key), envelope (None: a tombstone), partition."""

    key: bytes | None
    envelope: Envelope | None
    partition: int | None = None


class Log(NamedTuple):
    """What an event says about the log that it goes to."""

    prefix: str
    database: str
    partitions: int
    compacted: bool


def reference_events(
    change: Change, schema: TableSchema, log: Log, clock_ns: Callable[[], int]
) -> list[Keyed]:
    """The records of one change, in order."""
    clock = clock_ns()

    def envelope(operation: Operation, before: Any, after: Any) -> Envelope:
        return Envelope(
            before=before,
            after=after,
            source=_source(change, schema, log),
            op=operation.value,
            ts_ms=clock // 1_000_000,
            ts_us=clock // 1_000,
            ts_ns=clock,
        )

    if change.operation is Operation.TRUNCATE:
        key = TRUNCATE_KEY if log.compacted else None
        value = envelope(change.operation, None, None)
        return [Keyed(key, value, partition) for partition in range(log.partitions)]

    old = _image(change.before, schema, key_only=change.before_is_key)
    new = _image(_completed(change), schema)
    old_key, new_key = _key(old, schema, of_old=True), _key(new, schema)
    deleted = [Keyed(old_key, envelope(Operation.DELETE, old, None))]
    if log.compacted:
        deleted.append(Keyed(old_key, None))
    if change.operation is Operation.DELETE:
        return deleted
    if old_key is not None and old_key != new_key:
        return [*deleted, Keyed(new_key, envelope(Operation.CREATE, None, new))]
    before = None if change.before_is_key else old
    return [Keyed(new_key, envelope(change.operation, before, new))]


def _completed(change: Change) -> Row | None:
    if change.after is None or change.before is None:
        return change.after
    return filled(change.after, change.before, old_is_key=change.before_is_key)


def _image(
    row: Row | None, schema: TableSchema, *, key_only: bool = False
) -> dict[str, Any] | None:
    """Column names and values, without what wasn't sent."""
    if row is None:
        return None
    if len(row) != len(schema.columns):
        raise CorruptMessageError(
            f"a row of {len(row)} columns where {len(schema.columns)} were announced",
            where=f"table {schema.name}",
        )
    return {
        column.name: None if value is None else decode(column, schema.name)(value)
        for column, value in zip(schema.columns, row, strict=True)
        if value is not ABSENT and not (key_only and value is None)
    }


def _key(
    image: dict[str, Any] | None, schema: TableSchema, *, of_old: bool = False
) -> bytes | None:
    """The record's key, if the table has one and there is a row."""
    if image is None or not schema.key:
        return None
    if any(column.name not in image for column in schema.key):
        raise (
            no_key(schema)
            if of_old
            else CorruptMessageError("a row without its key", where=f"table {schema.name}")
        )
    return to_json({column.name: image[column.name] for column in schema.key})


def _source(change: Change, schema: TableSchema, log: Log) -> Source:
    transaction = change.transaction
    previous = transaction.previous_commit_lsn if transaction else None
    sequence = [None if previous is None else f"{previous:d}", f"{change.lsn:d}"]
    return Source(
        version=VERSION,
        connector=CONNECTOR,
        name=log.prefix,
        ts_ms=change.ts_us // 1_000,
        snapshot="false" if transaction else "true",
        db=log.database,
        sequence=to_json(sequence).decode(),
        ts_us=change.ts_us,
        ts_ns=change.ts_us * 1_000,
        namespace=schema.namespace,
        table=schema.table,
        tx_id=transaction.xid if transaction else None,
        lsn=change.lsn,
    )
