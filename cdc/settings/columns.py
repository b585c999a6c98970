"""Debezium's column keys of [capture], those with a number or a salt in them too → ColumnModes."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from cdc.settings.kinds import PatternList, Section, regex
from cdc.settings.modes import ColumnModes, ColumnRule, KeyRule, Patterns

_TRUNCATE: Final = re.compile(r"column\.truncate\.to\.(\d+)\.chars")
_MASK: Final = re.compile(r"column\.mask\.with\.(\d+)\.chars")
_HASH: Final = re.compile(r"column\.mask\.hash\.(?:(v2)\.)?([^.]+)\.with\.salt\.(.+)", re.DOTALL)
_MASK_CHARS_MAX: Final = 10_485_760
"""PostgreSQL's longest varchar; a mask is in memory, and in every event."""
_DIGESTS: Final = {"MD5", "SHA-1", "SHA-224", "SHA-256", "SHA-384", "SHA-512"}


class KeyColumns(NamedTuple):
    """One table's part of ``message.key.columns``."""

    table: str
    columns: tuple[str, ...]


def _key_columns(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(_table_key(part.strip()) for part in value.split(";") if part.strip())


def _table_key(text: str) -> KeyColumns:
    table, _, columns = text.rpartition(":")
    named = tuple(name.strip() for name in columns.split(",") if name.strip())
    if not table or not named:
        raise ValueError("each part must be <schema>.<table>:<column>,<column>")
    return KeyColumns(regex(table), named)


class ColumnSettings(Section):
    """Which columns events have, what masks them, what makes the key."""

    column_include_list: PatternList = Field((), alias="column.include.list")
    column_exclude_list: PatternList = Field((), alias="column.exclude.list")
    column_rules: dict[str, PatternList] = Field({}, alias="column.mask, column.truncate")
    message_key_columns: Annotated[tuple[KeyColumns, ...], BeforeValidator(_key_columns)] = Field(
        (), alias="message.key.columns"
    )
    column_propagate_source_type: PatternList = Field((), alias="column.propagate.source.type")
    datatype_propagate_source_type: PatternList = Field((), alias="datatype.propagate.source.type")

    @model_validator(mode="before")
    @classmethod
    def _gather_rules(cls, data: Any) -> Any:
        """Keys that hold a number or a salt can't be fields: they become one."""
        if not isinstance(data, Mapping):
            return data
        rules = {key: value for key, value in data.items() if _is_rule(str(key))}
        if not rules:
            return data
        for name in rules:
            _rule(name, Patterns(()))
        kept = {key: value for key, value in data.items() if key not in rules}
        return kept | {"column_rules": rules}

    @property
    def column_modes(self) -> ColumnModes:
        """The same, for whoever makes events."""
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
        """All rules, in the order in which Debezium asks them."""
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
        raise ValueError(f"no such hash: {digest} (one of {', '.join(sorted(_DIGESTS))})")
    return ColumnRule("hash", columns, hash=digest, salt=salt, version=2 if version == "v2" else 1)
