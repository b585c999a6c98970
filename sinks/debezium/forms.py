"""A column and the connector's modes ⇄ Debezium's form of its values.

The direction from columns is for JSON without schemas, and for members whose schema has no name.
docs/reference/types.md has the table.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cdc.records.connect import DECIMAL, Field, Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes

_DATA: Final = "io.debezium.data."
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
BITS: Final = f"{_DATA}Bits"
VARIABLE: Final = f"{_DATA}VariableScaleDecimal"
DURATION: Final = f"{_TIME}MicroDuration"
_TEXT: Final = Schema(Type.STRING, optional=True)
_BYTES: Final = Schema(Type.BYTES, optional=True)
_VARIABLE_SCALE: Final = Schema(
    Type.STRUCT,
    optional=True,
    name=VARIABLE,
    fields=(Field("scale", Schema(Type.INT32)), Field("value", Schema(Type.BYTES))),
)

TYPE_OF_NAME: Final = {
    DECIMAL: "numeric",
    VARIABLE: "numeric",
    BITS: "bits",
    DURATION: "int8",
    f"{_DATA}Json": "json",
    f"{_DATA}Uuid": "uuid",
    f"{_DATA}Xml": "xml",
    f"{_DATA}Enum": "enum",
    f"{_DATA}Ltree": "ltree",
    f"{_DATA}Tsvector": "tsvector",
    f"{_DATA}DoubleVector": "vector",
    f"{_DATA}FloatVector": "halfvec",
    f"{_DATA}SparseDoubleVector": "sparsevec",
    f"{_DATA}geometry.Point": "point",
    f"{_DATA}geometry.Geometry": "geometry",
    f"{_DATA}geometry.Geography": "geography",
    f"{_TIME}Interval": "interval",
    f"{_TIME}ZonedTimestamp": "timestamptz",
    f"{_TIME}ZonedTime": "timetz",
    **{f"{space}.Date": "date" for space in (_TIME[:-1], _CONNECT[:-1])},
    **{f"{_TIME}{unit}Time": "time" for unit in ("", "Micro", "Nano", "Iso")},
    **{f"{_TIME}{unit}Timestamp": "timestamp" for unit in ("", "Micro", "Nano", "Iso")},
    f"{_TIME}IsoDate": "date",
    f"{_CONNECT}Time": "time",
    f"{_CONNECT}Timestamp": "timestamp",
}
"""The type of a column whose values have a schema with this name."""
_TYPE_OF_TYPE: Final = {
    Type.BOOLEAN: "bool",
    Type.INT8: "int2",
    Type.INT16: "int2",
    Type.INT32: "int4",
    Type.INT64: "int8",
    Type.FLOAT: "float4",
    Type.DOUBLE: "float8",
    Type.STRING: "text",
    Type.BYTES: "bytea",
    Type.MAP: "hstore",
    Type.STRUCT: "json",
}
_VECTORS: Final = frozenset({"vector", "halfvec"})
"""Lists in Debezium, but single values in PostgreSQL."""
_ARRAYS_LEFT_OUT: Final = frozenset(
    {"money", "name", "interval", "varbit", "xml", "point", "refcursor"}
)
"""Elements whose arrays Debezium leaves out."""


def column_of(name: str, schema: Schema, declared: Column | None) -> Column:
    """Return the column that a record's schema describes. The declared one completes it."""
    if declared is not None and _agree(schema, declared):
        return _as_long(schema, declared)
    array = is_array(schema)
    element = schema.of_items() if array else schema
    type_ = TYPE_OF_NAME.get(element.name or "") or _TYPE_OF_TYPE.get(element.type, "json")
    digits = _digits(element)
    if element.name == DECIMAL and digits is None:
        type_ = "money"  # the only Decimal without a precision in Debezium
    return Column(
        name=name,
        type=type_,
        type_oid=0,
        modifier=-1 if digits is None else (digits[0] << 16 | digits[1] & 0x7FF) + 4,
        array=array,
        declared=_declared(type_, digits, array=array),
    )


def _as_long(schema: Schema, declared: Column) -> Column:
    """Return the column with the schema's number of bits, whatever was declared."""
    length = (schema.parameters or {}).get("length")
    if schema.name != BITS or length is None or int(length) == declared.modifier:
        return declared
    return declared.model_copy(update={"modifier": int(length), "declared": f"bit({length})"})


