"""What a run has seen of a topic, and what was told of its table → its columns, and how to read it.

A table's columns are those of all schemas so far, so that no run's outcome depends on which records
it happened to read together; a column's type is that of the newest schema that has it.
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
from sinks.debezium.forms import agreed, column_of, form_of, is_known
from sinks.debezium.records import PLAIN, Kind, Seen
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
"""What varchar's and numeric's modifiers count along."""
_DECIMAL_FORMAT: Final = "decimal.format"


@dataclass(frozen=True, slots=True)
class Reading:
    """How the topics were written, as far as records don't tell: the connector's options."""

    modes: ValueModes
    decimal_numbers: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """One schema of keys, or of values.

    ``members`` are a key's, or a row's; ``columns`` what they would be by this schema alone.
    ``envelope`` is Avro's schema of the whole, as Connect has it, and ``text`` as Spark takes it.
    """

    mark: int
    kind: Kind
    members: Mapping[str, Schema]
    columns: Mapping[str, Column]
    envelope: Schema | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """A topic's table, and all that is needed to read the records that were seen."""

    schema: TableSchema
    keys: tuple[Layout, ...]
    values: tuple[Layout, ...]
    reading: Reading

    @property
    def keyed(self) -> bool:
        """Whether the table's rows have keys."""
        return bool(self.schema.key)


def describe(
    name: TableName,
    seen: Sequence[Seen],
    reading: Reading,
    *,
    schema_of: SchemaOf | None = None,
    told: Mapping[str, Column] | None = None,
    before: TableSchema | None = None,
) -> Described | None:
    """Describe the table of one topic by its new records; None if they have no row at all.

    ``told`` is what the configuration, or the source's catalog, says of columns; ``before`` is the
    table as the last run knew it. Raises MillraceError where records can't be read so.
    """
    known = _known(told or {}, before)
    ordered = sorted(seen, key=lambda one: one.last)
    reader = _Reader(name, reading, known, schema_of)
    keys = reader.keys(ordered)
    values = reader.values(ordered)
    if before is None and not values:
        return None
    columns = _columns(values, keys, before)
    _require_one_key(name, keys, before)
    schema = TableSchema(
        namespace=name.namespace,
        table=name.name,
        version=1,
        since=_START,
        topic=ordered[-1].topic if ordered or before is None else before.topic,
        replica_identity="d",
        columns=columns,
        signature=json.dumps([[one.name, one.declared, one.key] for one in columns]),
    )
    if before is not None:
        same = before.signature == schema.signature
        version = before.version if same else before.version + 1
        schema = schema.model_copy(update={"version": version})
    return Described(schema, keys, values, reading)


def _known(told: Mapping[str, Column], before: TableSchema | None) -> dict[str, Column]:
    earlier = {column.name: column for column in before.columns} if before is not None else {}
    return earlier | dict(told)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Texts of schemas → layouts."""

    name: TableName
    reading: Reading
    known: Mapping[str, Column]
    schema_of: SchemaOf | None

    def keys(self, seen: Iterable[Seen]) -> tuple[Layout, ...]:
        """The schemas of keys, each once, the newest last; those of plain keys by their members."""
        found: dict[int, Layout] = {}
        for one in seen:
            if one.key_kind is None:
                continue
            if one.key_kind == "plain":
                layout = self._plain(_members(one.key_text, self.name))
            elif one.key_kind == "json":
                layout = self._layout(one.key_mark, "json", read_json_schema(one.key_text))
            else:
                avro = self._avro(one.key_mark)
                layout = self._layout(one.key_mark, "avro", avro.schema, avro)
            found.pop(layout.mark, None)
            found[layout.mark] = layout
        return tuple(found.values())

    def values(self, seen: Iterable[Seen]) -> tuple[Layout, ...]:
        """The schemas of values, each once, the newest last."""
        found: dict[int, Layout] = {}
        for one in seen:
            if one.value_kind is None:
                continue
            if one.value_kind == "plain":
                layout = self._plain(list(self.known))
            elif one.value_kind == "json":
                envelope = read_json_schema(one.value_text)
                layout = self._layout(one.value_mark, "json", self._row(envelope))
            else:
                avro = self._avro(one.value_mark)
                layout = self._layout(one.value_mark, "avro", self._row(avro.schema), avro)
            found.pop(layout.mark, None)
            found[layout.mark] = layout
        return tuple(found.values())

    def _avro(self, number: int) -> AvroSchema:
        if self.schema_of is None:
            raise ConfigError(
                f"{self.name} is written in Avro, and no schema registry is configured",
                where="[format]",
                remedy="set schema.registry.url",
            )
        return read_avro_schema(self.schema_of(number))

    def _row(self, envelope: Schema) -> Schema:
        row = envelope.of_field("after")
        if row is None or row.type is not Type.STRUCT or envelope.of_field("op") is None:
            raise SinkError(
                "its records aren't Debezium's envelope (before, after, source, op)",
                where=f"table {self.name}",
                remedy="flattened events (ExtractNewRecordState) can't be merged: they don't say "
                "what was deleted, or unchanged",
            )
        return row

    def _layout(
        self, mark: int, kind: Kind, struct: Schema, avro: AvroSchema | None = None
    ) -> Layout:
        # Where structs have names, a member without one has none to have.
        members = {
            field.name: field.schema
            if struct.name is not None
            else agreed(field.schema, self.known.get(field.name), self.reading.modes)
            for field in struct.fields
        }
        try:
            columns = {
                name: column_of(name, schema, self.known.get(name), None)
                for name, schema in members.items()
            }
        except (TypeError, ValueError) as error:  # a list without items, digits that are none
            raise SinkError(
                f"a record's schema isn't one of Kafka Connect's: {error}",
                where=f"table {self.name}",
            ) from None
        if avro is None:
            return Layout(mark, kind, members, columns)
        return Layout(mark, kind, members, columns, avro.schema, avro.text)

    def _plain(self, names: list[str]) -> Layout:
        """What was told, in the place of a schema."""
        missing = [name for name in names if name not in self.known]
        if missing or not names:
            raise ConfigError(
                f"{self.name} is JSON without schemas, and nothing says what type its columns "
                f"have: {', '.join(missing) or 'none is known'}",
                where="[lakehouse.types]",
                remedy="describe them there, or run once with --types-from-source",
            )
        forms = {name: form_of(self.known[name], self.reading.modes) for name in names}
        members = {name: form for name, form in forms.items() if form is not None}
        columns = {
            name: column_of(name, schema, self.known[name], None)
            for name, schema in members.items()
        }
        return Layout(PLAIN, "plain", members, columns)


def _members(key: str, name: TableName) -> list[str]:
    """The names of a plain key's members, by one of the keys."""
    try:
        return list(dict(json.loads(key)))
    except (ValueError, TypeError):
        raise SinkError(
            "a key isn't a JSON object",
            where=f"table {name}",
            remedy="Debezium's keys are objects; is a transform (ExtractField) at work?",
        ) from None


