"""Partitions that are gone → the event that ends their rows, if it can describe them.

This applies with partition.drop.policy = delete. An event describes the rows by bounds, so a reader
of a key must see whether it lies within them. They need columns of the key, of types that have one
order everywhere. Rows of other partitions stay, and are counted.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from cdc.errors import CorruptMessageError
from cdc.events.fields import EventField
from cdc.postgres.partitions import parse_bound
from cdc.records.bounds import Bound, EndedRows
from cdc.records.fingerprint import EndedPartition, PartitionLevel, TableFingerprint
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import Doubt, TableState
from cdc.settings import Settings
from cdc.tables.schemas import EncoderRegistry, SchemaVersions
from cdc.tables.states import TableStates

log = structlog.get_logger()
_ORDERED: Final = {"int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz"}
_LISTED: Final = _ORDERED | {"bool", "uuid", "text", "varchar"}
_DIGITS_MAX: Final = 38
_HELD: Final = {
    "numeric": re.compile(r"-?[0-9.]+"),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), re.compile(r"[0-9]{4}-[^B]+")),
}
"""Texts of ordered types that other systems have: no infinity, and only years from 1 to 9999.

They are PostgreSQL's, with times in UTC. Those before year 1 end in BC.
"""
_ENDED_CHARS_MAX: Final = 200_000
"""The limit in a state record for partitions whose rows must end, but can't yet."""
KEEP: Final = "partition.drop.policy is keep"
_FULL: Final = "too many other partitions wait for the end of their rows (see millrace status)"
_CUT: Final = "the bounds, alone or with those of other partitions, are too long to store"
_UNSAID: Final = (
    "an event can't contain its bounds: it can contain only ranges and lists of constants, of"
    " columns in the record's key, of types with the same order everywhere"
)


class EndedPartitions:
    """The handling of rows of partitions that are gone. Methods return the log's records."""

    def __init__(
        self,
        settings: Settings,
        states: TableStates,
        schemas: SchemaVersions,
        encoders: EncoderRegistry,
    ) -> None:
        self._settings = settings
        self._states = states
        self._schemas = schemas
        self._encoders = encoders

    def note_gone(
        self, state: TableState, before: TableFingerprint, now: TableFingerprint
    ) -> dict[str, object]:
        """Return an update of the table's state: the partitions whose rows must end.

        Rows of all other partitions stay, with a warning.
        """
        ends = self._settings.capture.partition_drop_policy == "delete"
        cut = {leaf.bound for leaf in before.leaves if leaf.cut}
        ended, kept = list(state.ended), Counter[str]()
        chars = sum(map(_chars, ended))
        for each in gone_partitions(before, now):
            if not ends:
                kept[KEEP] += len(each.leaves)
            elif not self._bounds(state.name, each.levels):
                kept[_UNSAID if cut.isdisjoint(each.leaves) else _CUT] += len(each.leaves)
            elif chars + _chars(each) > _ENDED_CHARS_MAX:
                kept[_FULL] += len(each.leaves)
            else:
                ended.append(each)
                chars += _chars(each)
        for reason, count in kept.items():
            _warn(state.name, reason, count)
        return {"ended": tuple(ended)}

    def end(
        self, table: TableName, partition: EndedPartition, upto: Position, at: Position, ts_us: int
    ) -> tuple[list[Record], list[Record]]:
        """End the rows of a gone partition, up to a position. Return events, and state records.

        ``at`` is the events' own position. ``ts_us`` is when it was gone (µs since 1970, UTC).
        """
        schema, bounds = self._schemas.newest(table), self._bounds(table, partition.levels)
        if schema is None or bounds is None:
            return [], self.keep(table, partition, _UNSAID)
        log.info("the rows of a dropped partition end", table=str(table), upto=str(upto))
        rows = EndedRows(bounds=bounds, upto=upto)
        events = self._encoders.encoder(schema).ended(rows, at, ts_us)
        state = self._states[table]
        fingerprint = state.fingerprint and state.fingerprint.without_bounds(partition.leaves)
        update = {"ended": _without(state, partition), "fingerprint": fingerprint}
        return events, self._states.put(state.model_copy(update=update))

    def replaced(
        self, table: TableName, doubt: Doubt, *, is_begun: bool = False
    ) -> list[tuple[Bound, ...]] | None:
        """Return the bounds within which a read that settles the doubt replaces a table's rows.

        Partitions that have gone since then are left out: their rows stay, or end, like those of
        all dropped partitions. This is impossible if such a read has begun (``is_begun``): it has
        emptied their bounds, and other partitions may have had rows there. None: the read must
        replace all rows.
        """
        fingerprint = self._states[table].fingerprint
        if not doubt.leaves or fingerprint is None:
            return None
        attached = {leaf.oid: leaf.attached for leaf in fingerprint.leaves}
        if is_begun and any(attached.get(leaf.oid) != leaf.attached for leaf in doubt.leaves):
            return None
        levels = [leaf.levels for leaf in doubt.leaves if leaf.oid in attached]
        said = [bounds for each in levels if (bounds := self._bounds(table, each)) is not None]
        return said if len(said) == len(levels) else None

    def keep(self, table: TableName, partition: EndedPartition, reason: str) -> list[Record]:
        """Keep the rows of a gone partition."""
        state = self._states[table]
        _warn(table, reason, len(partition.leaves))
        return self._states.put(state.model_copy(update={"ended": _without(state, partition)}))

    def _bounds(
        self, table: TableName, levels: Sequence[PartitionLevel]
    ) -> tuple[Bound, ...] | None:
        """Return an event's form of the bounds. None if it, or derived tables, can't have them."""
        schema, lakehouse = self._schemas.newest(table), self._settings.lakehouse
        if schema is None or self._settings.foreign_forms:
            return None
        reshaped = lakehouse.reshaped(str(table)) if lakehouse else set()
        key = self._encoders.key_fields(schema)
        kept = (field for field in key if schema.columns[field.column].name not in reshaped)
        return json_bounds(schema, kept, levels)


