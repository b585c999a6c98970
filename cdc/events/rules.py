"""Settings → the rules of events as one value: native, or Debezium's.

``EventRules()`` is native. cdc/settings/model.py has the values of ``preset = "debezium"``. Each
option works with both. docs/reference/debezium.md has the options and their effects.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cdc.errors import TableRefusedError
from cdc.events.changes import Operation
from cdc.records.schema import Column, TableName
from cdc.records.sql_names import sql_names
from cdc.records.topics import Adjustment
from cdc.settings.modes import ColumnModes, EventModes, Patterns, ValueModes
from cdc.wal.messages import ReplicaIdentity

_NO_PATTERNS: Final = Patterns(())


@dataclass(frozen=True, slots=True)
class EventRules:
    """Rules for values, events, columns and names.

    ``values.lossless`` False reproduces Debezium where it loses or makes up information.
    """

    values: ValueModes = ValueModes()  # noqa: RUF009 (immutable)
    events: EventModes = EventModes()  # noqa: RUF009
    columns: ColumnModes = ColumnModes()  # noqa: RUF009
    schema_names: Adjustment = "none"
    field_names: Adjustment = "none"
    message_prefix_include: Patterns = _NO_PATTERNS
    message_prefix_exclude: Patterns = _NO_PATTERNS

    @property
    def lossless(self) -> bool:
        """Whether events lose and make up nothing."""
        return self.values.lossless

    @property
    def with_all_updates(self) -> "EventRules":
        """Return the rules without those that leave out updates."""
        kept = self.events.skipped - {Operation.UPDATE.value}
        return replace(self, events=replace(self.events, skipped=kept, skip_without_change=False))

    def wants_message(self, prefix: str) -> bool:
        """Whether a logical message with the prefix becomes an event.

        Any role may write messages. So without a list none becomes an event; under Debezium's
        rules, all do.
        """
        if self.message_prefix_include:
            return self.message_prefix_include.match(prefix)
        if self.message_prefix_exclude:
            return not self.message_prefix_exclude.match(prefix)
        return not self.lossless


def rekeyed(
    columns: tuple[Column, ...],
    table: TableName,
    replica_identity: ReplicaIdentity,
    rules: EventRules,
) -> tuple[Column, ...]:
    """Return the columns with the record's key: message.key.columns in table order, or their own.

    Raise TableRefusedError for a missing column and, if lossless, for a key that old rows lack. A
    row whose key changes would otherwise stay under its old key.
    """
    key_columns = rules.columns.key_columns(str(table))
    if key_columns is None:
        return columns
    wanted = {name.lower() for name in key_columns}
    names = [column.name for column in columns if column.name.lower() in wanted]
    lacking = wanted - {name.lower() for name in names}
    if lacking and rules.lossless:
        raise TableRefusedError(
            f"message.key.columns names {', '.join(sorted(lacking))}, but the table has no such"
            " column",
            where=f"table {table}",
            remedy="correct message.key.columns in [capture], or add the column",
        )
    if not names:
        return columns
    identity = {column.name for column in columns if column.key is not None}
    if rules.lossless and replica_identity != "f" and not identity.issuperset(names):
        raise TableRefusedError(
            "message.key.columns names columns that old rows don't contain",
            where=f"table {table}",
            remedy=f"ALTER TABLE {sql_names([table])} REPLICA IDENTITY FULL",
        )
    return tuple(
        column.model_copy(
            update={"key": names.index(column.name) + 1 if column.name in names else None}
        )
        for column in columns
    )


def without_left_out(
    columns: tuple[Column, ...], table: TableName, rules: EventRules
) -> tuple[Column, ...]:
    """Return the columns, and mark those that events leave out. A key keeps its columns."""
    keeps = rules.columns.keeps
    return tuple(
        column.model_copy(update={"left_out": True})
        if column.key is None and not keeps(str(table), column.name)
        else column
        for column in columns
    )


def left_out_signature(
    signature: str, table: TableName, names: Iterable[str], rules: EventRules
) -> str:
    """Return a table schema's signature, with the columns that events leave out.

    Without them, a column that is left out from now on would seem unchanged in each event.
    """
    left_out = [name for name in names if not rules.columns.keeps(str(table), name)]
    return f"{signature} without {json.dumps(left_out)}" if left_out else signature


def key_signature(signature: str, table: TableName, rules: EventRules) -> str:
    """Return a table schema's signature, with a record key from message.key.columns.

    Without it, records with the new key would keep the old schema.
    """
    key_columns = rules.columns.key_columns(str(table))
    return signature if key_columns is None else f"{signature} key {','.join(key_columns)}"
