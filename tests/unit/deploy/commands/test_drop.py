"""`millrace drop` where a server or a file system doesn't do as it should."""

from unittest.mock import Mock

import pytest

from cdc.errors import (
    LogAccessError,
    LogUnreachableError,
    MillraceError,
    SourceUnreachableError,
)
from cdc.settings import Settings
from deploy.commands import drop
from tests.unit.cdc.capture.test_start import SLOT

SETTINGS = Settings.model_validate({
    "source": {},
    "capture": {"topic.prefix": "p"},
    "kafka": {"bootstrap.servers": "nowhere:1"},
})  # fmt: skip


@pytest.mark.parametrize("kind", [LogUnreachableError, LogAccessError])
def test_the_line_that_drops_the_slot_is_named_where_the_log_doesnt_answer(
    monkeypatch: pytest.MonkeyPatch, kind: type[MillraceError]
) -> None:
    failure = kind("no answer", remedy="mend that")
    monkeypatch.setattr("deploy.commands.drop.last_progress", Mock(side_effect=failure))
    with pytest.raises(kind) as caught:
        drop._slot(SETTINGS, SLOT)
    assert caught.value.remedy.startswith("mend that; or, if no other program uses the slot")
    assert caught.value.remedy.endswith("SELECT pg_drop_replication_slot('s');")


def test_nothing_goes_while_the_source_doesnt_tell_whether_a_daemon_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable = SourceUnreachableError("no route to the source")
    removed = Mock()
    topics = Mock(return_value=[drop.Item("topic p.public.item", removed)])
    monkeypatch.setattr(drop, "load_to_connect", Mock(return_value=SETTINGS))
    monkeypatch.setattr(drop, "connect", Mock(side_effect=unreachable))
    monkeypatch.setattr(drop, "_topics", topics)
    with pytest.raises(SourceUnreachableError, match="no route"):
        drop.drop(yes=True, topics=True)
    said = capsys.readouterr().out
    assert "to remove: topic p.public.item\n" in said
    assert said.endswith("nothing was removed: only the source tells whether a daemon still runs\n")
    removed.assert_not_called()
