"""TableSchema → index name, mapping and document ids: the form of a table as an index.

A document's ``_source`` is authoritative; its mapping only defines how it is searched. So no value
can cause a refusal. The mapping is ``dynamic: false`` (unmapped fields are kept, not indexed).
Numbers and dates that the server can't index (NaN, infinity, a year beyond its range) are kept and
listed in ``_ignored``. Terms that are too long for Lucene are left out of the index.

- text: full text, and exact under ``.keyword`` (up to 256 characters)
- numeric: its exact text; searched and sorted as a double, exact under ``.exact``
- json, jsonb: the exact text, with full-text search of its words; never an object, since one
  unusual document would define a field's type for all others
- date, timestamp, timestamptz: ISO 8601 text with all its digits, searched by the millisecond; a
  timestamp without time zone is searched as if it were UTC
- point: a geographical point by longitude (x) and latitude (y), if the values allow it
- an array is a field with several values; bytea is base64 and not searched; any other type is a
  keyword

The user's overrides of a field come last, and can cause refusals.

A field has its column's name. ``_`` replaces a dot (which would make it an object), and a name that
is blank or starts with ``_`` (the server's own fields) gets an ``x`` in front.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cdc.errors import ConfigError, SinkError
from cdc.lines import toml_text
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings import SearchSettings
from cdc.settings.search import OWN_INDEXES

POSITION_FIELD: Final = "_millrace_position"
"""Position of the change that produced a document, as fixed-width text."""
ABSENT_FIELD: Final = "_millrace_absent"
"""Fields whose value neither the log nor the index had. Only in documents that lack some."""

_ID_BYTES_MAX: Final = 512  # the server's limit
_HASHED: Final = "sha256:"
_INVALID: Final = re.compile(r'[\\/*?"<>| ,#:\x00-\x1f]')
_OWN_SUFFIX: Final = re.compile(r"-\d+(-write)?\Z")
_TERM_CHARS_MAX: Final = 8191  # Lucene's 32,766 bytes, at four bytes a character

_KEYWORD: Final = {"type": "keyword", "ignore_above": _TERM_CHARS_MAX}
_TEXT: Final = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_DATE: Final = {
    "type": "date",
    "format": "strict_date_optional_time_nanos",
    "ignore_malformed": True,
}
_NUMERIC: Final = {"type": "double", "ignore_malformed": True, "fields": {"exact": _KEYWORD}}


def _number(name: str) -> dict[str, Any]:
    return {"type": name, "ignore_malformed": True}


_TYPES: Final[Mapping[str, dict[str, Any]]] = {
    "bool": {"type": "boolean"},
    "int2": _number("short"),
    "int4": _number("integer"),
    "int8": _number("long"),
    "oid": _number("long"),
    "float4": _number("float"),
    "float8": _number("double"),
    "numeric": _NUMERIC,
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "citext": _TEXT,
    "xml": {"type": "text"},
    "json": {"type": "text"},
    "jsonb": {"type": "text"},
    "date": _DATE,
    "timestamp": _DATE,
    "timestamptz": _DATE,
    "bytea": {"type": "binary"},
    "point": {"type": "geo_point", "ignore_malformed": True},
}


_POSTGRES: Final = {
    "boolean": "bool",
    "tinyint": "int2",
    "smallint": "int2",
    "int": "int4",
    "bigint": "int8",
    "float": "float4",
    "double": "float8",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "bytea",
    "string": "text",
}
"""Types of Spark → types of PostgreSQL that are searched in the same way."""


def index_name(prefix: str, table: TableName | str) -> str:
    """Return the alias of a table's documents: ``<index.prefix><schema>.<table>``.

    Raise SinkError if that is invalid, or one of Millrace's own.
    """
    name = clean_name(f"{prefix}{table}")
    if not name or name in {f"{prefix}{own}" for own in OWN_INDEXES}:
        raise SinkError(
            "the table's name can't be an index's name",
            where=f"table {table}",
            remedy=f'set one: [[search.indexes]] table = {toml_text(str(table))}, name = "…"',
        )
    return name


def clean_name(text: str) -> str:
    """Return the name in lower case, with ``_`` for invalid characters. It may be empty."""
    return _INVALID.sub("_", text.lower()).lstrip("_-+.")


def document_index(prefix: str, name: str) -> str:
    """Return the alias of joined documents."""
    return f"{prefix}{name}"


class Aliases(NamedTuple):
    """The aliases of indexed tables, and of documents, by their names.

    ``refused`` says why tables can't be indexed: they would share an index with each other, or with
    documents. The index behind an alias is ``<alias>-<generation>``, so names of that form count,
    too.
    """

    by_name: dict[str, str]
    refused: dict[str, SinkError]


def aliases(settings: SearchSettings, tables: Iterable[TableName]) -> Aliases:
    """Return all aliases, if the log has these tables with keys."""
    names, unnamed = _named(settings, tables)
    refused = unnamed | _shared(settings, names)
    of_tables = {name: alias for name, alias in names.items() if name not in refused}
    return Aliases(of_tables | _of_documents(settings), refused)


def _named(
    settings: SearchSettings, tables: Iterable[TableName]
) -> tuple[dict[str, str], dict[str, SinkError]]:
    """Return the aliases of tables, and why some have none."""
    names, unnamed = dict[str, str](), dict[str, SinkError]()
    for table in sorted(tables):
        name = str(table)
        if settings.tables is not None and name not in settings.tables:
            continue
        own, prefix = settings.index_of(name).name, settings.index_prefix
        try:
            names[name] = index_name(prefix, table) if own is None else document_index(prefix, own)
        except SinkError as error:
            unnamed[name] = error
    return names, unnamed


def _of_documents(settings: SearchSettings) -> dict[str, str]:
    prefix = settings.index_prefix
    return {each.name: document_index(prefix, each.name) for each in settings.documents}


def _shared(settings: SearchSettings, names: Mapping[str, str]) -> dict[str, SinkError]:
    owners: dict[str, list[str]] = {}
    for name, alias in names.items():
        owners.setdefault(alias, []).append(name)
    for document, alias in _of_documents(settings).items():
        owners.setdefault(alias, []).append(f"documents {document}")
    rivals: dict[str, set[str]] = {}
    for alias, of_alias in owners.items():
        base = _OWN_SUFFIX.sub("", alias)
        alike = of_alias if base == alias else [*of_alias, *owners.get(base, ())]
        for each in alike:
            rivals.setdefault(each, set()).update(alike)
    return {
        name: SinkError(
            f"table {name} would share the index {alias} with {', '.join(sorted(others))}",
            where="[search]",
            remedy=f"set another name for one index: [[search.indexes]] table = {toml_text(name)},"
            ' name = "…"; or list the tables to index in tables of [search]',
        )
        for name, alias in names.items()
        if (others := rivals[name] - {name})
    }


def field_names(schema: TableSchema) -> dict[str, str]:
    """Return each column's field. Raise SinkError if two columns would share one."""
    return fields_of(schema.name, schema.event_columns)


