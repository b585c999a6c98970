"""A topic's schemas, and the declared columns of its table → its columns, and how to read it.

A table's columns are those of all schemas so far. So a run's outcome doesn't depend on which
records it reads together. A column's type is that of the newest schema that has it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.errors import ConfigError, SinkError
from cdc.records.connect import Schema, Type
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings import Settings
from cdc.settings.modes import ValueModes
from sinks.debezium.forms import column_of, form_of, is_known, with_names
from sinks.debezium.records import PLAIN, RecordEncoding, RecordGroup, Written
from sinks.debezium.schemas import AvroSchema, read_avro_schema, read_json_schema
from sinks.run.options import SchemaOf

_START: Final = str(Position(FIRST_EPOCH, Lsn(0), 0))
_ALIASES: Final = {
    "smallint": "int2",
    "smallserial": "int2",
    "int": "int4",
    "integer": "int4",
    "serial": "int4",
    "bigint": "int8",
    "bigserial": "int8",
    "real": "float4",
    "double precision": "float8",
    "float": "float8",
    "decimal": "numeric",
    "boolean": "bool",
    "character varying": "varchar",
    "character": "bpchar",
    "char": "bpchar",
    '"char"': "char",
    "bit varying": "varbit",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_TYPE: Final = re.compile(
    r"([^()\[\]]+?)\s*(?:\(\s*([0-9]+)\s*(?:,\s*(-?[0-9]+)\s*)?\))?([^()\[\]]*)"
)
_ARRAY: Final = re.compile(r"\s*(?:\[[0-9]*\]|\barray)\s*\Z", re.IGNORECASE)
_HEADER: Final = 4
"""The modifiers of varchar and numeric exceed their lengths by this number."""
_DECIMAL_FORMAT: Final = "decimal.format"


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """The connector's options for values that records don't show."""

    modes: ValueModes
    decimal_numbers: bool = False


@dataclass(frozen=True, slots=True)
class RecordSource:
    """The records' location and form, and the registry of Avro's schemas."""

    kafka: Mapping[str, str]
    connector: ConnectorOptions
    schema_of: SchemaOf | None


@dataclass(frozen=True, slots=True)
class Layout:
    """One schema of keys, or of values.

    ``members`` are those of a key or a row. ``columns`` are the members by this schema alone.
    ``envelope`` is Avro's complete schema in Connect's form, and ``text`` is Spark's.
    """

    mark: int
    encoding: RecordEncoding
    members: Mapping[str, Schema]
    columns: Mapping[str, Column]
    envelope: Schema | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """A topic's table, and everything needed to read its new records."""

    schema: TableSchema
    keys: tuple[Layout, ...]
    values: tuple[Layout, ...]
    connector: ConnectorOptions


def describe(
    name: TableName,
    groups: Sequence[RecordGroup],
    source: RecordSource,
    *,
    declared: Mapping[str, Column] | None = None,
    before: TableSchema | None = None,
) -> TopicLayout | None:
    """Describe the table of one topic by its new records. None: they have no row at all.

    ``declared`` are columns from the configuration or the source's catalog. ``before`` is the table
    in the last run. Raise MillraceError if records can't be read.
    """
    known = {column.name: column for column in before.columns} if before is not None else {}
    ordered = sorted(groups, key=lambda group: group.last)
    reader = _LayoutReader(name, source, known | dict(declared or {}))
    reader.require_types(ordered)
    keys = reader.layouts((group.key for group in ordered), of_keys=True)
    values = reader.layouts((group.value for group in ordered), of_keys=False)
    if before is None and not values:
        return None
    columns = _columns(values, keys, before)
    _require_same_key(name, keys, before)
    schema = TableSchema(
        namespace=name.namespace,
        table=name.name,
        version=1,
        since=_START,
        topic=ordered[-1].topic if ordered or before is None else before.topic,
        replica_identity="d",
        columns=columns,
        signature=json.dumps([[column.name, column.declared, column.key] for column in columns]),
    )
    if before is not None:
        same = before.signature == schema.signature
        version = before.version if same else before.version + 1
        schema = schema.model_copy(update={"version": version})
    return TopicLayout(schema, keys, values, source.connector)


