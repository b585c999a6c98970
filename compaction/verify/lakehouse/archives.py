"""An archive's events → the rows that they leave, by verify's separate rules.

For each key the newest event counts, of the newest generation, after the last end of all rows. If
two have one position, a delete is the older one: a change of the key from -0 to 0 is both, with one
key. An event may lack a value that was large and unchanged. Then the newest event with that value
counts. A value that was read again for another event counts only if no event of the row's life has
its own.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.derived import Derived
from sinks.changes.ended import changed, older
from sinks.changes.ends import RowsEnd
from sinks.changes.generations import ends_under, newest_generation
from sinks.changes.names import (
    ABSENT,
    FILLED,
    NOT_IN_PARQUET,
    OP,
    POSITION,
    RAW_VALUE,
    TIME,
    VERSION,
    quoted,
)
from sinks.changes.shape import DerivedField, TableShape
from sinks.log.ends import DROP, ENDING, end_struct, ends_of

OF_ROWS: Final = ("c", "u", "d", "r")
"""Operations of events about one row."""
_NEWEST: Final = "_millrace_newest"
_GONE: Final = "_millrace_gone"
_EXACT: Final = "_millrace_exact"
_READ: Final = "_millrace_read"


class Archive(NamedTuple):
    """An archive at the instant: all its events, and its expected columns."""

    derived: Derived
    shape: TableShape
    events: DataFrame

    def of_rows(self) -> DataFrame:
        """Return the events about one row, under the newest generation's key."""
        events = self.events.where(F.col(OP).isin(*OF_ROWS))
        newest = newest_generation(self.shape.versions)
        if newest != self.shape.versions[0].version:
            events = events.where(F.col(VERSION) >= newest)
        return events

    def ends(self) -> list[RowsEnd]:
        """Return the ends of many rows. Raise SinkError if the archive lacks them."""
        has_records = RAW_VALUE in self.events.columns
        value = F.col(RAW_VALUE) if has_records else F.lit(None).cast("string")
        events = self.events.where(F.col(OP).isin(*ENDING))
        named = events.withColumnsRenamed({POSITION: "position", VERSION: "schema_version"})
        end = end_struct(F.col(OP), value, F.unix_micros(TIME))
        rows = named.select(end.alias("end"), (F.col(OP) == DROP).alias("drops")).collect()
        if not has_records and any(row["drops"] for row in rows):
            raise SinkError(
                "partitions were dropped, and without its records it doesn't have their bounds",
                where=f"table {self.derived.name}",
            )
        ends = ends_of(row["end"] for row in rows)
        return ends_under(self.shape.versions, sorted(ends, key=lambda end: end.position))

    def lacked(self, events: DataFrame) -> list[str]:
        """Return the columns that some of the events have no original value for."""
        lacks = (F.size(ABSENT) > 0) | F.col(FILLED).isNotNull()
        some = events.where(lacks).select(VERSION, ABSENT, FILLED).distinct().collect()
        return [
            field.name
            for field in self.shape.fields
            if any(self._lacks(field, row[VERSION], row[ABSENT], row[FILLED]) for row in some)
        ]

    def _lacks(
        self, field: DerivedField, version: int, absent: Iterable[str] | None, filled: str | None
    ) -> bool:
        ordinal = self._ordinals(field).get(version)
        was_read = ordinal is not None and str(ordinal) in (filled or "").split(",")
        return was_read or not self._called(field).isdisjoint(absent or ())

    def is_absent(self, field: DerivedField) -> SparkColumn:
        """Return whether an event has no value for a column."""
        names = F.array(*map(F.lit, sorted(self._called(field))))
        return F.coalesce(F.arrays_overlap(F.col(ABSENT), names), F.lit(False))

    def was_read(self, field: DerivedField) -> SparkColumn:
        """Return whether an event's value for a column was read again, as it had none.

        A row that is new under its key has no other value.
        """
        ordinals = F.split(FILLED, ",")
        by_version = (
            (F.col(VERSION) == version) & F.array_contains(ordinals, str(ordinal))
            for version, ordinal in self._ordinals(field).items()
        )
        was_read = reduce(or_, by_version, F.lit(False))
        return F.coalesce((F.col(OP) == "u") & was_read, F.lit(False))

    def _called(self, field: DerivedField) -> set[str]:
        """Return the names that a column has had here, except names that other columns now have."""
        rename = self.derived.options.rename
        sources = {source.name for source in field.sources.values()}
        names = {rename.get(name, name) for name in sources}
        names |= {NOT_IN_PARQUET.sub("_", name) for name in names}
        return {field.name} | (names - set(self.shape.names))

    def _ordinals(self, field: DerivedField) -> dict[int, int]:
        """Return the column's place in each schema version, from 1."""
        places = dict[int, int]()
        for version in self.shape.versions:
            if (source := field.sources.get(version.version)) is not None:
                names = [column.name for column in version.columns]
                places[version.version] = names.index(source.name) + 1
        return places


