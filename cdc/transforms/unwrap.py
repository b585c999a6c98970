"""Envelopes → the rows in them: ``io.debezium.transforms.ExtractNewRecordState``.

The option ``delete.tombstone.handling.mode`` decides about a delete and the tombstone after it:

- ``tombstone``, ``delete-to-tombstone``: the delete becomes a tombstone, and the second tombstone
  is dropped.
- ``drop``: both are dropped.
- ``rewrite``: the old row, with ``__deleted``; the tombstone is dropped.
- ``rewrite-with-tombstone``: the same, and the tombstone stays.

A TRUNCATE has no row, and is dropped with a warning.
https://debezium.io/documentation/reference/stable/transformations/event-flattening.html
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

import structlog

from cdc.errors import ConversionError
from cdc.records.connect import Field, Header, PerSchema, Schema, SourceRecord, Type, is_envelope
from cdc.settings.options import Options

log = structlog.get_logger()

_MODES: Final = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
_DELETED: Final = "__deleted"
_OF_TRANSACTION: Final = frozenset({"id", "data_collection_order", "total_order"})
_OF_ENVELOPE: Final = frozenset({"op", "ts_ms", "ts_us", "ts_ns"})


class _Reference(NamedTuple):
    """A member of the envelope (``parent`` None) or of its source or transaction block."""

    parent: str | None
    name: str
    new_name: str

    @classmethod
    def parse(cls, options: Options, option: str, prefix: str, text: str) -> Self:
        """Parse ``op``, ``source.ts_ms`` or ``source.ts_ms:other_name``."""
        path, *aliases = text.split(":")
        *parents, name = path.split(".")
        if len(aliases) > 1 or len(parents) > 1 or not name:
            raise options.wrong(option, "must be a list of name, block.name or block.name:new_name")
        if parents:
            return cls(
                parents[0], name, prefix + (aliases[0] if aliases else f"{parents[0]}_{name}")
            )
        parent: str | None = "source"
        if name in _OF_ENVELOPE:
            parent = None
        elif name in _OF_TRANSACTION:
            parent = "transaction"
        return cls(parent, name, prefix + (aliases[0] if aliases else name))

    def resolve(self, envelope: Schema) -> tuple["_Reference", Schema] | None:
        """Return the reference and its schema in this envelope. None: the envelope lacks it."""
        block = envelope if self.parent is None else envelope.of_field(self.parent)
        schema = block.of_field(self.name) if block is not None else None
        if schema is not None:
            return self, replace(schema, optional=True, default=None)
        schema = envelope.of_field(self.name)  # added by another transform
        if schema is None:
            return None
        return self._replace(parent=None), replace(schema, optional=True, default=None)

    def value(self, envelope: Mapping[str, Any]) -> Any:
        """Return the value. None also if the whole block is missing."""
        block = envelope if self.parent is None else envelope.get(self.parent)
        return None if block is None else block.get(self.name)


class _UnwrapPlan(NamedTuple):
    """The result of one envelope schema."""

    row: Schema
    fields: list[_Reference]
    headers: list[tuple[_Reference, Schema]]
    flat: Schema


class _UnwrappedDelete(NamedTuple):
    """The last unwrapped delete, and its headers."""

    topic: str
    key: Any
    headers: tuple[Header, ...]


class Unwrap:
    """Extracts the row from each envelope. Other records pass."""

    def __init__(self, options: Options, *, lossless: bool) -> None:
        self._mode = options.choice("delete.tombstone.handling.mode", _MODES, "tombstone")
        self._rewrites = self._mode.startswith("rewrite")
        self._fields = _references(options, "add.fields")
        self._headers = _references(options, "add.headers")
        self._route_by = options.text("route.by.field")
        self._drop_header = options.text("drop.fields.header.name")
        self._drops_from_key = options.flag("drop.fields.from.key", False)
        self._drops_optional_only = options.flag("drop.fields.keep.schema.compatible", True)
        self._lossless = lossless
        self._last_delete: _UnwrappedDelete | None = None
        self._defaults = options.flag("replace.null.with.default", not lossless)
        self._plans = PerSchema(self._plan)
        self._reduced_schemas = PerSchema(self._reduced_schema)

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        """Unwrap one record. None: it is dropped."""
        if record.value is None:
            return self._tombstone(record)
        if not is_envelope(record.value_schema):
            return record
        plan = self._plans(record.value_schema)
        envelope = record.value
        added = tuple(
            Header(to.new_name, to.value(envelope), schema) for to, schema in plan.headers
        )
        row = envelope.get("after")
        deleted = row is None
        self._last_delete = _UnwrappedDelete(record.topic, record.key, added) if deleted else None
        row = envelope.get("before") if deleted else row
        if row is None:
            log.warning("a TRUNCATE has no row to unwrap: it is left out", topic=record.topic)
            return None
        if deleted and self._mode == "drop":
            return None
        record = self._routed(record._replace(headers=(*record.headers, *added)), row)
        if deleted and not self._rewrites:
            return self._dropped(record._replace(value=None, value_schema=None))
        return self._dropped(self._flat(record, plan, envelope, row, deleted=deleted))

    def _tombstone(self, record: SourceRecord) -> SourceRecord | None:
        if self._mode != "rewrite-with-tombstone":
            return None
        added = [
            Header(reference.new_name, "d", Schema(Type.STRING))
            for reference in self._headers
            if reference.name == "op"
        ]
        return record._replace(headers=(*record.headers, *self._of_delete(record), *added))

    def _of_delete(self, tombstone: SourceRecord) -> tuple[Header, ...]:
        """Return a delete's headers for its tombstone: in Debezium both share one list."""
        last, self._last_delete = self._last_delete, None
        if self._lossless or last is None:
            return ()
        is_its = (last.topic, last.key) == (tombstone.topic, tombstone.key)
        return last.headers if is_its else ()

    def _flat(
        self,
        record: SourceRecord,
        plan: _UnwrapPlan,
        envelope: Mapping[str, Any],
        row: Mapping[str, Any],
        *,
        deleted: bool,
    ) -> SourceRecord:
        """Return the row, followed by the members of ``add.fields`` and ``__deleted``."""
        value = dict(row)
        if self._rewrites:
            if self._defaults:
                value = {
                    name: schema.default if row[name] is None else row[name]
                    for name, schema in plan.row.fields
                    if name in row
                }
            value[_DELETED] = "true" if deleted else "false"
        for reference in plan.fields:
            value[reference.new_name] = reference.value(envelope)
        return record._replace(value=value, value_schema=plan.flat)

    def _routed(self, record: SourceRecord, row: Mapping[str, Any]) -> SourceRecord:
        topic = str(row.get(self._route_by) or "") if self._route_by else ""
        return record._replace(topic=topic) if topic.strip() else record

    def _dropped(self, record: SourceRecord) -> SourceRecord:
        """Drop the columns in the header that ``drop.fields.header.name`` names."""
        if not self._drop_header:
            return record
        listed = next(
            (header.value for header in record.headers if header.name == self._drop_header), None
        )
        names = frozenset(listed or ())
        if record.value_schema is not None and names:
            value, value_schema = self._reduced(record.value, record.value_schema, names)
            record = record._replace(value=value, value_schema=value_schema)
        if self._drops_from_key and record.key_schema is not None and names:
            key, key_schema = self._reduced(record.key, record.key_schema, names)
            record = record._replace(key=key, key_schema=key_schema)
        return record

    def _reduced(
        self, struct: Mapping[str, Any], schema: Schema, names: frozenset[str]
    ) -> tuple[dict[str, Any], Schema]:
        reduced = self._reduced_schemas(schema, names)
        kept = {field.name for field in reduced.fields}
        return {name: value for name, value in struct.items() if name in kept}, reduced

    def _reduced_schema(self, schema: Schema, names: frozenset[str]) -> Schema:
        fields = tuple(
            field
            for field in schema.fields
            if field.name not in names or (self._drops_optional_only and not field.schema.optional)
        )
        return replace(schema, fields=fields)

    def _plan(self, envelope: Schema) -> _UnwrapPlan:
        row = envelope.of_field("after") or envelope.of_field("before") or Schema(Type.STRUCT)
        fields = [field for added in self._fields if (field := added.resolve(envelope))]
        added = [Field(_DELETED, Schema(Type.STRING, optional=True))] if self._rewrites else []
        added += [Field(reference.new_name, schema) for reference, schema in fields]
        flat = replace(row, optional=False, default=None, fields=(*row.fields, *added))
        _refuse_same_names(flat, envelope)
        headers = [header for added in self._headers if (header := added.resolve(envelope))]
        return _UnwrapPlan(row, [reference for reference, _ in fields], headers, flat)


def _refuse_same_names(flat: Schema, envelope: Schema) -> None:
    """Refuse an added member that would replace a column."""
    names = [field.name for field in flat.fields]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConversionError(
            f"the unwrapped row already has these fields: {', '.join(twice)}",
            where=f"transform of {envelope.name}",
            remedy="rename them with add.fields.prefix, or with name:other_name in add.fields",
        )


def _references(options: Options, option: str) -> list[_Reference]:
    prefix = options.text(f"{option}.prefix", "__")
    return [_Reference.parse(options, option, prefix, text) for text in options.names(option)]
