"""A log written by hand; merges that die, meet other writers, or have new definitions → views."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cdc.errors import ExitCode, SparkMissingError
from cdc.settings.views import View
from sinks.run.options import RunOptions
from sinks.run.plans import LeftTable, lakehouse_plans
from sinks.views import records, store
from sinks.views.records import view_records
from sinks.views.run import ViewsRun
from tests.fixtures.few import few
from tests.fixtures.hand_views import DOUBLED, SUMS, Views

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Died(BaseException):
    """The process ends here."""


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("number", few([*range(1, 15)], 7))
def test_a_run_that_dies_at_any_action_is_finished_by_the_next_one(
    views: Views, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    views.write((1, "a", 1), (2, "b", 5), (3, None, 7))
    views.merge_tables()
    views.merge()
    views.write((1, "a", 2), (2, "b", -1), (4, "c", 3))
    views.merge_tables()
    with monkeypatch.context() as patched:
        _die_at(number, patched)
        with pytest.raises(Died):
            views.merge()
    views.write((1, "b", 3), (5, "c", 3))
    views.merge_tables()
    views.merge()
    views.assert_right()


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.proof
@pytest.mark.parametrize("with_news", [True, False])
def test_a_view_of_views_is_followed_though_a_run_has_died(
    views: Views, monkeypatch: pytest.MonkeyPatch, *, with_news: bool
) -> None:
    views.define(sums=SUMS, doubled=DOUBLED, kinds="SELECT kind, n FROM sums")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.write((3, "b", 2))
    views.merge_tables()
    with monkeypatch.context() as patched:
        patched.setattr(ViewsRun, "_record", Mock(side_effect=Died))
        with pytest.raises(Died):
            views.merge()
    if with_news:
        views.write((4, "c", 3))
        views.merge_tables()
    said: list[str] = []
    views.merge(said.append)
    assert "loading a new table" not in "".join(said)
    assert views.read("kinds") == [("a", 1), ("b", 2), *([("c", 1)] * with_news)]


@pytest.mark.proof
@pytest.mark.usefixtures("as_if_large")
def test_a_view_of_views_is_followed_though_these_are_compacted(views: Views) -> None:
    views.define(sums=SUMS, doubled=DOUBLED, kinds="SELECT kind, n FROM sums")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    record = view_records(str(views.lakehouse.folder), pytest.fail).view("sums")
    assert record is not None
    assert record.version is not None
    path = views.path("sums")
    views.lakehouse.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('of' = 'a test')")
    left = record.version.model_copy(update={"version": record.version.version + 1})
    plans = lakehouse_plans(str(views.lakehouse.folder), pytest.fail)
    plans.compact({"views.sums": LeftTable(run=record.step, at=left)})
    said: list[str] = []
    assert views.merge(said.append).exit_code == ExitCode.NOTHING_TO_DO
    views.write((3, "b", 2))
    views.merge_tables()
    views.merge(said.append)
    assert "loading a new table" not in "".join(said)
    assert views.read("kinds") == [("a", 1), ("b", 2)]


def test_a_rebuild_is_told_though_no_row_is_another(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    (done,) = views.merge(options=RunOptions(rebuilt=frozenset({"sums"}))).tables
    assert (done.name, done.inserted, views.commits("sums")) == ("sums", 2, 2)
    assert views.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_a_spark_that_doesnt_start_is_no_views_trouble(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    with monkeypatch.context() as patched:
        failing = Mock(side_effect=SparkMissingError("Spark can't start"))
        patched.setattr("sinks.views.pinned.pinned", failing)
        with pytest.raises(SparkMissingError):
            views.merge()
    assert view_records(str(views.lakehouse.folder), pytest.fail).at_cut(1) is None
    views.merge()
    views.assert_right()


@pytest.mark.proof
def test_a_damaged_record_of_a_cut_stops_no_run(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    own, runs = (Path(views.lakehouse.folder, "_millrace", name) for name in ("views", "runs"))
    record = own / f"{1:020}.done.json"
    before = json.loads(record.read_text())
    record.write_text('{"format": 1, "run": ')
    said: list[str] = []
    assert views.merge(said.append).exit_code == ExitCode.NOTHING_TO_DO
    assert str(record) in "".join(said)
    assert json.loads(record.read_text())["versions"] == before["versions"]

    outcome = runs / record.name
    before = json.loads(outcome.read_text())
    outcome.write_bytes(b"\xff\x00")
    failed = views.merge()
    assert failed.exit_code == ExitCode.LOG_FORMAT
    for each in failed.tables:
        assert str(each.error).splitlines() == [
            f"can't read a run's state: it isn't text ({outcome})",
            "  → `millrace merge lakehouse` records it again",
        ]
    views.assert_right()
    views.merge_tables()
    assert json.loads(outcome.read_text())["versions"] == before["versions"]
    assert views.merge().exit_code == ExitCode.NOTHING_TO_DO, "no view is built again"

    views.write((3, "b", 2))
    views.merge_tables()
    outcome.write_text("{")  # an older one is skipped
    views.merge()
    views.assert_right()


@pytest.mark.parametrize("case", few(product(range(1, 12), (False, True)), (8, True)))
def test_a_build_that_dies_at_any_action_is_at_its_cut_after_the_next_run(
    views: Views, monkeypatch: pytest.MonkeyPatch, case: tuple[int, bool]
) -> None:
    """Also where nothing new comes: then the next run has nothing to write."""
    death, is_built = case
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.define(sums="SELECT kind, -1 AS n, v FROM t")
    if is_built:
        views.merge()
    views.define(sums=SUMS)
    with monkeypatch.context() as patched:
        _die_at(death, patched)
        with suppress(Died):
            views.merge()
    views.merge()
    assert views.read("sums") == [("a", 1, 1), ("b", 1, 5)]
    there = view_records(str(views.lakehouse.folder), pytest.fail).at_cut(1)
    assert there is not None
    assert there.versions["sums"].version == views.commits("sums") - 1 == int(is_built)


def _die_at(number: int, patched: pytest.MonkeyPatch) -> list[str]:
    """Die at an action: before or after a record is written, or a commit made."""
    actions: list[str] = []

    def dying(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def either(*arguments: Any, **more: Any) -> Any:
            for when in ("before", "after"):
                actions.append(f"{when} {name}")
                if len(actions) == number:
                    raise Died
                if when == "before":
                    done = act(*arguments, **more)
            return done

        return either

    patched.setattr(records.ViewRecords, "write", dying("record", records.ViewRecords.write))
    patched.setattr(store.ViewTable, "change", dying("commit", store.ViewTable.change))
    patched.setattr(store.ViewTable, "replace", dying("commit", store.ViewTable.replace))
    patched.setattr(records.ViewRecords, "finish", dying("cut", records.ViewRecords.finish))
    return actions


@pytest.mark.proof
@pytest.mark.usefixtures("as_if_large")
def test_rows_that_are_as_they_were_are_not_written_again(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5), (3, "b", 7))
    views.merge_tables()
    views.merge()
    views.write((2, "b", 6), (3, "b", 6))  # the sum of b stays
    views.merge_tables()
    counts = {each.name: each.updated for each in views.merge().tables}
    assert counts == {"doubled": 2, "sums": 0}
    assert views.commits("sums") == 1
    views.write((3, "a", 6))
    views.merge_tables()
    (sums,) = (each for each in views.merge().tables if each.name == "sums")
    assert (sums.inserted, sums.updated, sums.deleted) == (0, 2, 0)
    views.assert_right()
    assert not views.merge().tables, "nothing new: nothing is done"


@pytest.mark.proof
@pytest.mark.usefixtures("as_if_large")
def test_a_small_view_of_a_large_table_is_written_again_with_all_its_other_rows(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.views.store.SMALL_BYTES", 1 << 20)
    views.define(sums=SUMS, doubled=DOUBLED, total="SELECT count(*) AS n FROM t")
    views.write((1, "a", 1), (2, "b", 5), (3, None, 7), (4, "c", 2))
    views.merge_tables()
    views.merge()
    views.write((1, "a", 2), (2, "b", -1), (5, "d", 3), (6, "d", 4))
    views.merge_tables()
    done = {each.name: (each.inserted, each.updated, each.deleted) for each in views.merge().tables}
    assert done == {"sums": (1, 1, 1), "doubled": (3, 0, 1), "total": (0, 1, 0)}
    views.assert_right()
    assert views.read("total") == [(5,)]
    views.write((3, None, 8))
    views.merge_tables()
    views.merge()
    views.assert_right()
    assert len(views.lakehouse.spark.read.load(views.path("sums"), "delta").inputFiles()) == 1


@pytest.mark.proof
def test_another_definition_replaces_the_table_by_one_commit(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    before = views.commits("sums")
    views.define(sums="SELECT kind, -count(*) AS less FROM t GROUP BY kind", doubled=DOUBLED)
    views.merge()
    assert views.read("sums") == [("a", -1), ("b", -1)]
    assert views.commits("sums") == before + 1
    views.define(doubled=DOUBLED)
    views.merge()
    views.define(sums=SUMS, doubled=DOUBLED)
    views.merge()
    views.assert_right()


def test_views_that_fail_fail_alone(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.define(
        sums=SUMS,
        doubled=DOUBLED,
        unknown="SELECT *\nFROM nowhere",
        column="SELECT id,\n  nothing FROM t",
        chance="SELECT id, rand() AS r FROM t",
        one="SELECT * FROM views.other",
        other="SELECT * FROM one",
        twice="SELECT id, id FROM t",
        listed="SELECT array_sort(collect_list(id)) AS a, collect_list(v) AS b FROM t",
        zero="SELECT id / (v - 5) AS q FROM t",
    )
    of_others = views.lakehouse.spark.range(3)
    of_others.write.format("delta").save(views.path("strange"))
    kept = View(name="kept", query="SELECT id, kind AS Valid_To FROM t", history=True)
    views.define(*views.lakehouse.settings.views, kept, strange="SELECT id FROM t")
    failed = {each.name: str(each.error) for each in views.merge().tables if each.error}
    views.assert_right()
    assert sorted(failed) == [
        "chance",
        "column",
        "kept",
        "listed",
        "one",
        "other",
        "strange",
        "twice",
        "unknown",
        "zero",
    ]
    assert "nowhere" in failed["unknown"]
    assert "line 2" in failed["unknown"]
    assert "line 2" in failed["column"]
    assert "rand()" in failed["chance"]
    assert "collect_list(v) has several valid results" in failed["listed"].replace("t.", "")
    assert "circle: one → other → one" in failed["one"]
    assert "several columns with one name: id" in failed["twice"]
    assert "try_divide" in failed["zero"]
    assert "a history adds columns with these names: Valid_To" in failed["kept"]
    assert "no run of views created" in failed["strange"]
    assert views.lakehouse.spark.read.format("delta").load(views.path("strange")).count() == 3


@pytest.mark.usefixtures("as_if_large")
def test_a_history_has_each_row_from_cut_to_cut(views: Views) -> None:
    views.define(View(name="sums", query=SUMS, history=True), doubled=DOUBLED)
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.write((1, "a", 2), (2, "b", -1))
    views.merge_tables()
    views.merge()
    views.assert_right()
    kept = views.lakehouse.spark.read.format("delta").load(views.path("sums_history"))
    rows = [tuple(row) for row in kept.select("kind", "n", "v", "is_current").collect()]
    assert sorted(rows, key=repr) == [("a", 1, 1, False), ("a", 1, 2, True), ("b", 1, 5, False)]


@pytest.mark.proof
def test_a_history_begins_again_where_others_tell_its_rows_apart(views: Views) -> None:
    kept = {"name": "sums", "history": True}
    bag = "SELECT kind, v FROM t EXCEPT ALL SELECT 'x', 0"  # its rows are numbered: by 1 and 1
    views.define(View(query=bag, **kept))
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.define(View(query="SELECT kind, v FROM t", **kept))
    views.merge()
    rows = [row[:2] for row in views.read("sums_history") if row[-1]]
    assert rows == views.read("sums") == [("a", 1), ("b", 5)]


@pytest.mark.usefixtures("as_if_large")
def test_what_only_the_search_for_changes_cant_evaluate_is_evaluated_whole(views: Views) -> None:
    twins = "SELECT 10 div coalesce(r.v, 0) AS g, count(*) AS n FROM t LEFT JOIN t r USING (id)"
    views.define(sums=f"{twins} GROUP BY 1")
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.write((1, "a", 2))
    views.merge_tables()
    said: list[str] = []
    (done,) = views.merge(said.append).tables
    assert (done.error, views.read("sums")) == (None, [(2, 1), (5, 1)])
    assert "can't find what has changed, evaluating all of it: " in "".join(said)


@pytest.mark.proof
@pytest.mark.usefixtures("as_if_large")
def test_a_cut_whose_files_are_gone_isnt_needed(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.merge()
    views.write((1, "a", 2), (2, "b", 3))
    views.merge_tables()
    table = Path(views.lakehouse.folder, "public", "t")
    rows = views.lakehouse.spark.read.format("delta").load(str(table))
    there = {Path(name).name for name in rows.inputFiles()}
    gone = [file for file in table.glob("*.parquet") if file.name not in there]
    assert gone
    for file in gone:
        file.unlink()
    said: list[str] = []
    assert [done.error for done in views.merge(said.append).tables] == [None, None]
    assert "evaluating all of it: " in "".join(said)
    views.assert_right()


def test_a_table_that_is_gone_is_the_trouble_of_its_views(views: Views) -> None:
    views.write((1, "a", 1), (2, "b", 5))
    views.merge_tables()
    views.define(sums=SUMS, one="SELECT 1 AS one")
    log = Path(views.lakehouse.folder, "public", "t", "_delta_log")
    shutil.rmtree(log)
    jvm: Any = views.lakehouse.spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    done = {each.name: str(each.error) for each in views.merge().tables if each.error}
    assert [*done] == ["sums"]
    assert "can't read public.t" in done["sums"]