def is_array(schema: Schema) -> bool:
    """Whether the schema is that of a PostgreSQL array."""
    return schema.type is Type.ARRAY and TYPE_OF_NAME.get(schema.name or "") not in _VECTORS


def is_known(type_: str) -> bool:
    """Whether Debezium has a form for the type. Others are the bytes of their text."""
    return type_ in _FORMS


def form_of(column: Column, modes: ValueModes) -> Schema | None:
    """Return Debezium's form of the column's values. None: it leaves the column out."""
    if column.array:
        if column.type in _ARRAYS_LEFT_OUT and not modes.lossless:
            return None
        items = form_of(column.model_copy(update={"array": False}), modes)
        return None if items is None else Schema(Type.ARRAY, optional=True, items=items)
    # In an array Debezium doesn't resolve a domain's elements.
    unknown = column.domain_elements and not modes.lossless
    make = None if unknown else _FORMS.get(column.type)
    if make is not None:
        return make(column, modes)
    return _binary(column, modes) if modes.include_unknown else None


def with_names(schema: Schema, declared: Column | None, modes: ValueModes) -> Schema:
    """Add the names of the declared column's form to a schema without names."""
    expected = form_of(declared, modes) if declared is not None else None
    if expected is None or schema.name is not None or expected.type is not schema.type:
        return schema
    if schema.type is not Type.ARRAY:
        return replace(expected, optional=schema.optional)
    if expected.name is not None:  # a vector is one value, and its elements have no names
        return replace(schema, name=expected.name)
    items, expected_items = schema.of_items(), expected.of_items()
    if items.name is not None or items.type is not expected_items.type:
        return schema
    return replace(schema, items=replace(expected_items, optional=items.optional))


def _agree(schema: Schema, declared: Column) -> bool:
    """Whether the schema permits that its values belong to the declared column."""
    if is_array(schema) != declared.array:
        return False
    element = schema.of_items() if declared.array else schema
    named = TYPE_OF_NAME.get(element.name or "")
    if element.name == BITS:
        return declared.type == "bit"  # only then does the schema have their number
    if element.name in {DECIMAL, VARIABLE}:
        return False  # these schemas are complete
    if named is not None:
        return declared.type == named or (named, declared.type) in {
            ("json", "jsonb"),
            ("json", "hstore"),
        }
    return declared.type in _MAY_BE.get(element.type, ()) or (
        not is_known(declared.type) and element.type in {Type.BYTES, Type.STRING}
    )


def _digits(schema: Schema) -> tuple[int, int] | None:
    parameters = schema.parameters or {}
    if schema.name != DECIMAL or "connect.decimal.precision" not in parameters:
        return None
    return int(parameters["connect.decimal.precision"]), int(parameters.get("scale", 0))


def _declared(type_: str, digits: tuple[int, int] | None, *, array: bool) -> str:
    inner = f"({digits[0]},{digits[1]})" if digits else ""
    return f"{type_}{inner}{'[]' if array else ''}"


def _of(type_: Type, name: str | None = None) -> Callable[[Column, ValueModes], Schema]:
    schema = Schema(type_, optional=True, name=name)
    return lambda _column, _modes: schema


def _numeric(column: Column, modes: ValueModes) -> Schema:
    if modes.decimal == "double":
        return Schema(Type.DOUBLE, optional=True)
    if modes.decimal != "precise":
        return _TEXT
    declared = column.precision_scale
    if column.type == "numeric" and declared is None:
        return _VARIABLE_SCALE
    parameters = {"scale": "2"}
    if declared is not None:
        # Debezium takes a negative scale for a large one.
        scale = declared[1] if modes.lossless else declared[1] & 0x7FF
        parameters = {"scale": str(scale), "connect.decimal.precision": str(declared[0])}
    return Schema(Type.BYTES, optional=True, name=DECIMAL, parameters=parameters)


def _bits(column: Column, _modes: ValueModes) -> Schema:
    if column.modifier == 1 or (column.type == "bit" and column.modifier < 0):
        return Schema(Type.BOOLEAN, optional=True)
    return Schema(Type.BYTES, optional=True, name=BITS)


def _binary(_column: Column, modes: ValueModes) -> Schema:
    return _BYTES if modes.binary == "bytes" else _TEXT


def _hstore(_column: Column, modes: ValueModes) -> Schema:
    if modes.hstore == "map":
        return Schema(Type.MAP, optional=True, keys=Schema(Type.STRING), items=_TEXT)
    return replace(_TEXT, name=f"{_DATA}Json" if modes.hstore == "json" else None)


