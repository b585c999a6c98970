"""An order that can't be followed → passed over with a warning, unless starting over mends that."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cdc.dead_letters.replay import Orders
from cdc.errors import (
    MillraceError,
    RecordRefusedError,
    SchemaRefusedError,
    SourceError,
    SourceUnreachableError,
)
from cdc.records.dead_letters import Order
from cdc.settings import Settings
from tests.fixtures.made_changes import POSITION, TRANSACTION

ORDER = Order(outcome="replayed", number=1, id="x").model_dump_json().encode()


def follow(error: MillraceError, monkeypatch: pytest.MonkeyPatch, *, broken: bool = False) -> Any:
    def refuse(*_: object) -> None:
        raise error

    settings = Settings(
        source={}, capture={"topic.prefix": "pre"}, kafka={"bootstrap.servers": "nowhere"}
    )
    connection, nothing = cast("Any", SimpleNamespace(broken=broken)), cast("Any", None)
    topics = cast("Any", SimpleNamespace(while_waiting=None))
    monkeypatch.setattr(Orders, "_dead_letter", lambda *_: object())
    monkeypatch.setattr(Orders, "_replayed", refuse)
    orders = Orders(settings, connection, topics, {}, nothing, nothing)
    return orders.follow(ORDER, POSITION, TRANSACTION)


@pytest.mark.parametrize("kind", [RecordRefusedError, SchemaRefusedError, SourceError])
def test_what_stays_so_is_passed_over_with_a_warning(
    kind: type[MillraceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs:
        assert follow(kind("no", where="here"), monkeypatch) == []
    assert [line["reason"] for line in logs] == ["no"]


def test_what_the_next_start_can_follow_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    away = SourceUnreachableError("gone", where="here")
    with pytest.raises(SourceUnreachableError):
        follow(away, monkeypatch)
    lost = RecordRefusedError("no", where="here")
    lost.retry = True
    with pytest.raises(RecordRefusedError):
        follow(lost, monkeypatch)
    with pytest.raises(SourceError):
        follow(SourceError("no", where="here"), monkeypatch, broken=True)
