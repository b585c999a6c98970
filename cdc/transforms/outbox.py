"""Rows of an outbox table → their events: ``io.debezium.transforms.outbox.EventRouter``.

An insert becomes a record of the topic in its ``aggregatetype``, with ``aggregateid`` as the key,
``id`` as a header and ``payload`` as the value. Deletes, tombstones and TRUNCATE only clean up the
table, and are dropped. An update isn't expected (``table.op.invalid.behavior``).
https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from cdc.errors import ConfigError, ConversionError
from cdc.records.connect import (
    Field,
    Header,
    PerSchema,
    Schema,
    SourceRecord,
    Type,
    is_envelope,
    member,
)
from cdc.records.topics import field_name
from cdc.settings.options import Options
from cdc.transforms.expand import Expansion, NotExpandableError
from cdc.transforms.routing import renaming

log = structlog.get_logger()

_PLACEMENTS: Final = ("header", "envelope", "partition")
_SCHEMAS_MAX: Final = 1_024
_TO_MS: Final[Mapping[str | None, int]] = {
    "org.apache.kafka.connect.data.Timestamp": 1,
    "io.debezium.time.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}


class _Additional(NamedTuple):
    """An additional column, its destination, and its name there."""

    column: str
    placement: str
    alias: str


class EventRouter:
    """Extracts the event from each row of an outbox table. Records without an envelope pass."""

    def __init__(self, options: Options, *, lossless: bool) -> None:
        self._id = options.text("table.field.event.id", "id")
        self._key = options.text("table.field.event.key", "aggregateid")
        options.text("table.field.event.type")  # Debezium accepts it and ignores it
        self._payload = options.text("table.field.event.payload", "payload")
        self._timestamp = options.text("table.field.event.timestamp")
        self._version = options.text("table.field.event.schema.version")
        self._route_by = options.text("route.by.field", "aggregatetype")
        pattern = options.pattern("route.topic.regex", "(?<routedByValue>.*)")
        replacement = options.text("route.topic.replacement", "outbox.event.${routedByValue}")
        self._rename = renaming(options, pattern, "route.topic.replacement", replacement)
        self._tombstones = options.flag("route.tombstone.on.empty.payload", False)
        self._on_update = options.choice(
            "table.op.invalid.behavior", ("warn", "error", "fatal"), "warn"
        )
        self._additional = _additional(options)
        self._wraps = any(column.placement == "envelope" for column in self._additional)
        missing = options.choice("table.field.additional.missing", ("error", "ignore"), "error")
        self._ignores_missing = missing == "ignore"
        self._expansion = _expansion(options, lossless)
        self._rows = PerSchema(self._row_schema)
        self._expanded_schemas: dict[Schema, Schema] = {}
        self._wrapped_schemas = PerSchema(
            lambda row_schema: PerSchema(partial(self._wrapped_schema, row_schema))
        )

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        """Route one record. None: it is dropped."""
        if record.value is None:
            return None
        if not is_envelope(record.value_schema):
            return record
        envelope = record.value
        if envelope["op"] == "u":
            self._report_update(record)
            return None
        if envelope.get("after") is None:
            return None
        return self._routed(record, envelope, self._rows(record.value_schema))

    def _report_update(self, record: SourceRecord) -> None:
        if self._on_update == "fatal":
            raise ConversionError(
                "a row of an outbox table was updated",
                where=f"topic {record.topic}",
                remedy="only insert and delete outbox rows; with table.op.invalid.behavior ="
                ' "warn", other changes are left out',
            )
        report = log.warning if self._on_update == "warn" else log.error
        report("an outbox row was updated: left out", topic=record.topic)

    def _routed(
        self, record: SourceRecord, envelope: Mapping[str, Any], row_schema: Schema
    ) -> SourceRecord:
        row = envelope["after"]
        topic = self._topic(record, row)
        if topic is None:
            return record
        payload, payload_schema = self._expanded(record, row, row_schema)
        headers = [Header("id", member(row, row_schema, self._id), _of(row_schema, self._id))]
        partition = record.partition
        for column, placement, alias in self._placed(row_schema):
            value = member(row, row_schema, column)
            if placement == "header":
                headers.append(Header(alias, value, _of(row_schema, column)))
            elif placement == "partition":
                partition = value
        key_schema = row_schema.of_field(self._key) if self._key else None
        routed = SourceRecord(
            topic,
            member(row, row_schema, self._key) if self._key else None,
            key_schema or Schema(Type.STRING),
            payload,
            payload_schema,
            (*record.headers, *headers),
            partition,
            self._timestamp_ms(row, row_schema),
        )
        if self._tombstones and (payload is None or not str(payload).strip()):
            return routed._replace(value=None, value_schema=None)
        return self._wrapped(routed, row, row_schema) if self._wraps else routed

    def _topic(self, record: SourceRecord, row: Mapping[str, Any]) -> str | None:
        """Return the topic by the row's type.

        None: the row has none, and the record stays unchanged.
        """
        by = row.get(self._route_by)
        if by is None:
            log.warning(
                "an outbox row names no topic: it is written as a change of its table",
                topic=record.topic,
                column=self._route_by,
            )
            return None
        renamed = self._rename(str(by))
        return str(by) if renamed is None else renamed

    def _expanded(
        self, record: SourceRecord, row: Mapping[str, Any], row_schema: Schema
    ) -> tuple[Any, Schema]:
        payload, schema = member(row, row_schema, self._payload), _of(row_schema, self._payload)
        if self._expansion is None or payload is None:
            return payload, schema
        if not isinstance(payload, str):
            log.warning("an outbox payload isn't text: it isn't expanded", topic=record.topic)
            return payload, schema
        try:
            value, expanded = self._expansion.expand(payload, self._payload)
        except NotExpandableError as error:
            log.warning("an outbox payload stays text", topic=record.topic, reason=str(error))
            return payload, schema
        if len(self._expanded_schemas) >= _SCHEMAS_MAX:
            self._expanded_schemas.clear()
        # One object for all equal payloads, as results for a schema are cached per object.
        return value, self._expanded_schemas.setdefault(expanded, expanded)

    def _wrapped(
        self, routed: SourceRecord, row: Mapping[str, Any], row_schema: Schema
    ) -> SourceRecord:
        """Wrap the payload as one member of a struct, together with the additional columns."""
        payload_schema = routed.value_schema or Schema(Type.STRING, optional=True)
        value = {"payload": routed.value}
        for column, placement, alias in self._placed(row_schema):
            if placement == "envelope":
                value[alias] = member(row, row_schema, column)
        by, version = str(row[self._route_by]), row.get(self._version) if self._version else None
        value_schema = self._wrapped_schemas(row_schema)(payload_schema, by, version)
        return routed._replace(value=value, value_schema=value_schema)

    def _wrapped_schema(
        self, row_schema: Schema, payload_schema: Schema, by: str, version: int | None
    ) -> Schema:
        head, dot, last = (row_schema.name or "").rpartition(".")
        beside = [
            Field(alias, _of(row_schema, column))
            for column, placement, alias in self._placed(row_schema)
            if placement == "envelope"
        ]
        name = f"{head}{dot}{by}.{last}" if row_schema.name else by
        fields = (Field("payload", payload_schema), *beside)
        return Schema(Type.STRUCT, name=name, version=version, fields=fields)

    def _placed(self, row_schema: Schema) -> list[_Additional]:
        if not self._ignores_missing:
            return self._additional
        return [
            added for added in self._additional if row_schema.of_field(added.column) is not None
        ]

    def _timestamp_ms(self, row: Mapping[str, Any], row_schema: Schema) -> int | None:
        """Return the event's time. None: the time of its writing."""
        value = row.get(self._timestamp) if self._timestamp else None
        if value is None:
            return None
        return int(value) // _TO_MS[_of(row_schema, self._timestamp).name]

    def _row_schema(self, envelope: Schema) -> Schema:
        """Return the row's schema. Raise if it lacks the columns of an outbox."""
        row = envelope.of_field("after") or Schema(Type.STRUCT)
        needed = [self._id, self._payload, self._route_by]
        needed += [name for name in (self._timestamp, self._version) if name]
        if not self._ignores_missing:
            needed += [added.column for added in self._additional]
        lacking = [name for name in needed if row.of_field(name) is None]
        if lacking:
            raise ConfigError(
                f"the table isn't an outbox table: it has no column {', '.join(lacking)}",
                where=f"transform of {envelope.name}",
                remedy="name the columns with table.field.event.…, or apply the transform only to"
                " the outbox's topic, with a predicate",
            )
        if self._timestamp and _of(row, self._timestamp).name not in _TO_MS:
            raise ConfigError(
                f"table.field.event.timestamp: {self._timestamp} isn't a timestamp without zone",
                where=f"transform of {envelope.name}",
            )
        return replace(row, optional=False)


