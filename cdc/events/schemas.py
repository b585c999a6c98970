"""Parts of an event except its rows → Connect schemas, with Debezium's names and versions."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cdc.records.bounds import ENDED_KEY
from cdc.records.connect import JSON_TEXT, Field, Schema, Type

STRING: Final = Schema(Type.STRING)
OPTIONAL_STRING: Final = Schema(Type.STRING, optional=True)
INT64: Final = Schema(Type.INT64)
OPTIONAL_INT64: Final = Schema(Type.INT64, optional=True)


def struct(
    fields: Iterable[tuple[str, Schema]],
    name: str | None = None,
    version: int | None = None,
    *,
    optional: bool = False,
) -> Schema:
    """Return a struct's schema from its members."""
    members = tuple(Field(*member) for member in fields)
    return Schema(Type.STRUCT, optional, name, version, fields=members)


SNAPSHOT: Final = Schema(
    Type.STRING,
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,"
        "incremental"
    },
    default="false",
)

SOURCE: Final = struct(
    (
        ("version", STRING),
        ("connector", STRING),
        ("name", STRING),
        ("ts_ms", INT64),
        ("snapshot", SNAPSHOT),
        ("db", STRING),
        ("sequence", OPTIONAL_STRING),
        ("ts_us", OPTIONAL_INT64),
        ("ts_ns", OPTIONAL_INT64),
        ("schema", STRING),
        ("table", STRING),
        ("txId", OPTIONAL_INT64),
        ("lsn", OPTIONAL_INT64),
        ("xmin", OPTIONAL_INT64),
        ("origin", OPTIONAL_STRING),
        ("origin_lsn", OPTIONAL_INT64),
    ),
    "io.debezium.connector.postgresql.Source",
    1,
)

TRANSACTION_BLOCK: Final = struct(
    (("id", STRING), ("total_order", INT64), ("data_collection_order", INT64)),
    "event.block",
    1,
    optional=True,
)

TRANSACTION_KEY: Final = struct(
    [("id", STRING)], "io.debezium.connector.common.TransactionMetadataKey", 1
)
_COLLECTION: Final = struct(
    (("data_collection", STRING), ("event_count", INT64)), "event.collection", 1, optional=True
)
TRANSACTION_VALUE: Final = struct(
    (
        ("status", STRING),
        ("id", STRING),
        ("event_count", OPTIONAL_INT64),
        ("data_collections", Schema(Type.ARRAY, optional=True, items=_COLLECTION)),
        ("ts_ms", INT64),
    ),
    "io.debezium.connector.common.TransactionMetadataValue",
    1,
)

HEARTBEAT_KEY: Final = struct(
    [("serverName", STRING)], "io.debezium.connector.common.ServerNameKey", 1
)
HEARTBEAT_VALUE: Final = struct([("ts_ms", INT64)], "io.debezium.connector.common.Heartbeat", 1)

NOTIFICATION_KEY: Final = struct(
    [("id", STRING)], "io.debezium.connector.common.NotificationKey", 1
)
NOTIFICATION_VALUE: Final = struct(
    (
        ("id", STRING),
        ("type", STRING),
        ("aggregate_type", STRING),
        ("additional_data", Schema(Type.MAP, optional=True, keys=STRING, items=STRING)),
        ("timestamp", INT64),
    ),
    "io.debezium.connector.common.Notification",
    1,
)

MESSAGE_KEY: Final = struct(
    [("prefix", OPTIONAL_STRING)], "io.debezium.connector.postgresql.MessageKey", 1
)
_MESSAGE: Final = struct(
    (("prefix", OPTIONAL_STRING), ("content", Schema(Type.BYTES, optional=True))),
    "io.debezium.connector.postgresql.Message",
    1,
)
MESSAGE_VALUE: Final = struct(
    (
        ("op", STRING),
        ("ts_ms", OPTIONAL_INT64),
        ("source", SOURCE),
        ("transaction", TRANSACTION_BLOCK),
        ("message", _MESSAGE),
    ),
    "io.debezium.connector.postgresql.MessageValue",
    1,
)

TRUNCATE_KEY: Final = struct([("__millrace_truncate", Schema(Type.BOOLEAN))])
"""Schema of the reserved key in records.topics."""
_JSON: Final = Schema(Type.STRING, name=JSON_TEXT)
ENDED_ROWS_KEY: Final = struct([(ENDED_KEY, _JSON)])
"""Schema of the reserved keys of events about rows that ended at once (cdc.records.bounds)."""


def envelope(name: str, row: Schema) -> Schema:
    """Return a table's envelope around its rows."""
    return struct(
        (
            ("before", row),
            ("after", row),
            ("source", SOURCE),
            ("transaction", TRANSACTION_BLOCK),
            ("op", STRING),
            ("ts_ms", OPTIONAL_INT64),
            ("ts_us", OPTIONAL_INT64),
            ("ts_ns", OPTIONAL_INT64),
        ),
        name,
        2,
    )


def ended_envelope(envelope: Schema) -> Schema:
    """Return a table's envelope with the member for rows that ended at once."""
    return replace(envelope, fields=(*envelope.fields, Field("ended", _JSON)))
