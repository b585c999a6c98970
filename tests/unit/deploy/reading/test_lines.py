"""Lines of `millrace tail`: changes, masked or absent values, and no control character."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.reader.events import ChangeEvent, ChangeSource
from cdc.records.position import Lsn, Position
from deploy.reading.lines import EventLines
from deploy.reading.tail import _is_of

TIME = "2026-11-27 10:00:00.500000Z"


def event(operation: str, after: Any = None, **more: Any) -> ChangeEvent:
    return ChangeEvent.model_validate(
        {
            "operation": operation,
            "table": "public.orders",
            "key": {"id": 1},
            "before": None,
            "after": after,
            "source": ChangeSource(),
            "position": Position(1, Lsn(5), 1),
            "commit_time": datetime(2026, 11, 27, 10, 0, 0, 500_000, UTC),
            "topic": "p.public.orders",
            "partition": 0,
            "offset": 0,
        }
        | more
    )


@pytest.fixture
def lines() -> EventLines:
    masks: dict[str, Any] = {"card": "masked", "note": "cut"}
    return EventLines(lambda _table, column: masks.get(column, ""))


def test_an_update_says_only_what_changed(lines: EventLines) -> None:
    row = {"id": 1, "status": "paid", "total": Decimal("1.50"), "tags": None}
    assert lines.line(event("c", row)) == (
        f"{TIME}  create     public.orders  id=1  status: paid, total: 1.50, tags: null"
    )
    assert lines.line(event("u", row | {"status": "shipped"})) == (
        f"{TIME}  update     public.orders  id=1  status: paid → shipped"
    )
    assert lines.line(event("u", row | {"status": "shipped"})).endswith("  (no value changed)")
    changed = event("u", row | {"tags": ["x"]}, before=row)
    assert lines.line(changed).endswith('id=1  tags: null → ["x"]')


def test_an_update_of_a_row_that_wasnt_seen_shows_all_of_it(lines: EventLines) -> None:
    assert lines.line(event("u", {"id": 1, "a": "", "b": b"\x01"})).endswith(r'a: "", b: \x01')


def test_a_row_that_went_is_named(lines: EventLines) -> None:
    assert lines.line(event("d", before={"id": 1})) == f"{TIME}  delete     public.orders  id=1"
    whole = event("d", before={"id": 1, "status": "paid"})
    assert lines.line(whole).endswith("id=1  status: paid")
    truncated = event("t", key=None)
    assert lines.line(truncated) == f"{TIME}  truncate   public.orders"


def test_masked_and_absent_values_say_so(lines: EventLines) -> None:
    lines.line(event("c", {"id": 1, "card": "*****", "note": "abc", "text": "x"}))
    line = lines.line(event("u", {"id": 1, "card": "****", "note": "abd"}, absent=("text",)))
    assert line.endswith("card: (masked) → (masked), note: abc (cut) → abd (cut), text: (absent)")
    assert "*" not in line
    assert lines.line(event("u", {"id": 1}, lost=("text",))).endswith("text: (lost: too large)")


def test_no_control_character_reaches_the_terminal(lines: EventLines) -> None:
    evil = "a\x1b[2J\nmillrace: all is well\u202e"
    line = lines.line(event("c", {"id": 1, evil: evil}, table=evil, key={evil: evil}))
    assert not set(line) & {"\x1b", "\n", "\u202e"}
    assert "\\u001b" in line


def test_rows_are_remembered_up_to_so_much_memory(
    lines: EventLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(number: int, value: Any) -> str:
        return lines.line(event("u", {"id": number, "v": value}, key={"id": number}))

    monkeypatch.setattr("deploy.reading.lines._BYTES_MAX", 20_000)
    for number in range(5):
        update(number, ["x" * 5_000])
    assert update(4, "").endswith('… → ""')
    assert "→" not in update(0, ""), "what changed longest ago is remembered"
    update(9, {"deep": "x" * 50_000})
    assert "→" not in update(9, "")
    monkeypatch.setattr("deploy.reading.lines._ROWS_MAX", 2)
    for number in range(3):
        update(number, "a")
    assert "→" in update(2, "b")
    assert "→" not in update(0, "b")
    assert lines._rows._bytes < 20_000


def test_a_key_is_given_as_a_value_by_name_or_as_json() -> None:
    row = event("c", {}, key={"id": 7, "line": "a"})
    assert all(_is_of(row, key) for key in ("7,a", "id=7,line=a", '{"id":7,"line":"a"}', None))
    assert not any(_is_of(row, key) for key in ("7", "a", "id=7", "{}"))
    assert not _is_of(event("t", key=None), "")
    with pytest.raises(ConfigError):
        _is_of(row, "{id")
