"""A configuration -> the form of the topics that it names."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings
from sinks.debezium.described import connector_options, declared_columns


def settings(**more: Any) -> Settings:
    return Settings.model_validate(
        {
            "preset": "debezium",
            "source": {},
            "capture": {"topic.prefix": "p"},
            "kafka": {"bootstrap.servers": "k"},
            **more,
        }
    )


def test_the_modes_are_debeziums() -> None:
    connector = connector_options(settings())
    modes = connector.modes
    assert (modes.decimal, modes.time_precision) == ("precise", "adaptive")
    assert (modes.interval, modes.hstore) == ("numeric", "json")
    assert (modes.binary, modes.include_unknown) == ("bytes", False)
    assert (modes.placeholder, modes.lossless) == (b"__debezium_unavailable_value", False)
    assert not connector.decimal_numbers


def test_what_the_connector_has_is_said_by_its_own_names() -> None:
    capture = {
        "topic.prefix": "p",
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "unavailable.value.placeholder": "hex:ff00",
    }
    connector = connector_options(
        settings(capture=capture, format={"value.decimal.format": "numeric"})
    )
    assert (connector.modes.decimal, connector.modes.time_precision) == ("string", "connect")
    assert connector.modes.placeholder == b"\xff\0"
    assert connector.decimal_numbers


def test_millraces_own_defaults_are_not_debeziums() -> None:
    with pytest.raises(ConfigError, match="need its own options"):
        connector_options(settings(preset="millrace"))


def test_types_are_told_by_column() -> None:
    columns = declared_columns({"id": "bigint", "tags": "text[]"})
    assert [(column.name, column.type, column.array) for column in columns.values()] == [
        ("id", "int8", False),
        ("tags", "text", True),
    ]
