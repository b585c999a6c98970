"""A log written by hand → Delta tables, run after run: a run's promises, and its errors."""

import datetime as dt
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import ExitCode, LogForgottenError
from cdc.records.state import Phase
from sinks.changes.derived import table_path
from sinks.changes.names import POSITION
from sinks.delta import commit, target
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunOutcome
from tests.fixtures.few import few
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def by_spark(lakehouse: Lakehouse) -> list[dict[str, Any]]:
    """What the table has, in Spark's types."""
    rows = lakehouse.table("public.t").drop(POSITION).collect()
    return sorted((row.asDict() for row in rows), key=str)


def test_changes_reach_the_table_once_and_in_order(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number in range(5):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.table(100, Phase.SNAPSHOT)
    log.reached(at(100, 0))
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO, "the snapshot isn't complete"
    log.table(100)
    log.reached(at(100, 0))
    first = lakehouse.merge()
    assert (first.exit_code, first.tables[0].inserted) == (ExitCode.OK, 5)

    log.row("u", at(200, 1), {"id": 0, "a": "new", "n": None})
    log.row("u", at(200, 2), {"id": 1, "n": 11})  # a is absent
    log.row("d", at(200, 3), None, {"id": 2})
    log.tombstone(at(200, 3), {"id": 2})
    log.row("d", at(200, 4), None, {"id": 3})
    log.tombstone(at(200, 4), {"id": 3})
    log.row("c", at(200, 4), {"id": 33, "a": "moved", "n": 3})
    log.row("u", at(300, 1), {"id": 4, "a": "above the cut", "n": 4})
    log.reached(at(200, 4))
    second = lakehouse.merge()
    expected = [
        {"id": 0, "a": "new", "n": None},
        {"id": 1, "a": "a1", "n": 11},
        {"id": 33, "a": "moved", "n": 3},
        {"id": 4, "a": "a4", "n": 4},
    ]
    assert lakehouse.rows(log.schema) == sorted(expected, key=str)
    result = second.tables[0]
    assert (result.inserted, result.updated, result.deleted) == (1, 2, 2)

    log.truncate(at(300, 2))
    log.row("c", at(300, 3), {"id": 7, "a": "after", "n": 7})
    log.reached(at(300, 3))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [{"id": 7, "a": "after", "n": 7}]
    version = lakehouse.version(log.schema)
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    assert lakehouse.version(log.schema) == version


@pytest.mark.parametrize("are_updated", few([False, True], False), ids=["read", "updated"])
def test_values_get_true_types(lakehouse: Lakehouse, are_updated: bool) -> None:
    columns: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
        "id": ("uuid", {}, "x", "x"),
        "b": ("bool", {}, True, True),
        "i2": ("int2", {}, -5, -5),
        "i8": ("int8", {}, 2**63 - 1, 2**63 - 1),
        "oid": ("oid", {}, 2**32 - 1, 2**32 - 1),
        "f8": ("float8", {}, "Infinity", float("inf")),
        "f4": ("float4", {}, 0.5, 0.5),
        "dec": ("numeric", {"modifier": (10 << 16 | 2) + 4}, "12345678.90", Decimal("12345678.90")),
        "free": ("numeric", {}, "NaN", "NaN"),
        "d": ("date", {}, -1, dt.date(1969, 12, 31)),
        "ts": ("timestamp", {}, 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        "ts3": (
            "timestamp",
            {"modifier": 3},
            1,
            dt.datetime(1970, 1, 1, 0, 0, 0, 1000),  # noqa: DTZ001
        ),
        "t": ("time", {}, 1, 1),
        "t0": ("time", {"modifier": 0}, 1000, 1_000_000),
        "by": ("bytea", {}, "AAEC", bytearray(b"\x00\x01\x02")),
        "arr": ("int4", {"array": True}, [1, None, 3], [1, None, 3]),
        "darr": ("date", {"array": True}, [0], [dt.date(1970, 1, 1)]),
        "tarr": ("text", {"array": True}, ["a", 'q"x', None], ["a", 'q"x', None]),
        "js": ("jsonb", {}, '{"a": 1}', '{"a": 1}'),
        "odd name, (yes).`x`": ("text", {}, "odd", "odd"),
        "Case": ("text", {}, "upper", "upper"),
    }
    log = lakehouse.log(
        *(
            column(name, kind, 1 if name == "id" else None, **more)
            for name, (kind, more, _, _) in columns.items()
        ),
        column("case", "text"),
    )
    value = {name: written for name, (_, _, written, _) in columns.items()} | {"case": "lower"}
    read = {name: found for name, (_, _, _, found) in columns.items()} | {"case__2": "lower"}
    log.row("r", at(10, 0), value)
    log.table(10)
    log.reached(at(10, 0))
    assert [str(table) for table in lakehouse.merge().tables if table.error] == []
    assert by_spark(lakehouse) == [read]
    if are_updated:
        log.row("u", at(20), value | {"case": None, "i8": 1})
        log.reached(at(20))
        assert [str(table) for table in lakehouse.merge().tables if table.error] == []
        assert by_spark(lakehouse) == [read | {"case__2": None, "i8": 1}]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"dec": "NaN"}, "column dec (numeric) can't hold NaN"),
    "infinity": ({"d": 2**31 - 1}, "column d (date) can't hold 2147483647"),
    "dimensions": ({"arr": [[1], [2]]}, "can't hold [1]"),
}