def why_no_rows(shape: TableShape) -> str:
    """Return why an archive's events don't show the existing rows. Empty: they do."""
    key = shape.versions[-1].key
    fields = {field.column.name: field for field in shape.fields}
    if not key:
        return "the table has no key, so its events have none of their rows' keys"
    hidden = [
        column.name
        for column in key
        if (field := fields.get(column.name)) is None or field.nulled or field.unfit_is_null
    ]
    return f"columns of the key are hidden: {', '.join(hidden)}" if hidden else ""


def replayed(archive: Archive) -> DataFrame:
    """Return the rows that the events leave, with positions.

    Raise SinkError if the archive can't show them.
    """
    shape, ends = archive.shape, archive.ends()
    events = archive.of_rows()
    if emptied := [end.position for end in ends if not end.bounds]:
        events = events.where(F.col(POSITION) > str(max(emptied)))
    lacked = set(archive.lacked(events)) - {*shape.keys}
    patched = [field for field in shape.fields if field.name in lacked]
    plain = [name for name in shape.names if name not in lacked and name not in shape.keys]
    is_delete = F.col(OP) == "d"
    order = F.struct(F.col(POSITION), (~is_delete).alias("is_there"))
    newest = events.groupBy(*map(quoted, shape.keys)).agg(
        F.max_by(F.struct(*map(quoted, plain), F.col(OP)), order).alias(_NEWEST),
        F.max(POSITION).alias(POSITION),
        F.max(F.when(is_delete, F.col(POSITION))).alias(_GONE),
        *(_newest_exact(archive, field).alias(f"{_EXACT}{n}") for n, field in enumerate(patched)),
        *(_newest_read(archive, field).alias(f"{_READ}{n}") for n, field in enumerate(patched)),
    )
    values = {name: F.col(_NEWEST).getField(name) for name in plain}
    values |= {field.name: _patched(number) for number, field in enumerate(patched)}
    values |= {name: F.col(quoted(name)) for name in shape.keys}
    rows = newest.where(F.col(_NEWEST)[OP] != "d").select(
        *(values[name].alias(name) for name in shape.names), POSITION
    )
    over = older([end for end in ends if end.bounds], shape)
    return rows if over is None else rows.where(~F.coalesce(over.goes(changed), F.lit(False)))


def _newest_exact(archive: Archive, field: DerivedField) -> SparkColumn:
    """Return the newest value that an event has itself."""
    has_own = (F.col(OP) != "d") & ~archive.is_absent(field) & ~archive.was_read(field)
    return _newest(field, has_own)


def _newest_read(archive: Archive, field: DerivedField) -> SparkColumn:
    """Return the newest value that was read again."""
    return _newest(field, archive.was_read(field) & ~archive.is_absent(field))


def _newest(field: DerivedField, counts: SparkColumn) -> SparkColumn:
    """Return the newest counting event's value, in a struct: a null differs from no value."""
    value = F.struct(F.col(quoted(field.name)).alias("value"), F.col(POSITION).alias("position"))
    return F.max_by(value, F.when(counts, F.col(POSITION)))


def _patched(number: int) -> SparkColumn:
    """Return a column's value of this life of the row: an original one before one read again.

    A null from before the column existed is older than a value that was read.
    """
    exact, read, gone = F.col(f"{_EXACT}{number}"), F.col(f"{_READ}{number}"), F.col(_GONE)
    exact, read = (
        F.when(gone.isNull() | (each["position"] >= gone), each) for each in (exact, read)
    )
    is_stale = exact["value"].isNull() & (read["position"] > exact["position"])
    return F.when(F.coalesce(is_stale, F.lit(False)), read).otherwise(F.coalesce(exact, read))[
        "value"
    ]