def _columns(
    values: Sequence[Layout], keys: Sequence[Layout], before: TableSchema | None
) -> tuple[Column, ...]:
    """All columns, in the order in which they came up; a key's have their ordinals."""
    found = {one.name: one for one in before.columns} if before is not None else {}
    ordinals = {column.name: column.key for column in found.values() if column.key is not None}
    for layout in values:
        found |= layout.columns
    if keys:
        found |= keys[-1].columns
        ordinals = {name: place for place, name in enumerate(keys[-1].members, start=1)}
    return tuple(
        column.model_copy(update={"key": ordinals.get(name), "optional": name not in ordinals})
        for name, column in found.items()
    )


def _require_one_key(name: TableName, keys: Sequence[Layout], before: TableSchema | None) -> None:
    """Raise SinkError where keys have other columns than they had: rows wouldn't be found."""
    forms = [", ".join(layout.members) for layout in keys]
    if before is not None and (before.key or keys):
        forms.insert(0, ", ".join(column.name for column in before.key) or "none")
    if len(set(forms)) > 1:
        raise SinkError(
            f"the records' key was changed: {' → '.join(dict.fromkeys(forms))}",
            where=f"table {name}",
            remedy="rows of the old key can't be found by the new one: remove the Delta table "
            "once the topic begins with records of the new key",
        )


def declared(name: str, text: str) -> Column:
    """Read a declaration; raises ConfigError for a type that nobody knows."""
    rest, array = text.strip(), False
    while _ARRAY.search(rest):
        rest, array = _ARRAY.sub("", rest), True
    match = _TYPE.fullmatch(rest)
    type_ = _name(match[1] + match[4]) if match else ""
    if match is None or not (is_known(type_) or type_ == "composite"):
        raise ConfigError(
            f"{text} isn't a type that Debezium's values can be read by",
            where=f"[lakehouse.types], column {name}",
            remedy="write enum for an enum, the base type of a domain, composite for types of "
            "which Debezium hands on the text, or text",
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
    """Atttypmod, as PostgreSQL has it in its catalog."""
    if first is None:
        return 1 if type_ == "bit" else -1
    if type_ == "numeric":
        return (int(first) << 16 | int(second or 0) & 0x7FF) + _HEADER
    return int(first) + (_HEADER if type_ in {"varchar", "bpchar"} else 0)


def reading_of(settings: Settings) -> Reading:
    """How values are written where records don't tell; raises ConfigError without the preset."""
    if settings.preset != "debezium":
        raise ConfigError(
            "topics of a real Debezium are described by its own options, with its defaults",
            where="the configuration",
            remedy='set preset = "debezium", and in [capture] what the connector has',
        )
    options = settings.format
    chosen = options.get(f"value.{_DECIMAL_FORMAT}", options.get(_DECIMAL_FORMAT, "BASE64"))
    return Reading(settings.capture.value_modes, decimal_numbers=chosen.upper() == "NUMERIC")


def told_of(types: Mapping[str, str]) -> dict[str, Column]:
    """Columns by name and declared type, as [lakehouse.types] has them for a table."""
    return {name: declared(name, text) for name, text in types.items()}