@pytest.mark.parametrize("kinds", few([("nan",), (*BAD, "garbage")], ("nan",)), ids=",".join)
def test_a_bad_value_stops_its_table_only_and_changes_nothing(
    lakehouse: Lakehouse, kinds: tuple[str, ...]
) -> None:
    columns = (
        column("id", "int4", 1),
        column("dec", "numeric", modifier=(10 << 16 | 2) + 4),
        column("d", "date"),
        column("arr", "int4", array=True),
    )
    good = lakehouse.log(*columns, table="good")
    bad = {name: good.beside(table_schema(lakehouse.prefix, name, *columns)) for name in kinds}
    for log in (good, *bad.values()):
        log.row("r", at(10, 0), {"id": 1, "dec": "1.00", "d": 1, "arr": [1]})
        log.table(10)
    good.reached(at(10, 0))
    lakehouse.merge()
    value = {"id": 1, "dec": "2.00", "d": 2, "arr": [2]}
    good.row("u", at(20), value)
    for name in BAD.keys() & kinds:
        bad[name].row("u", at(20), value | BAD[name][0])
    if "garbage" in kinds:
        bad["garbage"].raw(b'{"id":1}', b"not json", b"garbage")
    good.reached(at(20))
    says = {name: BAD[name][1] if name in BAD else "isn't a Millrace record" for name in kinds}
    summary = lakehouse.merge()
    assert summary.exit_code == ExitCode.SINK
    errors = {table.name: str(table.error) for table in summary.tables if table.error}
    assert errors.keys() == {f"public.{name}" for name in says}
    for name, said in says.items():
        assert said in errors[f"public.{name}"]
    assert lakehouse.rows(good.schema)[0]["arr"] == [2]
    assert [lakehouse.rows(log.schema)[0]["arr"] for log in bad.values()] == [[1]] * len(bad)


