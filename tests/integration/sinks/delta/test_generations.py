"""Another key of a table, in a log written by hand → its derived tables, old rows and new ones."""

import shutil
from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode
from cdc.records.state import Doubt
from sinks.changes.names import END, OP, POSITION
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KINDS = ("current", "history", "changes")
ID = column("id", "int4", 1, number=1)
OLD_ID = column("old_id", "int4", number=1)
CODE = column("code", "int8", number=2)
NEW_ID = column("id", "int8", 1, number=2)
TEXT_ID = column("id", "text", 1, number=3)
V = column("v", "text", number=4)
DOUBT = Doubt(reason="the key has other columns", since_ms=1, replaces=True)


def begun(lakehouse: Lakehouse, *columns: Any, **more: Any) -> HandLog:
    """Rows 1 to 3; of the last one nothing comes any more under that key."""
    lakehouse.configure(**{"kinds": KINDS, **more})
    log = lakehouse.log(*(columns or (ID, CODE, V)))
    for number in (1, 2, 3):
        log.row("r", at(10, 0), {"id": number, "code": 10 * number, "v": "first"})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    return log


def rekeyed(log: HandLog, version: int, lsn: int, *columns: Any) -> None:
    """The stream has come to another key."""
    schema = table_schema(log.prefix, "t", *columns, version=version, oid=7)
    log.add_schema(schema.model_copy(update={"since": str(at(lsn))}))
    log.table(10, doubt=DOUBT)


def read_again(log: HandLog, lsn: int, *rows: dict[str, Any], is_forgotten: bool = False) -> None:
    """``is_forgotten``: compaction has taken the TRUNCATE, for a later one."""
    if not is_forgotten:
        log.truncate(at(lsn).just_before())
    for row in rows:
        log.row("r", at(lsn + 5, 0), row)
    log.table(lsn + 5)
    log.reached(at(lsn + 5, 0))


def swap(log: HandLog) -> None:
    """Changes under the old key, then under the new one, then a read of all that is there."""
    log.row("u", at(20), {"id": 1, "code": 10, "v": "right before"})
    log.row("d", at(21), None, {"id": 2, "code": 20, "v": "first"})
    log.tombstone(at(21), {"id": 2})
    rekeyed(log, 2, 30, OLD_ID, NEW_ID, V)
    log.row("u", at(30), {"old_id": 1, "id": 10, "v": "right behind"})
    log.row("c", at(31), {"old_id": None, "id": 1, "v": "new"})
    log.row("d", at(32), None, {"old_id": None, "id": 1, "v": "new"})
    log.tombstone(at(32), {"id": 1})
    log.reached(at(35))


SWAPPED = (
    {"old_id": 1, "id": 10, "v": "right behind"},
    {"old_id": 3, "id": 30, "v": "first"},
    {"old_id": None, "id": 2, "v": "new"},
)


def history(lakehouse: Lakehouse, *columns: str) -> list[tuple[Any, ...]]:
    """Versions: columns, from where, and up to where."""
    rows = lakehouse.read("public.t_history", *columns, POSITION, END)
    return sorted(rows, key=lambda row: (row[-2], str(row)))


