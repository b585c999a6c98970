"""Codecs of types with parts: hstore, point, PostGIS's geometries, pgvector's vectors.

Natively they are PostgreSQL's text, like every type without a JSON form. hstore has an option of
Debezium's; ``lossless`` decides about the others.
"""

import json
import re
import struct
from binascii import unhexlify
from collections.abc import Callable
from typing import Any, Final

from cdc.records.connect import Field, Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import BYTES, STRING, Builder, Codec, java_double, lossy, named
from cdc.values.scalars import TEXT, to_float, to_java_float

_STRING_IN_HSTORE = r'"((?:[^"\\]++|\\.)*+)"'
_PAIR = re.compile(rf"{_STRING_IN_HSTORE}=>(?:NULL|{_STRING_IN_HSTORE})(?:, |\Z)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(rb"-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Infinity)|NaN")
_POINT = re.compile(rb"\(([^(),]+),([^(),]+)\)")
_WKB_POINT = struct.Struct("<BIdd")
_EWKB_SRID: Final = 0x2000_0000

_DOUBLE: Final = Schema(Type.DOUBLE)
_SRID: Final = Field("srid", Schema(Type.INT32, optional=True))
_POINT_SCHEMA: Final = Schema(
    Type.STRUCT,
    name="io.debezium.data.geometry.Point",
    version=1,
    doc="Geometry (POINT)",
    fields=(
        Field("x", _DOUBLE),
        Field("y", _DOUBLE),
        Field("wkb", Schema(Type.BYTES, optional=True)),
        _SRID,
    ),
)
_SPARSE_VECTOR: Final = Schema(
    Type.STRUCT,
    name="io.debezium.data.SparseDoubleVector",
    version=1,
    doc="Sparse double vector",
    fields=(
        Field("dimensions", Schema(Type.INT16)),
        Field("vector", Schema(Type.MAP, keys=Schema(Type.INT16), items=_DOUBLE)),
    ),
)
_MAP: Final = Schema(Type.MAP, keys=STRING, items=Schema(Type.STRING, optional=True))
_JSON: Final = named(Type.STRING, "io.debezium.data.Json")


def of_hstore(_column: Column, modes: ValueModes) -> Codec:
    """Return the codec of hstore: PostgreSQL's text, a JSON object in a string, or a map."""
    match modes.hstore:
        case "text":
            return TEXT
        case "map":
            return Codec(_pairs, _MAP)
        case "json":
            return Codec(lambda value: compact_json(_pairs(value)), _JSON)


def compact_json(value: Any) -> str:
    """Return JSON for use inside a string."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pairs(value: bytes) -> dict[str, str | None]:
    whole = value.decode()
    pairs: dict[str, str | None] = {}
    offset = 0
    while offset < len(whole):
        match = _PAIR.match(whole, offset)
        if match is None:
            raise ValueError("not an hstore")
        key, item = match.groups()
        pairs[_ESCAPE.sub(r"\1", key)] = None if item is None else _ESCAPE.sub(r"\1", item)
        offset = match.end()
    if whole.endswith(", "):
        raise ValueError("an hstore without its last pair")
    return pairs


def point(x: float, y: float) -> dict[str, Any]:
    """Return Debezium's point: its parts, and the same as well-known binary."""
    return {"x": x, "y": y, "wkb": _WKB_POINT.pack(1, 1, x, y), "srid": None}


def _point(value: bytes) -> dict[str, Any]:
    match = _POINT.fullmatch(value)
    if match is None:
        raise ValueError("not a point")
    return point(to_float(match[1]), to_float(match[2]))


def _geometry(value: bytes) -> dict[str, Any]:
    """Parse PostGIS's extended well-known binary in hex, which includes its SRID."""
    ewkb = unhexlify(value)
    if len(ewkb) < 9:
        raise ValueError("not a geometry")
    order = "<" if ewkb[0] else ">"
    kind, number = struct.unpack_from(f"{order}Ii", ewkb, 1)
    return {"wkb": ewkb, "srid": number if kind & _EWKB_SRID else None}


def _of_geometry(name: str) -> Builder:
    schema = Schema(
        Type.STRUCT,
        name=f"io.debezium.data.geometry.{name}",
        version=1,
        doc=name,
        fields=(Field("wkb", BYTES), _SRID),
    )
    return lossy(TEXT, Codec(_geometry, schema))


def _vector(number: Callable[[bytes], float]) -> Callable[[bytes], list[float]]:
    def numbers(value: bytes) -> list[float]:
        if value[:1] != b"[" or value[-1:] != b"]":
            raise ValueError("not a vector")
        return [number(item) for item in value[1:-1].split(b",")]

    return numbers


def _of_vector(name: str, type_: Type, number: Callable[[bytes], float]) -> Builder:
    schema = Schema(Type.ARRAY, name=f"io.debezium.data.{name}", version=1, items=Schema(type_))
    return lossy(TEXT, Codec(_vector(number), schema))


def _sparse_vector(value: bytes) -> dict[str, Any]:
    """Parse ``{1:1.5,3:2}/5``: indices from 1, and the number of dimensions."""
    items, slash, dimensions = value.partition(b"/")
    if not slash or items[:1] != b"{" or items[-1:] != b"}":
        raise ValueError("not a sparse vector")
    pairs = (item.partition(b":") for item in items[1:-1].split(b",") if item)
    return {
        "dimensions": int(dimensions),
        "vector": {int(index): to_float(number) for index, _, number in pairs},
    }


def java_numbers(value: bytes) -> bytes:
    """Return a geometric type's text with numbers as Java's doubles: ``(1.0,1.0E10)``."""
    return _NUMBER.sub(lambda match: java_double(to_float(match[0])).encode(), value)


of_point: Final = lossy(TEXT, Codec(_point, _POINT_SCHEMA))
of_geometry: Final = _of_geometry("Geometry")
of_geography: Final = _of_geometry("Geography")
of_vector: Final = _of_vector("DoubleVector", Type.DOUBLE, to_float)
of_halfvec: Final = _of_vector("FloatVector", Type.FLOAT, to_java_float)
of_sparsevec: Final = lossy(TEXT, Codec(_sparse_vector, _SPARSE_VECTOR))
