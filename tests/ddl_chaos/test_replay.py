"""Events of an archive → rows, with the right values where an update has left some out."""

import json
from typing import Any

from cdc.records.position import Lsn, Position
from tests.ddl_chaos.replay import Versions, replayed
from tests.fixtures.ended_rows import between
from tests.fixtures.ended_rows import ended as ended_rows
from tests.fixtures.spark import column, table_schema

VERSIONS = Versions([table_schema("t", "t", column("id", "int4", 1), column("body", "text"))])


def event(op: str, at: int, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {"absent": [], "filled": None, "schema_version": 1, "offset": at, **more}
    named = {f"_millrace_{name}": value for name, value in own.items()}
    return {
        "id": None,
        "body": None,
        "_millrace_op": op,
        "_millrace_position": f"{at:09}",
        **row,
        **named,
    }


def rows(*events: dict[str, Any]) -> dict[int, Any]:
    found = replayed(events, ["id"], ["id", "body"], VERSIONS)
    return {row["id"]: row["body"] for row in found}


def test_a_truncate_takes_what_is_not_newer_and_a_delete_its_row() -> None:
    assert rows(
        event("c", 3, {"id": 3, "body": "c"}),
        event("r", 1, {"id": 1, "body": "a"}),
        event("t", 2, {}),
        event("c", 2, {"id": 2, "body": "b"}),
        event("c", 4, {"id": 4, "body": "d"}),
        event("d", 5, {"id": 4}),
        event("gap", 6, {}, offset=None),
    ) == {3: "c"}


def test_bounds_that_end_take_the_rows_within_up_to_a_position() -> None:
    upto = Position(1, Lsn(20), 0)
    ended = json.dumps({"ended": ended_rows(upto, between("id", [1], [3])).model_dump(mode="json")})
    places = {number: str(Position(1, Lsn(number), 0)) for number in (10, 20, 30, 40)}
    assert rows(
        event("c", 1, {"id": 1, "body": "a"}, position=places[10]),
        event("c", 2, {"id": 2, "body": "b"}, position=places[20]),
        event("c", 3, {"id": 3, "body": "c"}, position=places[10]),
        event("r", 4, {"id": 2, "body": "later"}, position=places[30]),
        event("p", 5, {}, position=places[40], value=ended),
    ) == {2: "later", 3: "c"}


def test_an_absent_value_is_the_one_before() -> None:
    assert rows(
        event("c", 1, {"id": 1, "body": "a"}), event("u", 2, {"id": 1}, absent=["body"])
    ) == {1: "a"}


def test_a_filled_value_counts_only_where_nothing_better_is_known() -> None:
    read_later = event("u", 2, {"id": 1, "body": "later"}, filled="2")
    assert rows(event("c", 1, {"id": 1, "body": "a"}), read_later) == {1: "a"}
    assert rows(read_later) == {1: "later"}
    newer = event("u", 3, {"id": 1, "body": "newer"}, filled="2")
    assert rows(read_later, newer) == {1: "newer"}
    assert rows(event("c", 1, {"id": 1}), read_later) == {1: "later"}, "no large value is a null"
