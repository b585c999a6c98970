"""The schema inside of a JSON record → Connect's schema.

It is what Kafka Connect's JsonConverter writes with ``schemas.enable``.
https://github.com/apache/kafka/blob/trunk/connect/json/src/main/java/org/apache/kafka/connect/json/JsonSchema.java
"""

import json
from collections.abc import Mapping
from typing import Any

from cdc.errors import SinkError
from cdc.records.connect import Field, Schema, Type


def read_schema(text: str) -> Schema:
    """Read a schema's JSON; raises SinkError for anything else."""
    try:
        return _schema(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkError(f"a record's schema isn't one of Kafka Connect's: {error!r}") from None


def _schema(read: Mapping[str, Any]) -> Schema:
    items = read.get("items", read.get("values"))
    parameters = read.get("parameters")
    return Schema(
        Type(read["type"]),
        optional=bool(read.get("optional", False)),
        name=read.get("name"),
        parameters={name: str(value) for name, value in parameters.items()} if parameters else None,
        keys=_schema(read["keys"]) if "keys" in read else None,
        items=_schema(items) if items is not None else None,
        fields=tuple(Field(one["field"], _schema(one)) for one in read.get("fields", ())),
    )
