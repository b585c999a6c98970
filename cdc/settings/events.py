"""Debezium's keys of [capture] about events, columns and values → the same, validated."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from cdc.records.topics import Adjustment
from cdc.settings.kinds import PatternList, Section, names, regex, split
from cdc.settings.modes import PLACEHOLDER, ColumnModes, ColumnRule, KeyRule, Patterns, ValueModes

_TRUNCATE: Final = re.compile(r"column\.truncate\.to\.(\d+)\.chars")
_MASK: Final = re.compile(r"column\.mask\.with\.(\d+)\.chars")
_HASH: Final = re.compile(r"column\.mask\.hash\.(?:(v2)\.)?([^.]+)\.with\.salt\.(.+)", re.DOTALL)
_MASK_CHARS_MAX: Final = 10_485_760
"""PostgreSQL's longest varchar. A mask is in memory, and in every event."""
_DIGESTS: Final = {"MD5", "SHA-1", "SHA-224", "SHA-256", "SHA-384", "SHA-512"}


def _operations(value: object) -> object:
    """Parse ``none``, or Debezium's letters."""
    return () if value == "none" else names(value)


class EventSettings(Section):
    """Which events exist in addition to rows' changes, and their options."""

    tombstones_on_delete: bool | None = Field(None, alias="tombstones.on.delete")
    skipped_operations: Annotated[
        tuple[Literal["c", "u", "d", "t"], ...], BeforeValidator(_operations)
    ] = Field((), alias="skipped.operations")
    skip_messages_without_change: bool = Field(False, alias="skip.messages.without.change")
    toast_unavailable: Literal["reselect", "absent", "placeholder"] = Field(
        "reselect", alias="toast.unavailable"
    )
    position_header: bool = Field(True, alias="position.header")
    extended_headers_enabled: bool = Field(False, alias="extended.headers.enabled")
    key_change_headers: bool = Field(False, alias="key.change.headers")
    schema_name_adjustment_mode: Adjustment = Field("none", alias="schema.name.adjustment.mode")
    field_name_adjustment_mode: Adjustment = Field("none", alias="field.name.adjustment.mode")
    provide_transaction_metadata: bool = Field(False, alias="provide.transaction.metadata")
    topic_transaction: str = Field(
        "transaction", alias="topic.transaction", pattern=r"^[A-Za-z0-9._-]{1,100}$"
    )
    heartbeat_interval_ms: int = Field(0, alias="heartbeat.interval.ms", ge=0)
    topic_heartbeat_prefix: str = Field(
        "__debezium-heartbeat", alias="topic.heartbeat.prefix", pattern=r"^[A-Za-z0-9._-]{1,100}$"
    )
    heartbeat_action_query: str | None = Field(None, alias="heartbeat.action.query")
    message_prefix_include_list: PatternList = Field((), alias="message.prefix.include.list")
    message_prefix_exclude_list: PatternList = Field((), alias="message.prefix.exclude.list")

    @model_validator(mode="before")
    @classmethod
    def _imply_placeholder(cls, data: Any) -> Any:
        """Let a placeholder imply ``toast.unavailable = "placeholder"``."""
        given = {"unavailable.value.placeholder", "unavailable_value_placeholder"}
        answered = {"toast.unavailable", "toast_unavailable"}
        if isinstance(data, dict) and given & set(data) and not answered & set(data):
            return {**data, "toast.unavailable": "placeholder"}
        return data

    @model_validator(mode="after")
    def _has_heartbeats(self) -> Self:
        if self.heartbeat_action_query is not None and not self.heartbeat_interval_ms:
            raise ValueError("heartbeat.action.query needs heartbeat.interval.ms")
        return self


class KeyColumns(NamedTuple):
    """One table's item of ``message.key.columns``."""

    table: str
    columns: tuple[str, ...]


