"""JSON text → a Connect value with a schema inferred from it, for the outbox's payload.

A Connect array has one type of element. If the elements differ, their types are merged: a missing
member is null, an integer with a fraction is a double, objects merge member by member. A value that
can't be merged, or that a double would round, isn't expanded (NotExpandableError), and the caller
keeps the text. Debezium merges less, and stops at values that it hasn't merged. ``lossless`` False
keeps texts and rounds where Debezium does, and continues where it would stop.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any, Final

from cdc.records.connect import Field, Schema, Type

_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_NUMBERS: Final = (Type.INT32, Type.INT64, Type.DOUBLE)
"""Each can hold the ones before it. A double only if it rounds nothing."""
_DEPTH_MAX: Final = 200
"""Python's recursion ends at 1,000 frames, Jackson's, which Debezium uses, at a similar depth."""


class NotExpandableError(ValueError):
    """The text isn't JSON, or has no schema of Connect's."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How to expand nulls and empty arrays, which have no type."""

    lossless: bool
    null_as_bytes: bool
    empty_array_as_texts: bool
    field_name: Callable[[str], str] = str

    def expand(self, text: str, name: str) -> tuple[Any, Schema]:
        """Return value and schema of a JSON object or array. Raise NotExpandableError."""
        if text[:1] not in {"{", "["}:
            raise NotExpandableError("neither an object nor an array")
        try:
            value = json.loads(text, parse_float=self._fraction, parse_constant=_no_json)
        except NotExpandableError:
            raise
        except (ValueError, RecursionError) as error:
            raise NotExpandableError("not JSON") from error
        schema = self._schema(value, name, 0)
        if schema is None:
            raise NotExpandableError("an empty array says nothing of its elements")
        return self._laid_out(value, schema), schema

    def _fraction(self, text: str) -> float:
        number = float(text)
        if self.lossless and (number - number != 0 or Decimal(repr(number)) != Decimal(text)):
            raise NotExpandableError("a double would round a number")
        return number

    def _schema(self, value: Any, name: str, depth: int) -> Schema | None:
        """Infer a schema. None: the type is unknown, and the member is left out."""
        if depth > _DEPTH_MAX:
            raise NotExpandableError("nested too deeply")
        if isinstance(value, dict):
            return self._object(value, name, depth)
        if isinstance(value, list):
            return self._array(value, name, depth)
        if value is None:
            return Schema(Type.BYTES, optional=True) if self.null_as_bytes else None
        return Schema(self._scalar(value), optional=True)

    def _scalar(self, value: Any) -> Type:
        if isinstance(value, bool):
            return Type.BOOLEAN
        if isinstance(value, str):
            return Type.STRING
        if isinstance(value, float) or value not in _INT64:
            self._as_double(value)  # refuses values that would be rounded
            return Type.DOUBLE
        return Type.INT32 if value in _INT32 else Type.INT64

    def _object(self, value: dict[str, Any], name: str, depth: int) -> Schema:
        fields: dict[str, Schema] = {}
        for member, inner in value.items():
            member_name = self.field_name(member)
            schema = self._schema(
                inner, f"{name}.{member_name}" if name else member_name, depth + 1
            )
            if schema is not None:
                fields.setdefault(member_name, schema)
        members = tuple(Field(*field) for field in fields.items())
        return Schema(Type.STRUCT, optional=True, name=name or None, fields=members)

    def _array(self, values: list[Any], name: str, depth: int) -> Schema | None:
        if not values:
            if not self.empty_array_as_texts:
                return None
            return Schema(Type.ARRAY, optional=True, items=Schema(Type.STRING, optional=True))
        of_objects = any(isinstance(value, dict) for value in values)
        schemas = [
            schema
            for value in values
            if (schema := self._schema(value, name if of_objects else "", depth + 1)) is not None
        ]
        if not schemas:
            raise NotExpandableError("an array of nothing but nulls")
        if not self.lossless and len({schema.type for schema in _without_nulls(schemas)}) > 1:
            raise NotExpandableError("elements of several types")
        items = reduce(lambda left, right: self._merged(left, right, values), schemas)
        return Schema(Type.ARRAY, optional=True, items=items)

    def _merged(self, left: Schema, right: Schema, values: Any) -> Schema:
        if left == right or right.type is Type.BYTES:
            return left
        if left.type is Type.BYTES:  # only nulls so far, as JSON has no bytes
            return right
        if left.type in _NUMBERS and right.type in _NUMBERS:
            return Schema(max(left.type, right.type, key=_NUMBERS.index), optional=True)
        if left.type is Type.ARRAY and right.type is Type.ARRAY:
            return replace(left, items=self._merged(left.of_items(), right.of_items(), values))
        if left.type is Type.STRUCT and right.type is Type.STRUCT:
            fields = {field.name: field.schema for field in left.fields}
            for name, schema in right.fields:
                earlier = fields.get(name)
                fields[name] = schema if earlier is None else self._merged(earlier, schema, values)
            return replace(left, fields=tuple(Field(*field) for field in fields.items()))
        raise NotExpandableError(f"{left.type.value} beside {right.type.value}")

    def _laid_out(self, value: Any, schema: Schema) -> Any:
        """Arrange a value by the schema, which may be merged from others."""
        if value is None:
            return None
        if schema.type is Type.DOUBLE:
            return self._as_double(value)
        if schema.type is Type.ARRAY:
            return [self._laid_out(item, schema.of_items()) for item in value]
        if schema.type is Type.STRUCT:
            members: dict[str, Any] = {}
            for member, inner in value.items():
                members.setdefault(self.field_name(member), inner)
            return {
                field.name: self._laid_out(members.get(field.name), field.schema)
                for field in schema.fields
            }
        return value

    def _as_double(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            raise NotExpandableError("a number beyond a double's range") from None
        if self.lossless and number != value:
            raise NotExpandableError("a double would round a number")
        return number


def _no_json(constant: str) -> float:
    raise NotExpandableError(f"{constant} isn't JSON")


def _without_nulls(schemas: Iterable[Schema]) -> Iterable[Schema]:
    """Return the schemas without those of nulls."""
    return (schema for schema in schemas if schema.type is not Type.BYTES)