@pytest.mark.proof
@pytest.mark.parametrize("is_committed", [True, False], ids=["behind", "before"])
def test_an_interrupted_run_is_finished_by_the_next_one(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """It dies before its commit, or right behind it."""
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(10, 0), {"id": 1, "n": 1})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    real: Callable[..., Any] = commit.commit

    def dies(*arguments: Any, **options: Any) -> Any:
        if is_committed:
            real(*arguments, **options)
        raise KeyboardInterrupt

    log.row("u", at(20), {"id": 1, "n": 20})
    log.reached(at(20))
    with monkeypatch.context() as patched:
        patched.setattr(target, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            lakehouse.merge()
    log.row("u", at(30), {"id": 1, "n": 30})
    log.row("u", at(30, 2), {"id": 2, "n": 30})
    log.reached(at(30, 2))
    version = lakehouse.version(log.schema)
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [{"id": id_, "n": 30} for id_ in (1, 2)]
    assert lakehouse.version(log.schema) == version + (1 if is_committed else 2)


def test_columns_are_added_dropped_and_widened(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("a", "int4"), column("b", "text"))
    log.row("r", at(10, 0), {"id": 1, "a": 1, "b": "b"})
    log.row("r", at(10, 0), {"id": 2, "a": 2, "b": "b"})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("u", at(20), {"id": 1, "a": 5, "b": "old version"})
    columns = (column("id", "int4", 1), column("a", "int8"), column("c", "timestamp"))
    log.add_schema(table_schema(lakehouse.prefix, "t", *columns, version=2))
    log.row("u", at(30), {"id": 2, "a": 2**40, "c": 0})
    log.reached(at(30))
    assert [str(table.error) for table in lakehouse.merge().tables if table.error] == []
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    assert by_spark(lakehouse) == [
        {"id": 1, "a": 5, "b": None, "c": None},
        {"id": 2, "a": 2**40, "b": None, "c": epoch},
    ]


@pytest.mark.proof
def test_a_removed_table_is_rebuilt_from_the_log(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(10, 0), {"id": 1, "n": 1})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    shutil.rmtree(table_path(str(lakehouse.folder), log.schema.name))
    assert lakehouse.merge().exit_code == ExitCode.OK, "also while its topic is idle"
    assert lakehouse.rows(log.schema) == [{"id": 1, "n": 1}]
    log.row("c", at(20), {"id": 2, "n": 2})
    log.reached(at(20))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.rows(log.schema) == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]


@pytest.mark.proof
def test_a_table_that_was_restored_is_merged_into(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(100, 0), {"id": 1, "n": 1})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    path = table_path(str(lakehouse.folder), log.schema.name)
    properties = "'delta.checkpointInterval' = '2', 'n' = "
    for number in range(2):  # as many commits as make a checkpoint
        lakehouse.spark.sql(
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({properties} '{number}')"
        )
    assert list(Path(path).glob("_delta_log/*.checkpoint.parquet"))
    lakehouse.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    log.row("u", at(200, 1), {"id": 1, "n": 2})
    log.reached(at(200, 1))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.rows(log.schema) == [{"id": 1, "n": 2}]


def test_a_log_that_was_made_anew_is_not_mistaken_for_the_old_one(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(10, 0), {"id": 1, "n": 1})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.log = "another"
    log.row("r", at(20, 0), {"id": 1, "n": 2})
    log.reached(at(20))
    with pytest.raises(LogForgottenError, match="created again"):
        lakehouse.merge()
    assert lakehouse.rows(log.schema) == [{"id": 1, "n": 1}]


def test_a_new_epoch_replaces_what_an_older_history_had(lakehouse: Lakehouse) -> None:
    """Though the LSNs of the new one are smaller; rows that it doesn't have are gone."""
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"))
    bag = log.beside(table_schema(lakehouse.prefix, "bag", column("id", "int4")))
    for each in (log, bag):
        each.row("r", at(100, 0), {"id": 1, "a": "old"})
        each.row("r", at(100, 0), {"id": 2, "a": "old"})
        each.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    for each in (log, bag):
        each.row("c", at(900, 1), {"id": 3, "a": "of the older history, never applied"})
        each.truncate(at(50, 0, epoch=2).just_before())
        each.row("r", at(50, 0, epoch=2), {"id": 2, "a": "new"})
        each.row("c", at(60, 1, epoch=2), {"id": 4, "a": "streamed"})
    bag.table(50, epoch=2)
    log.row("r", at(70, 1, epoch=2), {"id": 5, "a": "read later, while streaming"})
    log.table(70, epoch=2)
    log.reached(at(70, 1, epoch=2))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [
        {"id": 2, "a": "new"},
        {"id": 4, "a": "streamed"},
        {"id": 5, "a": "read later, while streaming"},
    ]
    assert lakehouse.rows(bag.schema) == [{"id": 2}, {"id": 4}]


@pytest.mark.proof
def test_a_chunk_may_stand_where_the_run_before_has_ended(lakehouse: Lakehouse) -> None:
    """On an idle server nothing moves the stream's place, and chunks are read on."""
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    bag = log.beside(table_schema(lakehouse.prefix, "bag", column("id", "int4")))
    for each in (log, bag):
        each.row("c", at(20), {"id": 1, "n": 1})
        each.table(10)
    log.reached(at(20))
    lakehouse.merge()
    for each in (log, bag):
        each.row("c", at(20), {"id": 1, "n": 1})  # once more, as delivery at least once has it
    log.row("r", at(20), {"id": 2, "n": 2})
    log.reached(at(20))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert lakehouse.rows(bag.schema) == [{"id": 1}]