def _key_columns(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(_table_key(item.strip()) for item in value.split(";") if item.strip())


def _table_key(text: str) -> KeyColumns:
    table, _, columns = text.rpartition(":")
    named = tuple(name.strip() for name in columns.split(",") if name.strip())
    if not table or not named:
        raise ValueError("each part must be <schema>.<table>:<column>,<column>")
    return KeyColumns(regex(table), named)


class ColumnSettings(Section):
    """Columns of events: their selection, masks and keys."""

    column_include_list: PatternList = Field((), alias="column.include.list")
    column_exclude_list: PatternList = Field((), alias="column.exclude.list")
    column_rules: dict[str, PatternList] = Field(
        {}, alias="column.mask, column.truncate", repr=False
    )
    message_key_columns: Annotated[tuple[KeyColumns, ...], BeforeValidator(_key_columns)] = Field(
        (), alias="message.key.columns"
    )
    column_propagate_source_type: PatternList = Field((), alias="column.propagate.source.type")
    datatype_propagate_source_type: PatternList = Field((), alias="datatype.propagate.source.type")

    @model_validator(mode="before")
    @classmethod
    def _gather_rules(cls, data: Any) -> Any:
        """Gather keys ``column.mask.…``, ``column.truncate.…``. They contain a number or a salt."""
        rest, rules = split(data, _is_rule)
        for name in rules:
            _rule(name, Patterns(()))
        return rest | {"column_rules": rules} if rules else data

    @property
    def column_modes(self) -> ColumnModes:
        """Return the modes of columns."""
        return ColumnModes(
            include=Patterns(self.column_include_list),
            exclude=Patterns(self.column_exclude_list),
            rules=tuple(self._rules()),
            keys=tuple(
                KeyRule(Patterns((table,)), columns) for table, columns in self.message_key_columns
            ),
            source_type_of=Patterns(self.column_propagate_source_type),
            source_type_of_types=Patterns(self.datatype_propagate_source_type),
        )

    def _rules(self) -> Iterator[ColumnRule]:
        """Yield all rules, in the order in which Debezium applies them."""
        rules = [_rule(name, Patterns(given)) for name, given in self.column_rules.items()]
        for kind in ("truncate", "mask", "hash"):
            yield from sorted((r for r in rules if r.kind == kind), key=lambda rule: rule.version)


def _is_rule(key: str) -> bool:
    return any(form.fullmatch(key) for form in (_TRUNCATE, _MASK, _HASH))


def _rule(key: str, columns: Patterns) -> ColumnRule:
    if match := _TRUNCATE.fullmatch(key):
        return ColumnRule("truncate", columns, length=int(match[1]))
    if match := _MASK.fullmatch(key):
        if (length := int(match[1])) > _MASK_CHARS_MAX:
            raise ValueError(f"{key}: a mask has at most {_MASK_CHARS_MAX} characters")
        return ColumnRule("mask", columns, length=length)
    match = _HASH.fullmatch(key)
    assert match is not None, key  # noqa: S101 (_is_rule said so)
    version, digest, salt = match.groups()
    if digest not in _DIGESTS:
        raise ValueError(f"unknown hash {digest} (use one of {', '.join(sorted(_DIGESTS))})")
    return ColumnRule("hash", columns, hash=digest, salt=salt, version=2 if version == "v2" else 1)


def _placeholder(value: object) -> object:
    """Parse Debezium's forms: the text itself, or ``hex:`` and its bytes."""
    if not isinstance(value, str):
        return value
    if not value.startswith("hex:"):
        return value.encode()
    try:
        return bytes.fromhex(value.removeprefix("hex:"))
    except ValueError:
        raise ValueError("pairs of hexadecimal digits must follow hex:") from None


class ValueSettings(Section):
    """How values are written."""

    lossless: bool = True
    decimal_handling_mode: Literal["text", "precise", "double", "string"] = Field(
        "text", alias="decimal.handling.mode"
    )
    time_precision_mode: Literal[
        "native",
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ] = Field("native", alias="time.precision.mode")
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        "bytes", alias="binary.handling.mode"
    )
    interval_handling_mode: Literal["numeric", "string", "text"] = Field(
        "text", alias="interval.handling.mode"
    )
    hstore_handling_mode: Literal["json", "map", "text"] = Field(
        "text", alias="hstore.handling.mode"
    )
    include_unknown_datatypes: bool = Field(True, alias="include.unknown.datatypes")
    unavailable_value_placeholder: Annotated[bytes, BeforeValidator(_placeholder)] = Field(
        PLACEHOLDER, alias="unavailable.value.placeholder"
    )

    @property
    def value_modes(self) -> ValueModes:
        """Return the modes of values, for the codec."""
        return ValueModes(
            decimal=self.decimal_handling_mode,
            time_precision=self.time_precision_mode,
            binary=self.binary_handling_mode,
            interval=self.interval_handling_mode,
            hstore=self.hstore_handling_mode,
            include_unknown=self.include_unknown_datatypes,
            placeholder=self.unavailable_value_placeholder,
            lossless=self.lossless,
        )
