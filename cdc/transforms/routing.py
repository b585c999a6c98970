"""Records of many topics → fewer topics: Kafka Connect's RegexRouter, Debezium's logical topics.

https://debezium.io/documentation/reference/stable/transformations/topic-routing.html
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cdc.records.connect import Field, PerSchema, Schema, SourceRecord, Type, is_envelope
from cdc.records.topics import schema_name
from cdc.settings.options import Options

Rename = Callable[[str], str | None]
"""A name → the new name, or None if the expression doesn't match."""

_TOKENS: Final = re.compile(r"\\(.)|\$\{([A-Za-z][A-Za-z0-9]*)\}|\$(\d+)|([^\\$]+)|(.)", re.DOTALL)


PHYSICAL_TABLE = "__dbz__physicalTableIdentifier"
SOURCE = "__dbz__sourceIdentifier"


def renaming(options: Options, pattern: re.Pattern[str], option: str, text: str) -> Rename:
    """Build the function. ``option`` is the replacement's name, for messages."""
    template = _template(options, pattern, option, text)

    def rename(name: str) -> str | None:
        return pattern.sub(template, name, count=1) if pattern.fullmatch(name) else None

    return rename


def _template(options: Options, pattern: re.Pattern[str], option: str, text: str) -> str:
    """Convert Java's replacement, ``$1`` and ``${name}``, to Python's."""
    template = ""
    for escaped, name, digits, literal, other in _TOKENS.findall(text):
        if escaped or literal:
            template += literal or escaped.replace("\\", r"\\")
        elif name:
            if name not in pattern.groupindex:
                raise options.wrong(option, f"refers to an unknown group: {name}")
            template += rf"\g<{name}>"
        elif digits:
            number, rest = _group(digits, pattern.groups)
            if number > pattern.groups:
                raise options.wrong(option, f"refers to an unknown group: {number}")
            template += rf"\g<{number}>{rest}"
        else:
            raise options.wrong(option, f"has a {other} that refers to no group")
    return template


def _group(digits: str, groups: int) -> tuple[int, str]:
    """Split off the digits that form an existing group. The others are text."""
    end = 1
    while end < len(digits) and int(digits[: end + 1]) <= groups:
        end += 1
    return int(digits[:end]), digits[end:]


class RegexRouter:
    """``org.apache.kafka.connect.transforms.RegexRouter``: changes only the topic's name."""

    def __init__(self, options: Options) -> None:
        self._rename = _renaming(options, "regex", "replacement")

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        """Route one record."""
        topic = self._rename(record.topic)
        return record if topic is None else record._replace(topic=topic)


class LogicalTopicRouter:
    """``ByLogicalTableRouter``, ``ToLogicalTopicRouter``: several tables share a topic.

    The schemas take the topic's name. The key gets a member that distinguishes the tables.
    """

    def __init__(self, options: Options, key_field_default: str) -> None:
        self._rename = _renaming(options, "topic.regex", "topic.replacement")
        self._adjust = schema_name(options.adjustment("schema.name.adjustment.mode"))
        self._key_field: str | None = options.text("key.field.name", key_field_default)
        if not options.flag("key.enforce.uniqueness", True):
            self._key_field = None
        self._identify: Rename | None = None
        if options.text("key.field.regex"):
            options.required("key.field.replacement")
            self._identify = _renaming(options, "key.field.regex", "key.field.replacement")
        for size in ("logical.destination.cache.size", "logical.table.cache.size"):
            options.text(size)  # our caches need no tuning
        self._keys = PerSchema(self._key_schema)
        self._envelopes = PerSchema(self._envelope_schema)

    def __call__(self, record: SourceRecord) -> SourceRecord | None:
        """Route one record."""
        topic = self._rename(record.topic)
        if not topic:
            return record
        routed = record._replace(topic=topic)
        if record.key_schema is not None and record.key_schema.type is Type.STRUCT:
            key = record.key
            if self._key_field is not None:
                key = {**key, self._key_field: self._identifier(record.topic)}
            routed = routed._replace(key=key, key_schema=self._keys(record.key_schema, topic))
        if record.value is None or not is_envelope(record.value_schema):
            return routed
        return routed._replace(value_schema=self._envelopes(record.value_schema, topic))

    def _identifier(self, topic: str) -> str:
        identifier = self._identify(topic) if self._identify is not None else None
        return topic if identifier is None else identifier

    def _key_schema(self, schema: Schema, topic: str) -> Schema:
        fields = schema.fields
        if self._key_field is not None:
            fields = (*fields, Field(self._key_field, Schema(Type.STRING)))
        return replace(schema, name=self._adjust(f"{topic}.Key"), fields=fields)

    def _envelope_schema(self, schema: Schema, topic: str) -> Schema:
        row = schema.of_field("before") or schema.of_field("after")
        name = self._adjust(f"{topic}.Envelope")
        if row is None:
            return replace(schema, name=name)
        new_row = replace(row, name=self._adjust(f"{topic}.Value"))
        fields = tuple(
            Field(field.name, new_row) if field.name in {"before", "after"} else field
            for field in schema.fields
        )
        return replace(schema, name=name, fields=fields)


def _renaming(options: Options, regex: str, replacement: str) -> Rename:
    pattern = options.pattern(regex)
    return renaming(options, pattern, replacement, options.required(replacement))