def current(lakehouse: Lakehouse, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(lakehouse.read("public.t", *columns))


ENDED = str(at(40).just_before())
OLD_VERSIONS = [
    (1, 10, "first", str(at(10, 0)), str(at(20))),
    (2, 20, "first", str(at(10, 0)), str(at(21))),
    (3, 30, "first", str(at(10, 0)), ENDED),
    (1, 10, "right before", str(at(20)), ENDED),
]
"""Under the first key: the last ones end where the table is read again."""
NEW_VERSIONS = [
    (1, 10, "right behind", str(at(30)), None),  # a read that finds it so is no new version
    (None, 1, "new", str(at(31)), str(at(32))),
    (3, 30, "first", str(at(45, 0)), None),
    (None, 2, "new", str(at(45, 0)), None),
]


DEATHS = ("write_all", "register")
"""Right before the commit, and right behind it."""


@pytest.mark.parametrize(
    ("kinds", "deaths"),
    [
        pytest.param(KINDS[:2], DEATHS[1:], id="behind a commit"),
        pytest.param(KINDS, DEATHS, id="before a commit, and behind it", marks=pytest.mark.proof),
    ],
)
def test_a_table_waits_while_its_new_rows_are_read_and_is_replaced_then(
    lakehouse: Lakehouse, kinds: tuple[str, ...], deaths: tuple[str, ...]
) -> None:
    log = begun(lakehouse, kinds=kinds)
    swap(log)
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    assert current(lakehouse, "id", "v") == [(1, "first"), (2, "first"), (3, "first")]
    read_again(log, 40, *SWAPPED)
    for death in deaths:
        with (
            patch(f"sinks.delta.target.{death}", side_effect=ZeroDivisionError),
            pytest.raises(ZeroDivisionError),
        ):
            lakehouse.merge()
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    assert lakehouse.table("public.t").columns == ["old_id", "id", "v", POSITION]
    assert current(lakehouse, "id", "v") == [(2, "new"), (10, "right behind"), (30, "first")]
    expected = sorted([*OLD_VERSIONS, *NEW_VERSIONS], key=lambda row: (row[-2], str(row)))
    assert history(lakehouse, "old_id", "id", "v") == expected
    if "changes" in kinds:
        ops = [op for (op,) in lakehouse.read("public.t_changes", OP)]
        assert sorted(ops) == sorted("rrruducdtrrr")
    log.row("u", at(50), {"old_id": None, "id": 2, "v": "later"})
    log.reached(at(50))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert current(lakehouse, "id", "v") == [(2, "later"), (10, "right behind"), (30, "first")]


@pytest.mark.proof
def test_rows_go_by_a_text_column_that_is_the_key_now_or_was_before(lakehouse: Lakehouse) -> None:
    """An update may have no value for a text column, but for one of the key."""
    code, plain = column("code", "text", number=2), column("id", "int4", number=1)
    lakehouse.configure(kinds=("current", "history"), tables=[
        {"source": "public.t"},
        {"source": "public.t", "name": "public.marked", "deletes": "mark"},
    ])  # fmt: skip
    log = lakehouse.log(column("id", "int4", 1, number=1), code, V)
    for number in (1, 2, 3):
        log.row("r", at(10, 0), {"id": number, "code": f"c{number}", "v": "first"})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    rekeyed(log, 2, 30, plain, column("code", "text", 1, number=2), V)
    read_again(log, 40, *({"id": n, "code": f"c{n}", "v": "first"} for n in (1, 2, 3)))
    log.row("u", at(50), {"id": 1, "code": "c1", "v": "changed"})
    for number in (2, 3):
        log.row("d", at(50 + number), None, {"id": number, "code": f"c{number}", "v": "first"})
        log.tombstone(at(50 + number), {"code": f"c{number}"})
    log.row("c", at(53), {"id": 3, "code": "moved", "v": "first"})
    log.reached(at(55))
    assert lakehouse.merge().exit_code == ExitCode.OK
    now = [(1, "c1", "changed"), (3, "moved", "first")]
    assert current(lakehouse, "id", "code", "v") == now
    rekeyed(log, 3, 60, column("id", "int4", 1, number=1), code, V)
    log.row("d", at(61), None, {"id": 3, "code": "moved", "v": "first"})
    log.tombstone(at(61), {"id": 3})
    read_again(log, 70, {"id": 1, "code": "c1", "v": "changed"})
    for is_made_again in (False, True):
        if is_made_again:
            shutil.rmtree(lakehouse.folder / "public" / "t_history")
        assert lakehouse.merge().exit_code == ExitCode.OK
        versions = history(lakehouse, "code", "v")
        under_code = [row for row in versions if str(at(30)) <= row[-2] < str(at(60))]
        assert under_code == [
            ("c1", "first", str(at(45, 0)), str(at(50))),
            ("c2", "first", str(at(45, 0)), str(at(52))),
            ("c3", "first", str(at(45, 0)), str(at(53))),
            ("c1", "changed", str(at(50)), str(at(70).just_before())),
            ("moved", "first", str(at(53)), str(at(70).just_before())),
        ]
        assert [row[:2] for row in versions if row[-1] is None] == [("c1", "changed")]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("is_made_again", "is_forgotten"), [(False, False), (True, False), (True, True)]
)
def test_several_keys_between_two_merges(
    lakehouse: Lakehouse, *, is_made_again: bool, is_forgotten: bool
) -> None:
    """The key that was there in between is a column that is gone by now."""
    log = begun(lakehouse)
    swap(log)
    read_again(log, 40, *SWAPPED, is_forgotten=is_forgotten)
    rekeyed(log, 3, 60, OLD_ID, TEXT_ID, V)
    log.row("u", at(60), {"old_id": 3, "id": "x", "v": "third key"})
    read_again(log, 70, {"old_id": 3, "id": "x", "v": "third key"})
    if is_made_again:
        for name in ("t", "t_history", "t_changes"):
            shutil.rmtree(lakehouse.folder / "public" / name)
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert current(lakehouse, "old_id", "id", "v") == [(3, "x", "third key")]
    versions = history(lakehouse, "old_id", "id", "v")
    ended = str(at(70).just_before())
    assert versions[-1] == (3, "x", "third key", str(at(60)), None)
    ends = {None: ended, ENDED: str(at(30).just_before()) if is_forgotten else ENDED}
    between = [
        (old, None, v, begins, ends.get(end, end))
        for old, _, v, begins, end in (*OLD_VERSIONS, *NEW_VERSIONS)
    ]
    assert versions[:-1] == sorted(between, key=lambda row: (row[-2], str(row)))


