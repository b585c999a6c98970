"""A large table's merge: old rows are marked in place, and new ones added."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sinks.delta.keyed import mark
from sinks.delta.transaction import DeltaTransaction
from sinks.run.summary import Rows
from sinks.spark import session
from tests.fixtures.ended_rows import between, ended
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def log(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    """A table of two files, each with keys of its own; none is small enough to write anew."""
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", 0)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number in ROWS:
        log.row("r", at(10, 0), row(number))
    log.table(10)
    log.reached(at(11, 99))
    with monkeypatch.context() as patched:
        patched.setitem(session._FEW, "spark.sql.files.maxRecordsPerFile", "4")
        assert lakehouse.merge().tables[0].inserted == 8
    assert len(files(lakehouse)) == 2
    return log


def row(number: int) -> dict[str, Any]:
    return {"id": number, "a": f"a{number}", "n": number}


ROWS = {number: row(number) for start in (0, 10) for number in range(start, start + 4)}


def files(lakehouse: Lakehouse) -> dict[str, int]:
    """The table's files, and how many of each one's rows are marked as gone."""
    there: dict[str, int] = {}
    for commit in sorted((lakehouse.folder / "public/t/_delta_log").glob("[0-9]*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for removed in (action["remove"] for action in actions if "remove" in action):
            del there[removed["path"]]
        for added in (action["add"] for action in actions if "add" in action):
            there[added["path"]] = added.get("deletionVector", {}).get("cardinality", 0)
    return there


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many files each transaction reads keys, from now on."""
    read: list[int] = []
    original = DeltaTransaction.files

    def counted(self: DeltaTransaction, *condition: Any) -> Any:
        found = original(self, *condition)
        read.append(found.size())
        return found

    monkeypatch.setattr(DeltaTransaction, "files", counted)
    return read


def sorted_by_key(rows: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows.values(), key=str)


def test_only_rows_that_change_are_written_and_only_files_that_may_have_them_are_read(
    lakehouse: Lakehouse, log: HandLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files_read(monkeypatch)
    before = files(lakehouse)
    log.row("u", at(20, 1), {"id": 11, "a": "new", "n": None})
    log.row("u", at(20, 2), {"id": 12, "n": 120})  # a is absent
    log.row("d", at(20, 3), None, {"id": 13})
    log.tombstone(at(20, 3), {"id": 13})
    log.row("c", at(20, 4), row(14))
    log.row("d", at(20, 5), None, {"id": 15})  # which never was
    log.reached(at(20, 5))
    (done,) = lakehouse.merge().tables
    assert (done.inserted, done.updated, done.deleted) == (1, 2, 1)
    expected = ROWS | {
        11: {"id": 11, "a": "new", "n": None},
        12: {"id": 12, "a": "a12", "n": 120},
        14: row(14),
    }
    del expected[13]
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)
    assert read == [1], "keys tell that the other file has none of the rows"
    after = files(lakehouse)
    assert sorted(after[name] for name in before) == [0, 3]

    read.clear()
    log.drop(at(30, 0), ended(at(29), between("id", [1], [3])))
    log.row("c", at(30, 1), {"id": 2, "a": "in the next partition", "n": 1})
    log.reached(at(30, 1))
    (done,) = lakehouse.merge().tables
    assert (done.inserted, done.updated, done.deleted) == (0, 1, 1)
    expected[2] = {"id": 2, "a": "in the next partition", "n": 1}
    del expected[1]
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)
    assert read == [1], "bounds tell that the other files have none of the rows"
    after = files(lakehouse)
    assert sorted(after[name] for name in before) == [2, 3]


@pytest.mark.proof
@pytest.mark.parametrize("others", [True, False])
def test_rows_of_a_dropped_partition_are_marked_in_the_files_that_may_have_them(
    lakehouse: Lakehouse, log: HandLog, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    read = files_read(monkeypatch)
    before = files(lakehouse)
    log.drop(at(20, 0), ended(at(19), between("id", [11], [13])))
    if others:
        log.row("c", at(20, 1), {"id": 12, "a": "in the next partition", "n": 1})
    log.reached(at(20, 1))
    (done,) = lakehouse.merge().tables
    assert (done.inserted, done.updated, done.deleted) == (0, others, 2 - others)
    expected = {number: kept for number, kept in ROWS.items() if number not in {11, 12}}
    if others:
        expected[12] = {"id": 12, "a": "in the next partition", "n": 1}
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)
    assert read == [1], "bounds tell that the other file has none of the rows"
    assert sorted(files(lakehouse)[name] for name in before) == [0, 2]


