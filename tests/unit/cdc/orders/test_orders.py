"""An order that can't be followed → skipped with a warning, unless a new start solves it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cdc.dead_letters.guard import Refusals
from cdc.errors import (
    LogAccessError,
    LogUnreachableError,
    MillraceError,
    RecordRefusedError,
    SchemaRefusedError,
    SourceError,
    SourceUnreachableError,
)
from cdc.orders import orders as follower
from cdc.orders import repair, replay
from cdc.orders.orders import Orders
from cdc.orders.replay import Replays
from cdc.records.orders import DEAD_LETTER_ORDERS, REPAIR_ORDERS, DeadLetterOrder, RepairOrder
from cdc.settings import Settings
from tests.fixtures.made_changes import POSITION, TRANSACTION

ORDER = DeadLetterOrder(outcome="replayed", number=1, id="x").model_dump_json().encode()


def follow(error: MillraceError, monkeypatch: pytest.MonkeyPatch, *, broken: bool = False) -> Any:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Replays, "_dead_letter", lambda *_: object())
    monkeypatch.setattr(Replays, "_replayed", refuse)
    return made(broken=broken).follow(DEAD_LETTER_ORDERS, ORDER, POSITION, TRANSACTION)


def made(*, broken: bool = False, refusals: Refusals | None = None) -> Orders:
    settings = Settings(
        source={}, capture={"topic.prefix": "pre"}, kafka={"bootstrap.servers": "nowhere"}
    )
    connection, nothing = cast("Any", SimpleNamespace(broken=broken)), cast("Any", None)
    topics = cast("Any", SimpleNamespace(while_waiting=None))
    return Orders(settings, connection, topics, {}, nothing, nothing, refusals or Refusals())


class Reader:
    """A topic without dead letters, or one that we may not read."""

    made = 0
    reads = 0
    error: MillraceError | None = None

    def __init__(self, *_: object) -> None:
        Reader.made += 1

    def read(self) -> dict[int, object]:
        if self.error is not None:
            raise self.error
        Reader.reads += 1
        return {}

    def has_read(self, id_: str) -> bool:
        """All that was made before the fourth time that it is read."""
        return not id_ or Reader.reads > 3


def test_orders_that_anybody_wrote_cost_no_question_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """But as long as the newest dead letter isn't read: the next order may be about that."""
    monkeypatch.setattr(replay, "DeadLetterReader", Reader)
    monkeypatch.setattr(Reader, "made", 0)
    monkeypatch.setattr(Reader, "reads", 0)
    refusals = Refusals()
    orders = made(refusals=refusals)

    def forge(count: int) -> None:
        for number in range(count):
            order = DeadLetterOrder(outcome="discarded", number=number, id="forged")
            content = order.model_dump_json().encode()
            assert orders.follow(DEAD_LETTER_ORDERS, content, POSITION, TRANSACTION) == []

    forge(1_000)
    assert (Reader.made, Reader.reads) == (1, 1)
    refusals.newest_dead_letter = "new"
    forge(1_000)
    assert (Reader.made, Reader.reads) == (1, 4)


def test_what_isnt_an_order_fills_no_log() -> None:
    orders = made()
    with capture_logs() as logs:
        for content in (b"", b"[" * 100_000, b'{"format": 2}', b"\xff") * 100:
            assert orders.follow(DEAD_LETTER_ORDERS, content, POSITION, TRANSACTION) == []
    assert len(logs) == 1


def test_a_steady_drip_of_what_isnt_an_order_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = made()
    with capture_logs() as logs:
        for now_s in range(100, 191, 9):
            monkeypatch.setattr(follower, "time", SimpleNamespace(monotonic=lambda now=now_s: now))
            orders.follow(DEAD_LETTER_ORDERS, b"forged", POSITION, TRANSACTION)
    assert len(logs) == 6


def test_an_order_ends_nothing_where_dead_letters_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "DeadLetterReader", Reader)
    monkeypatch.setattr(Reader, "error", LogAccessError("not authorized"))
    with capture_logs() as logs:
        assert made().follow(DEAD_LETTER_ORDERS, ORDER, POSITION, TRANSACTION) == []
    assert [line["reason"] for line in logs] == ["not authorized"]
    monkeypatch.setattr(Reader, "error", LogUnreachableError("no answer"))
    with pytest.raises(LogUnreachableError):  # the next start follows it
        made().follow(DEAD_LETTER_ORDERS, ORDER, POSITION, TRANSACTION)


def test_an_order_is_followed_once_dead_letters_can_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "DeadLetterReader", Reader)
    monkeypatch.setattr(Reader, "reads", 0)
    orders = made()
    for _ in range(2):
        monkeypatch.setattr(Reader, "error", LogAccessError("not authorized"))
        with capture_logs() as logs:
            assert orders.follow(DEAD_LETTER_ORDERS, ORDER, POSITION, TRANSACTION) == []
        assert [line["reason"] for line in logs] == ["not authorized"]
    monkeypatch.setattr(Reader, "error", None)
    orders.follow(DEAD_LETTER_ORDERS, ORDER, POSITION, TRANSACTION)
    assert Reader.reads == 1


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


def test_who_cannot_read_the_log_has_no_row_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any role may write orders: they cost one question for the log's name."""
    asked = list[str]()

    def progress(*_: object) -> object:
        asked.append("name")
        return SimpleNamespace(log="the log")

    monkeypatch.setattr(repair, "last_progress", progress)
    orders = made()
    order = RepairOrder(id="x", log="guessed", table="public.t", keys=({"id": "1"},))
    with capture_logs() as logs:
        for _ in range(1_000):
            content = order.model_dump_json().encode()
            assert orders.follow(REPAIR_ORDERS, content, POSITION, TRANSACTION) == []
    assert (len(asked), len(logs)) == (1, 1)


def test_rows_of_a_table_that_is_not_captured_are_not_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = SimpleNamespace(log="the log")
    monkeypatch.setattr(repair, "last_progress", lambda *_: named)
    order = RepairOrder(id="x", log="the log", table="public.t", keys=({"id": "1"},))
    with capture_logs() as logs:
        content = order.model_dump_json().encode()
        assert made().follow(REPAIR_ORDERS, content, POSITION, TRANSACTION) == []
    assert [line["reason"] for line in logs] == ["table public.t isn't captured"]