@pytest.mark.proof
def test_a_history_keeps_former_keys_where_dropped_columns_are_removed(
    lakehouse: Lakehouse,
) -> None:
    """The key is swapped, the table read again, and the old column dropped between two merges."""
    log = begun(lakehouse, **{"column.drop.policy": "remove"})
    swap(log)
    read_again(log, 40, *SWAPPED)
    schema = table_schema(log.prefix, "t", NEW_ID, V, version=3)
    log.add_schema(schema.model_copy(update={"since": str(at(50))}))
    log.row("u", at(50), {"id": 10, "v": "later"})
    log.reached(at(50))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.table("public.t").columns == ["id", "v", POSITION]
    assert current(lakehouse, "id", "v") == [(2, "new"), (10, "later"), (30, "first")]
    behind, *others = ((None, *version[1:]) for version in NEW_VERSIONS)
    later = (None, 10, "later", str(at(50)), None)
    versions = [*OLD_VERSIONS, (*behind[:-1], str(at(50))), *others, later]
    expected = sorted(versions, key=lambda row: (row[-2], str(row)))
    assert history(lakehouse, "id__dropped1", "id", "v") == expected
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    log.row("d", at(60), None, {"id": 2, "v": "new"})
    log.tombstone(at(60), {"id": 2})
    log.reached(at(60))
    assert lakehouse.merge().exit_code == ExitCode.OK
    kept = history(lakehouse, "id__dropped1", "id", "v")
    assert [row for row in kept if row[0] is not None] == sorted(
        OLD_VERSIONS, key=lambda row: (row[-2], str(row))
    )


@pytest.mark.proof
@pytest.mark.parametrize("policy", ["keep", "remove"])
def test_a_key_of_another_type_makes_other_columns(lakehouse: Lakehouse, policy: str) -> None:
    """What a current table has of the old key goes; a history keeps it under another name."""
    log = begun(lakehouse, ID, CODE, V, **{"column.drop.policy": policy})
    rekeyed(log, 2, 30, column("id", "text", 1, number=1), CODE, V)
    read_again(log, 40, {"id": "one", "code": 10, "v": "first"})
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert current(lakehouse, "id", "code", "v") == [("one", 10, "first")]
    assert [(row[0], row[1]) for row in history(lakehouse, "id", "id__dropped1")] == [
        (None, 1),
        (None, 2),
        (None, 3),
        ("one", None),
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    "marked": {"deletes": "mark"},
    "partitioned": {"partition": ["v"]},
    "clustered": {"cluster": ["code"]},
    "merged": {},
}


@pytest.mark.proof
@pytest.mark.parametrize("option", OPTIONS)
def test_a_table_is_replaced_whatever_it_is_like(lakehouse: Lakehouse, option: str) -> None:
    table = {"source": "public.t", **OPTIONS[option]}
    more = {"deletion_vectors": False} if option == "merged" else {}
    log = begun(lakehouse, ID, CODE, V, tables=[table], **more)
    odd = column("of what", "timestamp", number=5)
    rekeyed(log, 2, 30, column("id", "int4", number=1), column("code", "int8", 1, number=2), V, odd)
    rows = (
        {"id": 1, "code": 1, "v": "a", "of what": 7},
        {"id": 1, "code": 3, "v": "b c", "of what": 8},
    )
    read_again(log, 40, *rows)
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert current(lakehouse, "id", "code", "v") == [(1, 1, "a"), (1, 3, "b c")]
    log.row("d", at(50), None, rows[0])
    log.tombstone(at(50), {"code": 1})
    log.row("u", at(51), rows[1] | {"v": "later"})
    log.reached(at(51))
    assert lakehouse.merge().exit_code == ExitCode.OK
    kept = [(1, 1, "a"), (1, 3, "later")] if option == "marked" else [(1, 3, "later")]
    assert current(lakehouse, "id", "code", "v") == kept