@dataclass(frozen=True, slots=True)
class _LayoutReader:
    """Texts of schemas → layouts."""

    name: TableName
    source: RecordSource
    columns: Mapping[str, Column]

    def require_types(self, groups: Iterable[RecordGroup]) -> None:
        """Raise ConfigError if the types of keys' or rows' members without schemas are unknown."""
        names: list[str] = []
        is_plain = False
        for group in groups:
            if group.key is not None and group.key.encoding == "plain":
                names += _members(group.key.text, self.name)
            if group.value is not None and group.value.encoding == "plain":
                names += plain_names(group.value)
                is_plain = True
        missing = [name for name in dict.fromkeys(names) if name not in self.columns]
        if not missing and (self.columns or not (names or is_plain)):
            return
        example = f'{missing[0] if missing else "id"} = "bigint"'
        raise ConfigError(
            f"{self.name} is JSON without schemas, and nothing says what type its columns "
            f"have: {', '.join(missing) or 'none is known'}",
            where=f'[lakehouse.types."{self.name}"]',
            remedy=f"describe each column there as PostgreSQL declares it, such as {example}; or"
            " run once with --types-from-source",
        )

    def layouts(self, schemas: Iterable[Written | None], *, of_keys: bool) -> tuple[Layout, ...]:
        """Return the schemas of keys, or of values, each once, the newest last."""
        layouts: dict[int, Layout] = {}
        for written in schemas:
            if written is not None:
                layouts.pop(written.mark, None)
                layouts[written.mark] = self._layout(written, of_keys=of_keys)
        return tuple(layouts.values())

    def _layout(self, written: Written, *, of_keys: bool) -> Layout:
        if written.encoding == "plain":
            return self._plain(_members(written.text, self.name) if of_keys else [*self.columns])
        avro = self._avro(written.mark) if written.encoding == "avro" else None
        whole = read_json_schema(written.text) if avro is None else avro.schema
        struct = whole if of_keys else self._row(whole)
        modes = self.source.connector.modes
        # If structs have names, a member without one has no name.
        members = {
            field.name: field.schema
            if struct.name is not None
            else with_names(field.schema, self.columns.get(field.name), modes)
            for field in struct.fields
        }
        try:
            columns = {
                name: column_of(name, schema, self.columns.get(name))
                for name, schema in members.items()
            }
        except (TypeError, ValueError) as error:  # a list without items, or invalid digits
            raise SinkError(
                f"a record's schema isn't a Kafka Connect schema: {error}",
                where=f"table {self.name}",
            ) from None
        return Layout(written.mark, written.encoding, members, columns, *(avro or ()))

    def _avro(self, number: int) -> AvroSchema:
        if self.source.schema_of is None:
            raise ConfigError(
                f"{self.name} is in Avro, but no schema registry is configured",
                where="[format]",
                remedy="set schema.registry.url",
            )
        return read_avro_schema(self.source.schema_of(number))

    def _row(self, envelope: Schema) -> Schema:
        row = envelope.of_field("after")
        if row is None or row.type is not Type.STRUCT or envelope.of_field("op") is None:
            raise SinkError(
                "its records don't have Debezium's envelope (before, after, source, op)",
                where=f"table {self.name}",
                remedy="write the envelope: flattened events (ExtractNewRecordState) don't show"
                " which rows were deleted and which values were unchanged",
            )
        return row

    def _plain(self, names: list[str]) -> Layout:
        """Return the layout of JSON without a schema, by the declared columns."""
        modes = self.source.connector.modes
        forms = {name: form_of(self.columns[name], modes) for name in names}
        members = {name: form for name, form in forms.items() if form is not None}
        columns = {
            name: column_of(name, schema, self.columns[name]) for name, schema in members.items()
        }
        return Layout(PLAIN, "plain", members, columns)


def plain_names(value: Written) -> list[str]:
    """Return the names of members of rows without a schema; empty without a row."""
    return list(json.loads(value.text)) if value.text else []


