"""``preset = "debezium"`` → the defaults that it switches, section by section.

Every one of them is a key, so a user can take the preset and still decide one thing otherwise.
[format] isn't here: the converters know what Kafka Connect's defaults are.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from collections.abc import Mapping
from typing import Any, Final

DEBEZIUM: Final[Mapping[str, Mapping[str, object]]] = {
    "capture": {
        "slot.name": "debezium",
        "slot.failover": False,
        "publication.name": "dbz_publication",
        "heartbeat.source.interval.ms": 0,
        "signal.enabled.channels": "source",
        "incremental.snapshot.chunk.size": 1_024,
        "incremental.snapshot.watermarking.strategy": "insert_insert",
        "snapshot.max.threads": 1,
        "lossless": False,
        "decimal.handling.mode": "precise",
        "time.precision.mode": "adaptive",
        "interval.handling.mode": "numeric",
        "hstore.handling.mode": "json",
        "include.unknown.datatypes": False,
        "toast.unavailable": "placeholder",
        "tombstones.on.delete": True,
        "skipped.operations": "t",
        "position.header": False,
        "extended.headers.enabled": True,
        "key.change.headers": True,
    },
    "log": {"topic.partitions": 1, "topic.cleanup.policy": "delete"},
}


def switched(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections as given, with Debezium's defaults for what they leave open."""
    result = dict(sections)
    for section, defaults in DEBEZIUM.items():
        given = result.get(section, {})
        if isinstance(given, Mapping):
            result[section] = {
                key: value
                for key, value in defaults.items()
                if key not in given and key.replace(".", "_") not in given
            } | dict(given)
    return result