def _interval(_column: Column, modes: ValueModes) -> Schema:
    if modes.interval == "numeric":
        return Schema(Type.INT64, optional=True, name=DURATION)
    return replace(_TEXT, name=f"{_TIME}Interval")


def _date(_column: Column, modes: ValueModes) -> Schema:
    if modes.time_precision == "isostring":
        return replace(_TEXT, name=f"{_TIME}IsoDate")
    space = _CONNECT if modes.time_precision == "connect" else _TIME
    return Schema(Type.INT32, optional=True, name=f"{space}Date")


def _time(column: Column, modes: ValueModes) -> Schema:
    mode, short = modes.time_precision, column.time_precision <= 3
    if mode == "isostring":
        return replace(_TEXT, name=f"{_TIME}IsoTime")
    if mode == "connect":
        return Schema(Type.INT32, optional=True, name=f"{_CONNECT}Time")
    if mode == "nanoseconds":
        return Schema(Type.INT64, optional=True, name=f"{_TIME}NanoTime")
    if short and mode in {"native", "adaptive"}:
        return Schema(Type.INT32, optional=True, name=f"{_TIME}Time")
    return Schema(Type.INT64, optional=True, name=f"{_TIME}MicroTime")


def _timestamp(column: Column, modes: ValueModes) -> Schema:
    mode, short = modes.time_precision, column.time_precision <= 3
    if mode == "isostring":
        return replace(_TEXT, name=f"{_TIME}IsoTimestamp")
    name = {"connect": f"{_CONNECT}Timestamp", "nanoseconds": f"{_TIME}NanoTimestamp"}.get(mode)
    adaptive = short and mode in {"native", "adaptive", "adaptive_time_microseconds"}
    name = name or f"{_TIME}{'' if adaptive else 'Micro'}Timestamp"
    return Schema(Type.INT64, optional=True, name=name)


_TEXTS: Final = (
    "text", "varchar", "bpchar", "char", "name", "citext", "isbn",
    "inet", "cidr", "macaddr", "macaddr8",
    "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
)  # fmt: skip
_FORMS: Final[dict[str, Callable[[Column, ValueModes], Schema]]] = {
    **dict.fromkeys(_TEXTS, _of(Type.STRING)),
    "bool": _of(Type.BOOLEAN),
    "int2": _of(Type.INT16),
    "int4": _of(Type.INT32),
    "int8": _of(Type.INT64),
    "oid": _of(Type.INT64),
    "float4": _of(Type.FLOAT),
    "float8": _of(Type.DOUBLE),
    "numeric": _numeric,
    "money": _numeric,
    "bytea": _binary,
    "bit": _bits,
    "bits": _of(Type.BYTES, BITS),
    "varbit": _bits,
    "date": _date,
    "time": _time,
    "timetz": _of(Type.STRING, f"{_TIME}ZonedTime"),
    "timestamp": _timestamp,
    "timestamptz": _of(Type.STRING, f"{_TIME}ZonedTimestamp"),
    "interval": _interval,
    "hstore": _hstore,
    **{
        type_: _of(Type.STRING, f"{_DATA}{type_.capitalize()}")
        for type_ in ("uuid", "json", "xml", "tsvector", "ltree", "enum")
    },
    "jsonb": _of(Type.STRING, f"{_DATA}Json"),
    "point": _of(Type.STRUCT, f"{_DATA}geometry.Point"),
    "geometry": _of(Type.STRUCT, f"{_DATA}geometry.Geometry"),
    "geography": _of(Type.STRUCT, f"{_DATA}geometry.Geography"),
    "vector": _of(Type.ARRAY, f"{_DATA}DoubleVector"),
    "halfvec": _of(Type.ARRAY, f"{_DATA}FloatVector"),
    "sparsevec": _of(Type.STRUCT, f"{_DATA}SparseDoubleVector"),
}
_MAY_BE: Final = {
    Type.BOOLEAN: {"bool", "bit"},
    Type.INT16: {"int2"},
    Type.INT32: {"int4"},
    Type.INT64: {"int8", "oid"},
    Type.FLOAT: {"float4"},
    Type.DOUBLE: {"float8"},
    Type.STRING: {*_TEXTS, "numeric", "money", "bytea"},
    Type.BYTES: {"bytea"},
    Type.MAP: {"hstore"},
}
"""Possible types of a value without a named schema. The declared type decides among them."""