@pytest.mark.proof
def test_an_error_after_the_commit_does_not_keep_the_table_from_going_on(
    lakehouse: Lakehouse,
) -> None:
    log = lakehouse.log(column("id", "int4", 1))
    log.row("r", at(10, 0), {"id": 1})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    last = plans.last()
    assert last is not None
    lost = {str(log.schema.name): "the answer to the commit was lost"}
    plans.finish(RunOutcome(run=last.run, ts_ms=0, failed=lost))
    log.row("c", at(20), {"id": 2})
    log.reached(at(20))
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.rows(log.schema) == [{"id": 1}, {"id": 2}]


@pytest.mark.proof
def test_a_table_without_key_keeps_as_many_copies_as_the_source(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("a", "text"), column("n", "float8"))
    one, two = {"a": "x", "n": 1.5}, {"a": "x", "n": None}
    log.row("r", at(5, 0), one)  # of a snapshot that was taken again
    for image in (one, one, one, two):
        log.row("r", at(10, 0), image)
    log.row("c", at(8), two)  # the snapshot has it
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == sorted([one, one, one, two], key=str)
    log.row("d", at(20), None, one)
    log.row("u", at(20, 2), {"a": "y", "n": 0.0}, one)
    log.row("c", at(20, 3), two)
    log.row("c", at(20, 4), {"a": "z", "n": 1.0})
    log.row("d", at(20, 5), None, {"a": "z", "n": 1.0})
    log.reached(at(20, 5))
    summary = lakehouse.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []
    assert lakehouse.rows(log.schema) == sorted([one, two, two, {"a": "y", "n": 0.0}], key=str)
    log.truncate(at(30))
    log.row("c", at(30, 2), two)
    log.reached(at(30, 2))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [two]


@pytest.mark.proof
def test_a_filled_value_counts_where_nothing_exact_is_known(lakehouse: Lakehouse) -> None:
    """A value that was read for an update which didn't change it: at another time, maybe later."""
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"), column("a", "text"))
    for number in range(4):
        log.row("r", at(100, 0), {"id": number, "n": 0, "a": f"exact{number}"})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()

    read = "read for it"
    log.row("u", at(200, 1), {"id": 0, "n": 1, "a": read}, filled=["a"])  # the target has the row
    log.row("u", at(200, 2), {"id": 1, "n": 1, "a": "newer"})
    log.row("u", at(200, 3), {"id": 1, "n": 2, "a": read}, filled=["a"])  # the batch has the value
    log.row("u", at(200, 4), {"id": 2, "n": 1, "a": read}, filled=["a"])  # its key changes
    log.row("d", at(200, 5), None, {"id": 2})
    log.tombstone(at(200, 5), {"id": 2})
    log.row("c", at(200, 5), {"id": 22, "n": 2, "a": read}, filled=["a"])
    log.row("u", at(200, 6), {"id": 22, "n": 3})  # absent: it couldn't be read
    log.row("u", at(200, 7), {"id": 55, "n": 1, "a": read}, filled=["a"])  # compaction left no more
    log.row("d", at(200, 8), None, {"id": 3})
    log.tombstone(at(200, 8), {"id": 3})
    log.row("c", at(200, 9), {"id": 3, "n": 7, "a": None}, filled=["a"])  # another row came there
    log.row("u", at(200, 10), {"id": 3, "n": 8, "a": read}, filled=["a"])
    log.reached(at(200, 10))
    assert [table.error for table in lakehouse.merge().tables] == [None]
    assert lakehouse.rows(log.schema) == [
        {"id": 0, "n": 1, "a": "exact0"},
        {"id": 1, "n": 2, "a": "newer"},
        {"id": 22, "n": 3, "a": read},
        {"id": 3, "n": 8, "a": read},  # what an update leaves out is no null
        {"id": 55, "n": 1, "a": read},
    ]
