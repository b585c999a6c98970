"""Settings → how topics were written, and what was told of their columns.

A configuration that says what a real Debezium writes is that connector's own, under
``preset = "debezium"``: ``topic.prefix``, lists of tables, modes, ``unavailable.value.placeholder``
in [capture], and the converters' options in [format].
"""

from collections.abc import Mapping

from cdc.errors import ConfigError
from cdc.records.schema import Column
from cdc.settings import Settings
from sinks.debezium.declared import declared
from sinks.debezium.described import Reading

_DECIMAL_FORMAT = "decimal.format"


def reading_of(settings: Settings) -> Reading:
    """How values are written where records don't tell; raises ConfigError without the preset."""
    if settings.preset != "debezium":
        raise ConfigError(
            "topics of a real Debezium are described by its own options, with its defaults",
            where="the configuration",
            remedy='set preset = "debezium", and in [capture] what the connector has',
        )
    options = settings.format
    chosen = options.get(f"value.{_DECIMAL_FORMAT}", options.get(_DECIMAL_FORMAT, "BASE64"))
    return Reading(settings.capture.value_modes, decimal_numbers=chosen.upper() == "NUMERIC")


def told_of(types: Mapping[str, str]) -> dict[str, Column]:
    """Columns by name and declared type, as [lakehouse.types] has them for a table."""
    return {name: declared(name, text) for name, text in types.items()}
