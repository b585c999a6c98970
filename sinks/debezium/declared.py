"""Settings → the options of the connector; declared types, as people write them → columns."""

import re
from collections.abc import Mapping
from typing import Final

from cdc.errors import ConfigError
from cdc.records.schema import Column
from cdc.settings import Settings
from sinks.debezium.described import ConnectorOptions
from sinks.debezium.forms import is_known

_ALIASES: Final = {
    "smallint": "int2",
    "smallserial": "int2",
    "int": "int4",
    "integer": "int4",
    "serial": "int4",
    "bigint": "int8",
    "bigserial": "int8",
    "real": "float4",
    "double precision": "float8",
    "float": "float8",
    "decimal": "numeric",
    "boolean": "bool",
    "character varying": "varchar",
    "character": "bpchar",
    "char": "bpchar",
    '"char"': "char",
    "bit varying": "varbit",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_TYPE: Final = re.compile(
    r"([^()\[\]]+?)\s*(?:\(\s*([0-9]+)\s*(?:,\s*(-?[0-9]+)\s*)?\))?([^()\[\]]*)"
)
_ARRAY: Final = re.compile(r"\s*(?:\[[0-9]*\]|\barray)\s*\Z", re.IGNORECASE)
_HEADER: Final = 4
"""The modifiers of varchar and numeric are larger by so much than their lengths."""


_DECIMAL_FORMAT = "decimal.format"


def declared_column(name: str, text: str) -> Column:
    """Read a declaration; raises ConfigError for an unknown type."""
    element, array = text.strip(), False
    while _ARRAY.search(element):
        element, array = _ARRAY.sub("", element), True
    match = _TYPE.fullmatch(element)
    type_ = _name(match[1] + match[4]) if match else ""
    if match is None or not (is_known(type_) or type_ == "composite"):
        raise ConfigError(
            f"{text} isn't a type that Debezium's values can be read by",
            where=f"[lakehouse.types], column {name}",
            remedy="write enum for an enum, the base type of a domain, composite for types of "
            "which Debezium hands on the text, or text",
        )
    return Column(
        name=name,
        type=type_,
        type_oid=0,
        modifier=_modifier(type_, match[2], match[3]),
        array=array,
        declared=text.strip(),
    )


def _name(words: str) -> str:
    name = " ".join(words.split())
    lowered = name if name == '"char"' else name.lower()
    if lowered.startswith("interval"):
        return "interval"
    return _ALIASES.get(lowered, lowered)


def _modifier(type_: str, first: str | None, second: str | None) -> int:
    """Atttypmod, as PostgreSQL has it in its catalog."""
    if first is None:
        return 1 if type_ == "bit" else -1
    if type_ == "numeric":
        return (int(first) << 16 | int(second or 0) & 0x7FF) + _HEADER
    return int(first) + (_HEADER if type_ in {"varchar", "bpchar"} else 0)


def connector_options(settings: Settings) -> ConnectorOptions:
    """The options by which the connector writes values; raises ConfigError without the preset."""
    if settings.preset != "debezium":
        raise ConfigError(
            "topics of a real Debezium are described by its own options, with its defaults",
            where="the configuration",
            remedy='set preset = "debezium", and in [capture] what the connector has',
        )
    options = settings.format
    chosen = options.get(f"value.{_DECIMAL_FORMAT}", options.get(_DECIMAL_FORMAT, "BASE64"))
    return ConnectorOptions(
        settings.capture.value_modes, decimal_numbers=chosen.upper() == "NUMERIC"
    )


def declared_columns(types: Mapping[str, str]) -> dict[str, Column]:
    """Columns by name and declared type, as [lakehouse.types] has them for a table."""
    return {name: declared_column(name, text) for name, text in types.items()}
