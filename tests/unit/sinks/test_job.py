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
