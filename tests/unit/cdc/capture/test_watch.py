"""The slot watch's own decisions; tests/integration tests it with a server."""

import threading
from unittest.mock import Mock

import pytest

from cdc.capture.health import Health
from cdc.capture.watch import SlotWatch
from cdc.errors import SlotLagError
from cdc.settings import Settings
from tests.unit.cdc.capture.test_start import SLOT


@pytest.mark.parametrize("policy", ["warn", "stop", "drop"])
def test_a_slot_that_may_be_somebody_elses_isnt_given_up_for_its_lag(policy: str) -> None:
    """Until the start has compared slot and log."""
    settings = Settings.model_validate({
        "source": {},
        "capture": {
            "topic.prefix": "p",
            "slot.max.lag.bytes": 100,
            "slot.max.lag.policy": policy,
        },
        "kafka": {"bootstrap.servers": "nowhere:1"},
    })  # fmt: skip
    health = Health(Mock(), heartbeat_s=1, timeout_s=1)
    watch = SlotWatch(settings, health, threading.Event())
    beyond = SLOT._replace(retained_bytes=101, lag_bytes=101)

    def is_over() -> bool:
        try:
            watch._limit(beyond)
        except SlotLagError:
            return True
        return False

    assert is_over() is (policy == "stop")
    health.opened(Mock(), {})
    assert is_over() is (policy != "warn")
