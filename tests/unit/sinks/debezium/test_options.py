"""A configuration -> how the topics it speaks of were written."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings
from sinks.debezium.described import reading_of, told_of


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
    reading = reading_of(settings())
    modes = reading.modes
    assert (modes.decimal, modes.time_precision) == ("precise", "adaptive")
    assert (modes.interval, modes.hstore) == ("numeric", "json")
    assert (modes.binary, modes.include_unknown) == ("bytes", False)
    assert (modes.placeholder, modes.lossless) == (b"__debezium_unavailable_value", False)
    assert not reading.decimal_numbers


def test_what_the_connector_has_is_said_by_its_own_names() -> None:
    capture = {
        "topic.prefix": "p",
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "unavailable.value.placeholder": "hex:ff00",
    }
    reading = reading_of(settings(capture=capture, format={"value.decimal.format": "numeric"}))
    assert (reading.modes.decimal, reading.modes.time_precision) == ("string", "connect")
    assert reading.modes.placeholder == b"\xff\0"
    assert reading.decimal_numbers


def test_millraces_own_defaults_are_not_debeziums() -> None:
    with pytest.raises(ConfigError, match="described by its own options"):
        reading_of(settings(preset="millrace"))


def test_types_are_told_by_column() -> None:
    told = told_of({"id": "bigint", "tags": "text[]"})
    assert [(one.name, one.type, one.array) for one in told.values()] == [
        ("id", "int8", False),
        ("tags", "text", True),
    ]
