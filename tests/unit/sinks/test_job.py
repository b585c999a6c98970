"""Settings that change the log's form → merges refuse it before they read anything."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.settings import Settings
from sinks.job import Jobs


def settings(**sections: Any) -> Settings:
    capture = {"topic.prefix": "shop", **sections.pop("capture", {})}
    return Settings(
        source={},
        capture=capture,
        kafka={"bootstrap.servers": "nowhere"},
        lakehouse={"path": "/nowhere"},
        **sections,
    )


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"preset": "debezium"}, "preset"),
        ({"format": {"value": "avro"}}, r"\[format\]"),
        ({"transforms": {"unwrap.type": "io.debezium.transforms.ExtractNewRecordState"}}, "transf"),
        ({"capture": {"decimal.handling.mode": "precise"}}, "handling.mode"),
        ({"capture": {"position.header": False}}, "position.header"),
    ],
)
def test_a_log_of_another_form_is_refused(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Jobs(settings(**sections), "lakehouse")


def test_a_log_of_our_own_form_is_taken() -> None:
    Jobs(settings(capture={"tombstones.on.delete": False}), "lakehouse")


def debeziums(**sections: Any) -> Settings:
    made = settings(preset="debezium", **sections)
    lakehouse = made.lakehouse
    assert lakehouse is not None
    written = lakehouse.model_copy(update={"topics_written_by": "debezium"})
    return made.model_copy(update={"lakehouse": written})


def test_topics_of_a_real_debezium_are_taken_as_their_connector_writes_them() -> None:
    capture = {"decimal.handling.mode": "string"}
    Jobs(debeziums(capture=capture, format={"value": "avro"}), "lakehouse")


def test_what_only_our_own_log_can_do_is_refused_for_them() -> None:
    with pytest.raises(ConfigError, match="indexes need Millrace's own log"):
        Jobs(debeziums(search={"url": "http://nowhere"}), "all")
    unwrap = {"unwrap.type": "io.debezium.transforms.ExtractNewRecordState"}
    with pytest.raises(ConfigError, match="transforms can change"):
        Jobs(debeziums(transforms=unwrap), "lakehouse")
    with pytest.raises(ConfigError, match="need its own options"):
        Jobs(debeziums().model_copy(update={"preset": "millrace"}), "lakehouse")
