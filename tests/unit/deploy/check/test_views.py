"""[[views]] and their folders → the lines of a check, without Spark."""

import json
from pathlib import Path
from typing import Any

from cdc.errors import ExitCode
from deploy.check.lakehouse import check_lakehouse
from deploy.check.result import CheckResult, Level
from deploy.check.scene import Scene
from deploy.check.views import check_views
from sinks.run.owner import application
from tests.fixtures.checks import NO_KAFKA, described, scenes_of
from tests.unit.deploy.check.test_check import SOURCE

VIEWS: Any = [{"name": "totals", "query": "SELECT 1"}]


def scene(folder: Path, views: Any = VIEWS, path: str | None = None) -> Scene:
    sections = {"lakehouse": {"path": path or str(folder / "lake")}, "views": views}
    return scenes_of(folder, SOURCE, NO_KAFKA, "t", {}, **sections)()


def of(made: Scene) -> list[CheckResult]:
    return [*check_views(made)]


def test_views_without_anything_in_their_way_are_in_order(tmp_path: Path) -> None:
    queries, delta = of(scene(tmp_path))
    assert (queries.level, delta.level) == (Level.OK, Level.OK)
    assert "`millrace views check` shows how each is kept" in queries.found
    assert of(scene(tmp_path, [])) == []


def test_a_file_that_isnt_there_is_a_failure(tmp_path: Path) -> None:
    missing = [*VIEWS, {"name": "by_hour", "file": str(tmp_path / "by_hour.sql")}]
    queries, _ = of(scene(tmp_path, missing))
    assert (queries.level, queries.exit_code) == (Level.FAILURE, ExitCode.CONFIG)
    assert "by_hour.sql: No such file" in queries.found
    assert queries.where == "[[views]] by_hour"


def test_a_delta_table_that_no_run_has_made_is_a_failure(tmp_path: Path) -> None:
    made = scene(tmp_path)
    log = tmp_path / "lake" / "views" / "totals" / "_delta_log"
    log.mkdir(parents=True)
    _, delta = of(made)
    assert (delta.level, delta.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert "the folder of view views.totals has a Delta table" in delta.found
    transaction = {"txn": {"appId": application("t", "views.totals"), "version": 1}}
    (log / f"{0:020}.json").write_text(json.dumps(transaction))
    _, delta = of(made)
    assert delta.level is Level.OK, "it is a view's, whether its record is there or not"


def test_a_record_that_cant_be_read_is_a_failure(tmp_path: Path) -> None:
    made = scene(tmp_path)
    file = tmp_path / "lake" / "_millrace" / "views" / "totals.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    _, delta = of(made)
    assert delta.level is Level.FAILURE
    assert "can't read a view's state" in delta.found


def test_of_an_object_store_a_check_says_what_it_has_not_tried(tmp_path: Path) -> None:
    _, delta = of(scene(tmp_path, path="s3a://nowhere/lake"))
    assert delta.level is Level.UNKNOWN
    assert delta.remedy == "run `millrace merge views` once"


def test_a_captured_table_that_is_in_a_views_place_is_a_failure(tmp_path: Path) -> None:
    made = scene(tmp_path)
    made.tables.settle([described("views.totals", "id")])
    made.log.settle(None)
    (names,) = [each for each in check_lakehouse(made) if each.requirement == "names"]
    assert (names.level, names.where) == (Level.FAILURE, "[[views]]")
    assert "derived table views.totals and view totals" in names.found
