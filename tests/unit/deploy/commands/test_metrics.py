"""Metrics that need no server."""

import time

import pytest

from cdc.records.position import Lsn, Position
from deploy.commands.metrics import log_lag_s
from tests.fixtures.made_states import streaming


@pytest.mark.parametrize(("age_s", "is_known"), [(60, True), (0, True), (-1, True), (-3, False)])
def test_waiting_wal_is_never_a_lag_of_zero_whatever_the_sources_clock_says(
    age_s: float, is_known: bool
) -> None:
    cut_ts_us = int((time.time() - age_s) * 1e6)
    progress = streaming(Position(1, Lsn(9), 1)).model_copy(update={"cut_ts_us": cut_ts_us})
    lag_s = log_lag_s(progress, lag_bytes=1)
    assert (lag_s is not None) == is_known
    if lag_s is not None:
        assert 0 < lag_s < max(age_s, 0) + 5
    assert log_lag_s(progress, lag_bytes=0) == 0
