"""Tables in one line and changes of their rows, for the tests of what events they become."""

from dataclasses import replace
from typing import Any, Final, Literal

from cdc.events.changes import Change, Operation, Read, Row
from cdc.events.reference import Log, TableEvents, TransactionBlocks
from cdc.events.rules import EventRules
from cdc.records.connect import SourceRecord
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableSchema
from cdc.settings.modes import ColumnModes, Patterns
from cdc.stream.transactions import Transaction

POSITION: Final = Position(1, Lsn(900), 3)
LSN: Final = Lsn(800)
TRANSACTION: Final = Transaction(1302, Lsn(900), 5_000_001, Lsn(700))
CLOCK_NS: Final = 7_000_000_001
LOG: Final = Log("pre", "shop", 3, compacted=True)
RETAINED: Final = LOG._replace(compacted=False)
NATIVE: Final = EventRules()

Identity = Literal["d", "n", "f", "i"]


def table(columns: str, key: str = "id", identity: Identity = "d", name: str = "t") -> TableSchema:
    """``id int4!, v varchar(50)=SQL`` → a table; ``!`` is NOT NULL, ``=`` comes a default.

    ``key`` names the key's columns in their order.
    """
    keys = key.split()
    made = []
    for text in columns.split(", "):
        column, _, rest = text.partition(" ")
        declared, _, default = rest.partition("=")
        kind, _, modifier = declared.rstrip("!").partition("(")
        made.append(
            Column(
                name=column,
                type=kind,
                type_oid=25,
                declared=declared.rstrip("!"),
                modifier=_modifier(modifier.rstrip(")")),
                optional=not declared.endswith("!"),
                key=keys.index(column) + 1 if column in keys else None,
                default=default or None,
            )
        )
    return TableSchema(
        namespace="public",
        table=name,
        version=7,
        since=str(POSITION),
        topic=f"pre.public.{name}",
        replica_identity=identity,
        signature="s",
        columns=tuple(made),
    )


def _modifier(text: str) -> int:
    """``50`` of a text, ``10,2`` of a numeric → pg_attribute's form."""
    if not text:
        return -1
    first, *scale = map(int, text.split(","))
    return ((first << 16) | scale[0] if scale else first) + 4


def row(*values: Any) -> Row:
    """A row as PostgreSQL sends it: texts, None or ABSENT."""
    return tuple(value.encode() if isinstance(value, str) else value for value in values)


def _change(
    operation: Operation, before: Row | None, after: Row | None, *, key_only: bool = False
) -> Change:
    return Change(operation, before, key_only, after, POSITION, LSN, TRANSACTION, 5_000_001)


def insert(*values: Any) -> Change:
    """A new row."""
    return _change(Operation.CREATE, None, row(*values))


def update(new: tuple[Any, ...], *, old: Any = None, key_only: bool = False) -> Change:
    """A changed row; ``old`` as far as PostgreSQL sent it."""
    return _change(
        Operation.UPDATE, None if old is None else row(*old), row(*new), key_only=key_only
    )


def delete(*old: Any, key_only: bool = True) -> Change:
    """A deleted row; under replica identity default its old key only."""
    return _change(Operation.DELETE, row(*old), None, key_only=key_only)


def truncate() -> Change:
    """All rows gone."""
    return _change(Operation.TRUNCATE, None, None)


def read(*values: Any, said: Read = Read()) -> Change:  # noqa: B008 (immutable)
    """A row of a snapshot."""
    made = Change(Operation.READ, None, False, row(*values), POSITION, LSN, None, 5_000_001)
    return replace(made, read=said)


def events(
    schema: TableSchema,
    *changes: Change,
    rules: EventRules = NATIVE,
    log: Log = LOG,
    blocks: TransactionBlocks | None = None,
) -> list[SourceRecord]:
    """The records of changes, in order."""
    made = TableEvents(schema, rules, log, blocks=blocks, clock_ns=lambda: CLOCK_NS)
    return [record for change in changes for record in made.records(change)]


def said(records: list[SourceRecord]) -> list[tuple[Any, ...]]:
    """What matters of records: operation (None: a tombstone), key, before, after."""
    return [
        (record.value["op"], record.key, record.value["before"], record.value["after"])
        if record.value
        else (None, record.key)
        for record in records
    ]


def having(rules: EventRules, /, **events_options: Any) -> EventRules:
    """Rules with some of the options of events set."""
    return replace(rules, events=replace(rules.events, **events_options))


def with_columns(rules: EventRules, /, **columns_options: Any) -> EventRules:
    """Rules with some of the options of columns set."""
    return replace(rules, columns=ColumnModes(**columns_options))


def patterns(*texts: str) -> Patterns:
    """Patterns, as the settings make them."""
    return Patterns(texts)