@pytest.mark.proof
def test_rows_of_files_that_have_marks_are_marked_once_more(
    lakehouse: Lakehouse, log: HandLog
) -> None:
    for lsn, numbers in ((20, [1]), (21, [1, 2])):
        for index, number in enumerate(numbers, 1):
            log.row("u", at(lsn, index), {"id": number, "a": f"at {lsn}", "n": lsn})
        log.reached(at(lsn, len(numbers)))
        assert lakehouse.merge().tables[0].updated == len(numbers)
    expected = ROWS | {number: {"id": number, "a": "at 21", "n": 21} for number in (1, 2)}
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)


@pytest.mark.proof
@pytest.mark.parametrize("small", [0, 1 << 30])
def test_a_commit_that_another_got_in_the_way_of_is_tried_again(
    lakehouse: Lakehouse, log: HandLog, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", small)
    path, original = f"{lakehouse.folder}/public/t", DeltaTransaction.commit
    tried: list[int] = []

    def late(self: DeltaTransaction, *counts: int) -> Rows:
        tried.append(len(tried))
        if len(tried) == 1:
            lakehouse.spark.sql(f"OPTIMIZE delta.`{path}`")
        return original(self, *counts)

    monkeypatch.setattr(DeltaTransaction, "commit", late)
    log.row("u", at(20), {"id": 1, "a": "new", "n": 1})
    log.reached(at(20))
    (done,) = lakehouse.merge().tables
    assert (done.error, done.updated, len(tried)) == (None, 1, 2)
    expected = ROWS | {1: {"id": 1, "a": "new", "n": 1}}
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)


@pytest.mark.proof
def test_changes_as_old_as_what_is_stored_are_compared_with_it(
    lakehouse: Lakehouse, log: HandLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("rows at the cut itself aren't newer than all that is stored")

    marked: Callable[..., Any] = mark
    monkeypatch.setattr("sinks.delta.keyed.mark", never)
    log.row("r", at(11, 99), {"id": 11, "a": "of a chunk", "n": 1})
    log.row("u", at(20), {"id": 10, "a": "new", "n": 1})
    log.reached(at(20))
    assert lakehouse.merge().tables[0].error is None
    monkeypatch.setattr("sinks.delta.keyed.mark", marked)
    expected = ROWS | {
        10: {"id": 10, "a": "new", "n": 1},
        11: {"id": 11, "a": "of a chunk", "n": 1},
    }
    assert lakehouse.rows(log.schema) == sorted_by_key(expected)


@pytest.mark.proof
def test_rows_may_be_added_alone_however_large_the_table_is(
    lakehouse: Lakehouse, log: HandLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.spark.session._BYTES_FEW", 0)
    log.row("c", at(20), row(5))
    log.reached(at(20))
    (done,) = lakehouse.merge().tables
    assert (done.error, done.inserted, done.updated, done.deleted) == (None, 1, 0, 0)
    assert lakehouse.rows(log.schema) == sorted_by_key(ROWS | {5: row(5)})


@pytest.mark.proof
def test_a_key_may_be_the_first_day_of_all(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("until", "timestamptz", 1), column("n", "int8"))
    log.row("r", at(10, 0), {"until": "0001-01-01T00:00:00Z", "n": 1})
    log.row("r", at(10, 0), {"until": "9999-12-31T23:59:59Z", "n": 2})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().tables[0].error is None
    log.row("u", at(20), {"until": "0001-01-01T00:00:00Z", "n": 3})
    log.reached(at(20))
    assert lakehouse.merge().tables[0].updated == 1


@pytest.mark.proof
def test_an_archive_may_hide_the_key(lakehouse: Lakehouse) -> None:
    lakehouse.configure(tables=[{"source": "public.t", "kind": "changes", "exclude": ["id"]}])
    log = lakehouse.log(column("id", "int4", 1), column("n", "int8"))
    log.row("r", at(10, 0), {"id": 1, "n": 7})
    log.row("d", at(11), None, {"id": 1})
    log.tombstone(at(11), {"id": 1})
    log.table(10)
    log.reached(at(11))
    assert [table.error for table in lakehouse.merge().tables] == [None, None]
