"""A row change → the source record of its envelope, with the schemas that Debezium gives it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdc.records.connect import Field, Header, Schema, SourceRecord, Type

TEXT = Schema(Type.STRING, optional=True)
INT = Schema(Type.INT32)
LONG = Schema(Type.INT64, optional=True)
NEW_KEY = "__debezium.newkey"

SNAPSHOT = Schema(Type.STRING, optional=True, name="io.debezium.data.Enum", default="false")
SOURCE = Schema(
    Type.STRUCT,
    name="io.debezium.connector.postgresql.Source",
    fields=(
        Field("ts_ms", Schema(Type.INT64)),
        Field("snapshot", SNAPSHOT),
        Field("schema", Schema(Type.STRING)),
        Field("table", Schema(Type.STRING)),
        Field("lsn", LONG),
    ),
)
TRANSACTION = Schema(
    Type.STRUCT,
    optional=True,
    name="event.block",
    fields=(Field("id", Schema(Type.STRING)), Field("total_order", Schema(Type.INT64))),
)


def struct(name: str | None, **fields: Schema) -> Schema:
    return Schema(Type.STRUCT, name=name, fields=tuple(Field(*one) for one in fields.items()))


class Table:
    """A table's schemas, and the records of its changes."""

    def __init__(self, name: str, key: str, **columns: Schema) -> None:
        self.topic = f"shop.public.{name}"
        self.name = name
        self._key = key
        self.key_schema = struct(f"{self.topic}.Key", **{key: columns[key]})
        self.row = replace(struct(f"{self.topic}.Value", **columns), optional=True)
        self.schema = struct(
            f"{self.topic}.Envelope",
            before=self.row,
            after=self.row,
            source=SOURCE,
            transaction=TRANSACTION,
            op=Schema(Type.STRING),
            ts_ms=LONG,
        )

    def change(
        self,
        op: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        *headers: Header,
    ) -> SourceRecord:
        """The record of a change; a streamed one's ``snapshot`` is null, as in Debezium."""
        source = {
            "ts_ms": 1_700,
            "snapshot": "last" if op == "r" else None,
            "schema": "public",
            "table": self.name,
            "lsn": 42,
        }
        value = {
            "before": before,
            "after": after,
            "source": source,
            "transaction": None,
            "op": op,
            "ts_ms": 1_800,
        }
        row = after or before
        key = {self._key: row[self._key]} if row is not None else None
        return SourceRecord(
            self.topic, key, self.key_schema if key else None, value, self.schema, headers
        )

    def tombstone(self, key: Any, *headers: Header) -> SourceRecord:
        """The record behind a delete."""
        return SourceRecord(self.topic, {self._key: key}, self.key_schema, None, None, headers)
