"""`millrace drop` where the log can't be asked whose the slot is."""

from unittest.mock import Mock

import pytest

from cdc.errors import LogAccessError, LogUnreachableError, MillraceError
from cdc.settings import Settings
from deploy.commands.drop import _slot
from tests.unit.cdc.capture.test_start import SLOT


@pytest.mark.parametrize("kind", [LogUnreachableError, LogAccessError])
def test_the_line_that_drops_the_slot_is_named_where_the_log_doesnt_answer(
    monkeypatch: pytest.MonkeyPatch, kind: type[MillraceError]
) -> None:
    settings = Settings.model_validate({
        "source": {},
        "capture": {"topic.prefix": "p"},
        "kafka": {"bootstrap.servers": "nowhere:1"},
    })  # fmt: skip
    failure = kind("no answer", remedy="mend that")
    monkeypatch.setattr("deploy.commands.drop.last_progress", Mock(side_effect=failure))
    with pytest.raises(kind) as caught:
        _slot(settings, SLOT)
    assert caught.value.remedy.startswith("mend that; or, if no other program uses the slot")
    assert caught.value.remedy.endswith("SELECT pg_drop_replication_slot('s');")
