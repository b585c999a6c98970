"""``preset = "debezium"`` → the rules that the settings make of it."""

from typing import Final

from cdc.capture.wiring import event_rules
from cdc.events.rules import EventRules
from cdc.settings import Settings

DEBEZIUM: Final[EventRules] = event_rules(
    Settings(
        preset="debezium",
        source={},
        capture={"topic.prefix": "pre"},
        kafka={"bootstrap.servers": "nowhere"},
    )
)
