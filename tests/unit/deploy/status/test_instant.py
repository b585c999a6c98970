"""The end of the source's WAL, and an LSN → the instant to wait for, or why it is refused."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.records.position import Lsn
from deploy.commands import wait

SETTINGS: Any = None
"""Nobody asks for any."""


def _end(monkeypatch: pytest.MonkeyPatch, *, is_standby: bool) -> wait.SourceEnd:
    end = wait.SourceEnd(Lsn(0x50), Lsn(0x50), "1", is_standby)
    monkeypatch.setattr(wait, "_source_end", lambda _settings, _deadline: end)
    return end


def test_a_standby_that_is_late_is_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    end = _end(monkeypatch, is_standby=True)
    assert wait._instant(SETTINGS, "0/60", 0, now=False) == (Lsn(0x60), end)
    _end(monkeypatch, is_standby=False)
    with pytest.raises(ConfigError, match="is of another server"):
        wait._instant(SETTINGS, "0/60", 0, now=False)


@pytest.mark.parametrize("lsn", ["garbage", "", "-1/0", "1/2/3", "1/100000000"])
def test_what_is_no_lsn_is_refused(lsn: str) -> None:
    with pytest.raises(ConfigError, match="not an LSN"):
        wait._instant(SETTINGS, lsn, 0, now=False)