def fields_of(table: TableName, event_columns: Iterable[Column]) -> dict[str, str]:
    """Return the same for columns without any event yet."""
    fields, columns = dict[str, str](), dict[str, str]()
    for column in event_columns:
        field = field_name(column.name)
        other = columns.setdefault(field, column.name)
        if other != column.name:
            raise SinkError(
                f"two columns would share the field {field!r}: {other} and {column.name}",
                where=f"table {table}",
                remedy="rename one of them; or leave the table out (tables in [search]), and index"
                " it as a joined document with rename, include and exclude",
            )
        fields[column.name] = field
    return fields


def field_name(column: str) -> str:
    """Return a column's field."""
    field = column.replace(".", "_")
    return f"x{field}" if field.startswith("_") or not field.strip() else field


def mapping(
    schema: TableSchema,
    overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    had: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the mapping of a table's index. The user's ``overrides`` of its fields come last.

    Overrides of columns that the table only ``had`` are ignored.
    """
    fields = field_names(schema)
    properties = {fields[column.name]: field_mapping(column) for column in schema.event_columns}
    gone = {*map(field_name, had)} - properties.keys()
    overrides = {path: about for path, about in overrides.items() if path not in gone}
    override(properties, overrides, f"[[search.indexes]] {schema.name}")
    return mapping_of(properties)


def override(
    properties: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]], where: str
) -> None:
    """Apply the user's definitions to fields, by their paths.

    Raise ConfigError if a field doesn't exist.
    """
    for path, about in overrides.items():
        *outer, field = path.split(".")
        inside = properties
        for name in outer:
            inside = inside.get(name, {}).get("properties", {})
        derived = inside.get(field)
        if derived is None:
            raise ConfigError(
                f"mapping: the document has no field {path}",
                where=where,
                remedy="write the path in the document, such as airline.name",
            )
        # A point is an object whose members aren't searched.
        is_object = "properties" in derived and about.get("type") != "geo_point"
        inside[field] = {**({"properties": derived["properties"]} if is_object else {}), **about}


def mapping_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping of an index with these fields, and our own."""
    own = {POSITION_FIELD: {"type": "keyword"}, ABSENT_FIELD: {"type": "keyword"}}
    return {"dynamic": False, "properties": properties | own}


def field_mapping(column: Column) -> dict[str, Any]:
    """Return how a column's values are searched."""
    return _KEYWORD if column.type == "point" and column.array else type_mapping(column.type)


def type_mapping(kind: str) -> dict[str, Any]:
    """Return how values of one of PostgreSQL's types are searched."""
    return _TYPES.get(kind, _KEYWORD)


def type_of(kind: str) -> str:
    """Return the PostgreSQL type that is searched like a Spark type."""
    return "numeric" if kind.startswith("decimal") else _POSTGRES.get(kind, "text")


def document_id(key: Sequence[str]) -> str:
    """Return the id of a row: its key's text, or the JSON array of several columns' texts.

    A text that the server refuses as an id (empty, or more than 512 bytes) becomes a hash.
    """
    text = key[0] if len(key) == 1 else json.dumps(key, ensure_ascii=False, separators=(",", ":"))
    encoded = text.encode()
    if 0 < len(encoded) <= _ID_BYTES_MAX and not text.startswith(_HASHED):
        return text
    return _HASHED + hashlib.sha256(encoded).hexdigest()
