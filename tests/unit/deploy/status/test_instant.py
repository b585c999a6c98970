"""The end of the source's WAL, and an LSN → the instant to wait for, or why it is refused."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import Phase, SnapshotRequest
from deploy.commands import wait
from deploy.status import shown
from deploy.status.shown import Outlook
from tests.fixtures.made_states import table_state

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
    with pytest.raises(ConfigError, match="belongs to another server"):
        wait._instant(SETTINGS, "0/60", 0, now=False)


@pytest.mark.parametrize("lsn", ["garbage", "", "-1/0", "1/2/3", "1/100000000"])
def test_what_is_no_lsn_is_refused(lsn: str) -> None:
    with pytest.raises(ConfigError, match="isn't an LSN"):
        wait._instant(SETTINGS, lsn, 0, now=False)


def test_a_table_whose_rows_the_daemon_reads_is_waited_for_and_another_is_not() -> None:
    name = TableName("public", "fresh")
    read = SnapshotRequest(kind="initial")

    def outlook(*requests: SnapshotRequest) -> Outlook:
        state = table_state(name, phase=Phase.SNAPSHOT, requests=requests)
        (lacking,) = shown._unready([state], [str(name)])
        assert lacking.why == "its snapshot isn't complete"
        return lacking.outlook

    assert outlook(read) is Outlook.LATER
    for update in ({"paused": True}, {"obstacle": "no memory"}):
        assert outlook(read.model_copy(update=update)) is Outlook.NEVER
    assert outlook() is Outlook.NEVER