def _of(row_schema: Schema, column: str) -> Schema:
    return row_schema.of_field(column) or Schema(Type.STRING, optional=True)


def _additional(options: Options) -> list[_Additional]:
    option = "table.fields.additional.placement"
    additional = []
    for text in options.names(option):
        column, _, placement_and_alias = text.partition(":")
        placement, colon, alias = placement_and_alias.partition(":")
        column, placement, alias = column.strip(), placement.strip().lower(), alias.strip()
        if placement not in _PLACEMENTS or ":" in alias:
            raise options.wrong(
                option,
                "must be a list of column:placement or column:placement:alias, with header,"
                " envelope or partition as the placement",
            )
        additional.append(_Additional(column, placement, alias if colon else column))
    return additional


def _expansion(options: Options, lossless: bool) -> Expansion | None:
    """Return how payloads are expanded, or None. By default, lossless ones keep nulls."""
    null = options.choice(
        "table.json.payload.null.behavior",
        ("ignore", "optional_bytes"),
        "optional_bytes" if lossless else "ignore",
    )
    empty = options.choice(
        "table.json.payload.empty.array.behavior",
        ("ignore", "optional_string"),
        "optional_string" if lossless else "ignore",
    )
    adjust = field_name(options.adjustment("field.name.adjustment.mode"))
    if not options.flag("table.expand.json.payload", False):
        return None
    return Expansion(lossless, null == "optional_bytes", empty == "optional_string", adjust)
