"""Records of a table's topic → events. A record without a change (a tombstone) → nothing.

An event shows which columns have no value. They are missing, or have Debezium's placeholder if the
options of the capture or the format ask for one.
"""

import hashlib
import uuid
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from confluent_kafka import Message
from pydantic import ValidationError

from cdc.errors import LogFormatError
from cdc.reader.decoding import Decoder, decode_or_refuse
from cdc.reader.events import ChangeEvent, ChangeSource, RowImage
from cdc.reader.references import References
from cdc.records.bounds import ENDED_KEY, EndedRows
from cdc.records.dead_letters import CLAIM_HEADER, Claim
from cdc.records.position import HEADER, RecordPosition, parse_header
from cdc.records.record import to_json
from cdc.records.topics import TRUNCATE_KEY, field_name
from cdc.settings import Settings

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FORM_REMEDY: Final = (
    "write the envelope: flattened events (ExtractNewRecordState) don't show which rows were"
    " deleted and which values were unchanged"
)


class _EventColumns(NamedTuple):
    """The names of an event's columns in a schema, and those that were filled."""

    names: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()


class Envelopes:
    """Reads the records of all tables. Each partition's order is kept, as tombstones need it."""

    def __init__(self, settings: Settings, references: References) -> None:
        self._decoder = Decoder(settings.format)
        self._references = references
        self._has_schemas = settings.captures_itself
        self._adjusted = field_name(settings.capture.field_name_adjustment_mode)
        self._placeholders = Placeholders(settings.capture.unavailable_value_placeholder)
        self._has_placeholders = bool(
            settings.capture.toast_unavailable == "placeholder"
            or "avro" in {text.lower() for text in settings.format.values()}
            or not settings.captures_itself
        )
        self._deleted: dict[tuple[str, int], bytes | None] = {}
        """Partition → the key of its last record, if that was a delete."""

    def event(self, message: Message, table: str) -> ChangeEvent | None:
        """Return the event of a table's record. None: it is a tombstone after its delete.

        Raise LogFormatError if it isn't an event in Debezium's form.
        """
        topic, partition, offset = place_of(message)
        where = f"topic {topic}, partition {partition}, offset {offset}"
        value, headers = message.value(), headers_of(message)
        raw_key, last = message.key(), self._deleted.pop((topic, partition), None)
        key = self._key(raw_key, where)
        position = _position(headers.get(HEADER), where)
        common: dict[str, Any] = {
            "table": table,
            "key": key,
            "position": position.position if position else None,
            "schema_version": position.schema_version if position else None,
            "topic": topic,
            "partition": partition,
            "offset": offset,
        }
        ts_ms = message.timestamp()[1]
        if value is None:
            if raw_key == last:
                return None
            return _deleted_long_ago(common, table, ts_ms)  # compaction has removed the event
        is_lost = False
        if (claim := headers.get(CLAIM_HEADER)) is not None:
            whole = self._references.value(_claim(claim, where), ts_ms)
            is_lost, value = whole is None, value if whole is None else whole
        envelope = decode_or_refuse(self._decoder, value, "value", where)
        if not isinstance(envelope, dict) or "op" not in envelope or "source" not in envelope:
            what = "a record doesn't have Debezium's envelope (before, after, source, op)"
            raise LogFormatError(what, where=where, remedy=_FORM_REMEDY)
        if envelope["op"] == "d":
            self._deleted[topic, partition] = raw_key
        columns = _EventColumns()
        if self._has_schemas and position is not None and envelope.get("after") is not None:
            columns = self._columns(table, position, ts_ms, where)
        try:
            return self._event(envelope, common, columns, is_lost=is_lost)
        except (ValidationError, TypeError, KeyError, AttributeError, OverflowError) as error:
            what = f"a record isn't a Debezium event: {type(error).__name__}"
            raise LogFormatError(what, where=where, remedy=_FORM_REMEDY) from None

    def operation(self, message: Message) -> str:
        """Return the operation in a record's envelope, or an empty text."""
        if (value := message.value()) is None:
            return ""
        topic, partition, offset = place_of(message)
        where = f"topic {topic}, partition {partition}, offset {offset}"
        envelope = decode_or_refuse(self._decoder, value, "value", where)
        return str(envelope.get("op")) if isinstance(envelope, dict) else ""

    def _event(
        self,
        envelope: Mapping[str, Any],
        common: Mapping[str, Any],
        columns: _EventColumns,
        *,
        is_lost: bool,
    ) -> ChangeEvent:
        before, _ = self._image(envelope.get("before"))
        after, replaced = self._image(envelope.get("after"))
        missing = tuple(name for name in columns.names if after is not None and name not in after)
        ended = envelope.get("ended")
        return ChangeEvent(
            operation=envelope["op"],
            before=before,
            after=after,
            absent=() if is_lost else (missing or replaced),
            lost=missing if is_lost else (),
            filled=columns.filled,
            ended=None if ended is None else _ended(ended),
            source=ChangeSource.model_validate(envelope["source"]),
            commit_time=_commit_time(envelope),
            **common,
        )

    def _key(self, key: bytes | None, where: str) -> RowImage | None:
        if key is None or key == TRUNCATE_KEY:
            return None
        decoded = decode_or_refuse(self._decoder, key, "key", where)
        if not isinstance(decoded, dict):
            raise LogFormatError(
                "a record's key isn't a struct",
                where=where,
                remedy="Debezium's keys are structs: remove the transform that changes them"
                " (ExtractField)",
            )
        is_row = ENDED_KEY not in decoded and decoded != {"__millrace_truncate": True}
        return decoded if is_row else None

    def _columns(
        self, table: str, position: RecordPosition, ts_ms: int, where: str
    ) -> _EventColumns:
        """Return the names as events have them."""
        version = position.schema_version
        schema = self._references.schema(table, version, ts_ms)
        if schema is None:
            raise LogFormatError(
                f"the log has no schema {version} of {table}, so absent columns are unknown",
                where=where,
                remedy="upgrade this Millrace if a newer one writes to the log; check whether the"
                " topic of schemas was created again",
            )
        names = tuple(self._adjusted(column.name) for column in schema.event_columns)
        filled = (schema.columns[i].name for i in position.filled if i < len(schema.columns))
        return _EventColumns(names, tuple(self._adjusted(name) for name in filled))

    def _image(self, image: RowImage | None) -> tuple[RowImage | None, tuple[str, ...]]:
        """Return a row without its placeholders, and the names of their columns."""
        if image is None or not self._has_placeholders:
            return image, ()
        absent = tuple(name for name, value in image.items() if self._placeholders.has(value))
        if not absent:
            return image, ()
        return {name: image[name] for name in image if name not in absent}, absent


