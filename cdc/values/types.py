"""The table: a type's name in pg_type → its codec, in every mode; a column → its codec."""

from collections.abc import Callable
from typing import Final

from cdc.errors import BrokenRowError
from cdc.records.connect import Type
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values import decimals, scalars, structures, times
from cdc.values.blocks import Codec, UnconvertibleError, always, lossy
from cdc.values.lists import of_array, of_debezium_array, or_null

NATIVE: Final = ValueModes()
_unknown: Final = scalars.of_unknown(bytes)
_OF_TABLE: Final = frozenset("ber")
"""pg_type.typtype of the types below: base types, enums and ranges."""
_GEOMETRIC: Final = frozenset({"line", "lseg", "box", "path", "polygon", "circle"})
_TEXTS: Final = (
    "text", "varchar", "bpchar", "char", "name", "citext", "isbn",
    "inet", "cidr", "macaddr", "macaddr8",
    "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
)  # fmt: skip
"""Types whose text is the value."""
_ARRAYS_LEFT_OUT: Final = frozenset(
    {"money", "name", "interval", "varbit", "xml", "point", "refcursor"}
)
"""Elements whose arrays Debezium leaves out, whatever include.unknown.datatypes is."""


_TYPES: Final[dict[str, Callable[[Column, ValueModes], Codec | None]]] = (
    {
        "bool": always(scalars.BOOL),
        "int2": always(scalars.integer(Type.INT16)),
        "int4": always(scalars.integer(Type.INT32)),
        "int8": always(scalars.integer(Type.INT64)),
        "oid": always(scalars.integer(Type.INT64)),
        "float4": lossy(scalars.FLOAT4, scalars.JAVA_FLOAT4),
        "float8": always(scalars.FLOAT8),
        "numeric": decimals.of_numeric,
        "money": decimals.of_money,
        "bytea": scalars.of_bytea,
        "bit": scalars.of_bits,
        "varbit": scalars.of_bits,
        "date": times.of_date,
        "time": times.of_time,
        "timetz": times.of_timetz,
        "timestamp": times.of_timestamp,
        "timestamptz": times.of_timestamptz,
        "interval": times.of_interval,
        "uuid": always(scalars.named_text("Uuid")),
        "json": always(scalars.named_text("Json")),
        "jsonb": always(scalars.named_text("Json")),
        "xml": always(scalars.named_text("Xml")),
        "tsvector": always(scalars.named_text("Tsvector")),
        "ltree": always(scalars.named_text("Ltree")),
        "enum": scalars.of_enum,
        "hstore": structures.of_hstore,
        "point": structures.of_point,
        "geometry": structures.of_geometry,
        "geography": structures.of_geography,
        "vector": structures.of_vector,
        "halfvec": structures.of_halfvec,
        "sparsevec": structures.of_sparsevec,
    }
    | dict.fromkeys(_TEXTS, always(scalars.TEXT))
    | dict.fromkeys(_GEOMETRIC, scalars.of_unknown(structures.java_numbers))
)


def is_listed(column: Column) -> bool:
    """Whether a column's type has its own codec. Others are PostgreSQL's text."""
    return column.typtype in _OF_TABLE and column.type in _TYPES


def codec(column: Column, modes: ValueModes = NATIVE) -> Codec | None:
    """Return the codec of a column. None: events have no field for it."""
    # A composite may have any name. In an array Debezium doesn't resolve a domain.
    own_name = column.typtype in _OF_TABLE and (modes.lossless or not column.domain_elements)
    build = _TYPES.get(column.type) if own_name else None
    element = (build or _unknown)(column, modes)
    has_type = build is not None and column.type not in _GEOMETRIC
    left_out = own_name and column.array and column.type in _ARRAYS_LEFT_OUT
    if element is None or (left_out and not modes.lossless):
        return None
    if modes.lossless:
        return of_array(column, element) if column.array else element
    if column.array:
        return of_debezium_array(column, element, modes, has_type=has_type)
    may_fail = modes.decimal == "precise" and column.type == "numeric"
    return or_null(element) if may_fail else element


def malformed(column: Column, table: TableName, error: Exception | None = None) -> BrokenRowError:
    """Return the error for a text that isn't of its column's type. It never shows the text."""
    if isinstance(error, UnconvertibleError):
        return BrokenRowError(
            f"a value of column {column.name}, a {column.declared}, can't be written: {error}",
            where=f"table {table}",
            remedy="choose a mode that can represent it (docs/reference/types.md), or lossless ="
            " false, which writes null",
        )
    if isinstance(error, UnicodeDecodeError):
        return BrokenRowError(
            f"a value of column {column.name} isn't a {column.declared}: it has bytes that aren't"
            " UTF-8, which a SQL_ASCII database accepts",
            where=f"table {table}",
        )
    return BrokenRowError(
        f"a value of column {column.name} isn't a {column.declared}", where=f"table {table}"
    )
