"""A Connect value and its schema → Avro in Confluent's wire format.

Layout: byte 0, the schema's id in the registry (4 bytes, big-endian), the value in Avro's binary
encoding. The subject is ``<topic>-key`` or ``<topic>-value`` unless another strategy is chosen.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import fastavro
from fastavro.types import Schema as ParsedSchema

from cdc.convert.avro_schema import AvroOptions, ToDatum, avro
from cdc.errors import ConversionError
from cdc.records.connect import PerSchema, Schema

Subject = Callable[[str, str, str], str]
"""topic, name of the schema, "key" or "value" → subject"""


class Ids(Protocol):
    """A source of schema ids: cdc/convert/registry.py."""

    def id_of(self, subject: str, schema: str) -> int:
        """Return a schema's id."""


SUBJECT_DEFAULT: Final = "TopicNameStrategy"
SUBJECTS: Final[Mapping[str, Subject]] = {
    "TopicNameStrategy": lambda topic, _name, side: f"{topic}-{side}",
    "RecordNameStrategy": lambda _topic, name, _side: name,
    "TopicRecordNameStrategy": lambda topic, name, _side: f"{topic}-{name}",
}


@dataclass(slots=True)
class _AvroPlan:
    """How to write values of one Connect schema. ``text`` is the Avro schema for the registry."""

    text: str
    name: str
    parsed: ParsedSchema
    to_datum: ToDatum
    starts: dict[str, bytes] = field(default_factory=dict)
    """Topic → magic byte and id."""


class AvroConverter:
    """Converts keys or values to Avro. A missing value (a tombstone, no key) stays None."""

    def __init__(self, side: str, ids: Ids, subject: Subject, options: AvroOptions) -> None:
        self._side = side
        self._ids = ids
        self._subject = subject
        self._options = options
        self._plans = PerSchema(self._plan)

    def __call__(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one key or value. Registers its schema if it is new."""
        if value is None or schema is None:
            return None
        plan = self._plans(schema)
        start = plan.starts.get(topic)
        if start is None:
            subject = self._subject(topic, plan.name, self._side)
            number = self._ids.id_of(subject, plan.text)
            start = plan.starts[topic] = b"\0" + number.to_bytes(4)
        try:
            return start + _written(plan, value)
        except ConversionError:
            raise
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ConversionError(
                f"a {self._side} doesn't fit its Avro schema: {type(error).__name__}",
                where=f"topic {topic}, schema {plan.name}",
            ) from error

    def _plan(self, schema: Schema) -> _AvroPlan:
        made = avro(schema, self._options)
        parsed = fastavro.parse_schema(made.schema)
        return _AvroPlan(json.dumps(made.schema), made.branch, parsed, made.to_datum)


def _written(plan: _AvroPlan, value: Any) -> bytes:
    datum = plan.to_datum(value)
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, plan.parsed, datum)
    except UnicodeEncodeError:  # half an emoji, cut by column.truncate.to.N.chars
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plan.parsed, _encodable(datum))
    return out.getvalue()


def _encodable(datum: Any) -> Any:
    """Replace lone surrogates, which UTF-8 lacks, by ``?``, as Java does."""
    if isinstance(datum, str):
        return datum.encode("utf-8", "replace").decode()
    if isinstance(datum, dict):
        return {_encodable(name): _encodable(member) for name, member in datum.items()}
    if isinstance(datum, list):
        return [_encodable(item) for item in datum]
    if isinstance(datum, tuple):
        branch, value = datum
        return branch, _encodable(value)
    return datum
