"""``preset = "debezium"`` → the rules that the settings make of it."""

from typing import Final

from cdc.rules import EventRules
from cdc.settings import Settings
from cdc.wiring import event_rules

DEBEZIUM: Final[EventRules] = event_rules(
    Settings(
        preset="debezium",
        source={},
        capture={"topic.prefix": "pre"},
        kafka={"bootstrap.servers": "nowhere"},
    )
)