def _members(key: str, name: TableName) -> list[str]:
    """Return the names of a plain key's members, from one of the keys."""
    try:
        return list(dict(json.loads(key)))
    except (ValueError, TypeError):
        raise SinkError(
            "a key isn't a JSON object",
            where=f"table {name}",
            remedy="Debezium's keys are objects: remove the transform that changes them"
            " (ExtractField)",
        ) from None


def _columns(
    values: Sequence[Layout], keys: Sequence[Layout], before: TableSchema | None
) -> tuple[Column, ...]:
    """Return all columns, in the order of appearance. A key's columns have their ordinals."""
    columns = {column.name: column for column in before.columns} if before is not None else {}
    ordinals = {column.name: column.key for column in columns.values() if column.key is not None}
    for layout in values:
        columns |= layout.columns
    if keys:
        columns |= keys[-1].columns
        ordinals = {name: ordinal for ordinal, name in enumerate(keys[-1].members, start=1)}
    return tuple(
        column.model_copy(update={"key": ordinals.get(name), "optional": name not in ordinals})
        for name, column in columns.items()
    )


def _require_same_key(name: TableName, keys: Sequence[Layout], before: TableSchema | None) -> None:
    """Raise SinkError if keys have other columns than before, as rows wouldn't be found."""
    forms = [", ".join(layout.members) for layout in keys]
    if before is not None and (before.key or keys):
        forms.insert(0, ", ".join(column.name for column in before.key) or "none")
    if len(set(forms)) > 1:
        raise SinkError(
            f"the records' key has changed: {' → '.join(dict.fromkeys(forms))}",
            where=f"table {name}",
            remedy="rows of the old key can't be found by the new one: remove the Delta table "
            "once the topic begins with records of the new key",
        )


def declared_column(name: str, text: str) -> Column:
    """Parse a declaration. Raise ConfigError for an unknown type."""
    element, array = text.strip(), False
    while _ARRAY.search(element):
        element, array = _ARRAY.sub("", element), True
    match = _TYPE.fullmatch(element)
    type_ = _name(match[1] + match[4]) if match else ""
    if match is None or not (is_known(type_) or type_ == "composite"):
        raise ConfigError(
            f"{text} isn't a type for values of Debezium",
            where=f"[lakehouse.types], column {name}",
            remedy="write enum for an enum, the base type for a domain, composite for a type that"
            " Debezium writes as text, or text",
        )
    return Column(
        name=name,
        type=type_,
        type_oid=0,
        modifier=_modifier(type_, match[2], match[3]),
        array=array,
        declared=text.strip(),
    )


def _name(words: str) -> str:
    name = " ".join(words.split())
    lowered = name if name == '"char"' else name.lower()
    if lowered.startswith("interval"):
        return "interval"
    return _ALIASES.get(lowered, lowered)


def _modifier(type_: str, first: str | None, second: str | None) -> int:
    """Return atttypmod, as in PostgreSQL's catalog."""
    if first is None:
        return 1 if type_ == "bit" else -1
    if type_ == "numeric":
        return (int(first) << 16 | int(second or 0) & 0x7FF) + _HEADER
    return int(first) + (_HEADER if type_ in {"varchar", "bpchar"} else 0)


def connector_options(settings: Settings) -> ConnectorOptions:
    """Return the connector's options for values. Raise ConfigError without the preset."""
    if settings.preset != "debezium":
        raise ConfigError(
            "topics of a real Debezium need its own options, with its defaults",
            where="the configuration",
            remedy='set preset = "debezium", and the connector\'s options in [capture]',
        )
    options = settings.format
    chosen = options.get(f"value.{_DECIMAL_FORMAT}", options.get(_DECIMAL_FORMAT, "BASE64"))
    return ConnectorOptions(
        settings.capture.value_modes, decimal_numbers=chosen.upper() == "NUMERIC"
    )


def declared_columns(types: Mapping[str, str]) -> dict[str, Column]:
    """Return columns by name and declared type, from a table's [lakehouse.types]."""
    return {name: declared_column(name, text) for name, text in types.items()}
