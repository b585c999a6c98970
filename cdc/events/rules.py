"""Everything that the settings say about events, as one value: native, or Debezium's.

``EventRules()`` is native; cdc/settings/model.py has what ``preset = "debezium"`` starts from.
Each option can be set in both. docs/reference/debezium.md has the options and how they act.
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
    """How values are written, which events there are, which columns they have, and names.

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
        """Whether nothing is lost or made up."""
        return self.values.lossless

    @property
    def with_all_updates(self) -> "EventRules":
        """The same, but for updates that would be left out."""
        kept = self.events.skipped - {Operation.UPDATE.value}
        return replace(self, events=replace(self.events, skipped=kept, skip_without_change=False))

    def wants_message(self, prefix: str) -> bool:
        """Whether a logical message with the prefix becomes an event.

        Any role may write them: without a list none does, but Debezium's rules, where all do.
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
    """The columns with the record's key: message.key.columns', in the table's order, or their own.

    Raises TableRefusedError for a column that isn't there and, lossless, for a key that old rows
    wouldn't come with: a row whose key changed would stay under its old one for ever.
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
    """The columns, those marked that events are to be without; a key keeps its own."""
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
    """A table schema's signature that also tells which of its columns events are without.

    Otherwise a column that is left out from now on would seem to be unchanged in each event.
    """
    left_out = [name for name in names if not rules.columns.keeps(str(table), name)]
    return f"{signature} without {json.dumps(left_out)}" if left_out else signature


def key_signature(signature: str, table: TableName, rules: EventRules) -> str:
    """A table schema's signature that also tells a record key of message.key.columns.

    Otherwise records with the new key would keep the old schema.
    """
    key_columns = rules.columns.key_columns(str(table))
    return signature if key_columns is None else f"{signature} key {','.join(key_columns)}"
