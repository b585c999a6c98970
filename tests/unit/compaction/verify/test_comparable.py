"""An instant and the settings → whether the log has all changes, and whether values are masked."""

from typing import Any

import pytest

from cdc.records.position import Lsn, Position
from cdc.settings import Settings
from compaction.verify.comparable import lacks, masks_some
from tests.fixtures.made_states import streaming

REACHED = streaming(Position(1, Lsn(500), 0))


def test_the_log_has_what_was_committed_before_the_instant_on_the_same_timeline() -> None:
    assert lacks(REACHED, Lsn(500), 1) == ""
    assert "the log has reached 0/1F4" in lacks(REACHED, Lsn(501), 1)
    assert "hasn't followed the failover" in lacks(REACHED, Lsn(400), 2)


def settings(**more: Any) -> Settings:
    capture = {"topic.prefix": "t", **more.pop("capture", {})}
    return Settings.model_validate(
        {"source": {}, "capture": capture, "kafka": {"bootstrap.servers": "127.0.0.1:1"}, **more}
    )


@pytest.mark.parametrize(
    "given",
    [
        {"capture": {"column.mask.with.3.chars": "public.t.email"}},
        {"capture": {"column.truncate.to.3.chars": "public.t.email"}},
        {
            "lakehouse": {
                "path": "/lake",
                "tables": [{"source": "public.t", "mask": {"email": "null"}}],
            }
        },
    ],
    ids=["by the capture", "cut by the capture", "by a derived table"],
)
def test_where_any_column_is_masked_nobody_knows_where_views_have_it(given: Any) -> None:
    assert masks_some(settings(**given))
    assert not masks_some(settings(lakehouse={"path": "/lake"}))