def gone_partitions(before: TableFingerprint, now: TableFingerprint) -> list[EndedPartition]:
    """Return the partitions that have gone. A tree that went as a whole is one: its root.

    Rows within the bounds of an existing partition are replaced: the old one was exchanged for it.
    """
    oids = {leaf.oid for leaf in now.leaves}
    bounds = {leaf.bound for leaf in now.leaves if leaf.has_rows}
    there = {leaf.levels[:depth] for leaf in now.leaves for depth in range(1 + len(leaf.levels))}
    gone: dict[tuple[PartitionLevel, ...], list[str]] = {}
    for leaf in before.leaves:
        if leaf.oid in oids or leaf.bound in bounds or not leaf.has_rows:
            continue
        depths = range(1, len(leaf.levels))
        whole = (depth for depth in depths if leaf.levels[:depth] not in there)
        gone.setdefault(leaf.levels[: next(whole, None)], []).append(leaf.bound)
    return [EndedPartition(levels, tuple(leaves)) for levels, leaves in gone.items()]


def json_bounds(
    schema: TableSchema, key: Iterable[EventField], levels: Sequence[PartitionLevel]
) -> tuple[Bound, ...] | None:
    """Return the bounds with their values in an event's form. None if that is impossible.

    ``key`` are the members of the record's key that bounds may use.
    """
    fields = {schema.columns[field.column].number: field for field in key}
    bounds = list[Bound]()
    for level in levels:
        members = [fields[number] for number in level.columns if number in fields]
        columns = [schema.columns[field.column] for field in members]
        names = [column.name for column in columns]
        bound = parse_bound(names, level.bound) if len(names) == len(level.columns) else None
        if bound is None:
            return None
        types = _LISTED if bound.values is not None else _ORDERED
        if not all(_is_comparable(column, types) for column in columns):
            return None
        try:
            bounds.append(_in_json(bound, [*zip(members, columns, strict=True)]))
        except CorruptMessageError:
            return None
    return tuple(bounds) or None


def _is_comparable(column: Column, types: set[str]) -> bool:
    if column.type == "numeric":
        precision, _ = column.decimal_digits or (_DIGITS_MAX + 1, 0)
        return precision <= _DIGITS_MAX and not column.array
    return column.type in types and not column.array and column.typtype == "b"


def _in_json(bound: Bound, columns: Sequence[tuple[EventField, Column]]) -> Bound:
    """Return the bound with JSON's values. Raise CorruptMessageError for a wrong value."""
    if bound.values is not None:
        return bound.model_copy(
            update={"values": tuple(_json(*columns[0], value) for value in bound.values)}
        )
    lower, upper = (
        tuple(
            edge._replace(value=_json(*column, edge.value)) if edge.kind == "value" else edge
            for column, edge in zip(columns, edges, strict=True)
        )
        for edges in (bound.lower, bound.upper)
    )
    return bound.model_copy(update={"lower": lower, "upper": upper})


def _json(field: EventField, column: Column, text: object) -> str | int | None:
    """Return an event's value for PostgreSQL's text. Raise CorruptMessageError if there is none."""
    if text is None:
        return None
    held = _HELD.get(column.type)
    if held and not held.fullmatch(str(text)):
        raise CorruptMessageError("a value that sinks can't store")
    value: str | int = field.of_text(str(text).encode())
    return value


def _chars(partition: EndedPartition) -> int:
    return sum(map(len, (*partition.leaves, *(level.bound for level in partition.levels))))


def _without(state: TableState, partition: EndedPartition) -> tuple[EndedPartition, ...]:
    return tuple(each for each in state.ended if each != partition)


def _warn(table: TableName, reason: str, partitions: int) -> None:
    log.warning(
        "partitions were dropped, and the log keeps their rows",
        table=str(table),
        partitions=partitions,
        reason=reason,
        remedy=f"millrace snapshot --reset {shlex.quote(str(table))}",
    )