class Placeholders:
    """The placeholders of unchanged values: unavailable.value.placeholder in each type's form."""

    def __init__(self, placeholder: bytes) -> None:
        word = placeholder.decode(errors="replace")
        name = uuid.UUID(bytes=hashlib.md5(placeholder).digest(), version=3)  # noqa: S324
        encoded = {form(placeholder).decode() for form in (b64encode, urlsafe_b64encode)}
        self._bytes = placeholder
        self._texts = {word, placeholder.hex(), to_json({word: word}).decode(), *encoded}
        self._items = {word, str(name), *encoded}
        self._map = {word: word}
        self._numbers = list(placeholder)

    def has(self, value: Any) -> bool:
        """Whether a value is the placeholder."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, list):
            item = value[0] if len(value) == 1 else None
            has_text = isinstance(item, str) and item in self._items
            return has_text or value in ([self._bytes], self._numbers)
        return isinstance(value, bytes | dict) and value in (self._bytes, self._map)


def place_of(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a record."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise TypeError("a record without its place")
    return topic, partition, offset


def headers_of(message: Message) -> dict[str, bytes]:
    """Return the headers of a record, by name."""
    return {
        name: value.encode() if isinstance(value, str) else value
        for name, value in dict(message.headers() or []).items()
        if value is not None
    }


def _position(header: bytes | None, where: str) -> RecordPosition | None:
    if header is None:
        return None
    try:
        return parse_header(header)
    except ValueError:
        raise _bad_header(HEADER, where) from None


def _claim(header: bytes, where: str) -> Claim:
    try:
        return Claim.model_validate_json(header)
    except ValidationError:
        raise _bad_header(CLAIM_HEADER, where) from None


def _bad_header(name: str, where: str) -> LogFormatError:
    return LogFormatError(
        f"a record's header {name} can't be read",
        where=where,
        remedy="upgrade this Millrace if a newer one writes to the log",
    )


def _commit_time(envelope: Mapping[str, Any]) -> datetime:
    source = envelope["source"]
    ts_us = source.get("ts_us")
    return _time(source["ts_ms"] * 1_000 if ts_us is None else ts_us)


def _time(ts_us: int) -> datetime:
    return _START + timedelta(microseconds=ts_us)


def _ended(ended: Any) -> EndedRows:
    text = isinstance(ended, str)
    return EndedRows.model_validate_json(ended) if text else EndedRows.model_validate(ended)


def _deleted_long_ago(common: Mapping[str, Any], table: str, ts_ms: int) -> ChangeEvent:
    """Return a delete from its remaining tombstone, with the key and its record's time."""
    namespace, _, name = table.partition(".")
    return ChangeEvent(
        operation="d",
        before=None,
        after=None,
        source=ChangeSource(namespace=namespace, table=name),
        commit_time=_time(ts_ms * 1_000),
        **common,
    )
