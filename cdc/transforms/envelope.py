"""A record's schema → whether it is a change event's envelope; and members with their defaults."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from cdc.records.connect import Schema


def is_envelope(schema: Schema | None) -> TypeGuard[Schema]:
    """Whether values of this schema are envelopes; heartbeats and the like aren't."""
    return schema is not None and schema.name is not None and schema.name.endswith(".Envelope")


def member(struct: Mapping[str, Any], schema: Schema, name: str) -> Any:
    """Return a struct's member; its default where it is null, as Connect's Struct.get does."""
    value = struct.get(name)
    if value is not None:
        return value
    found = schema.of_field(name)
    return found.default if found is not None else None
