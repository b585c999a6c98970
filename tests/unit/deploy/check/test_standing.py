"""Derived tables after a last run → the lines of a check, if the next run refuses them."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cdc.errors import ExitCode
from deploy.check.lakehouse import check_lakehouse
from deploy.check.result import CheckResult, Level
from deploy.check.runner import Awaited
from deploy.check.scene import CapturedLog
from sinks.run.owner import application
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunOutcome
from tests.fixtures.checks import NO_KAFKA, described, left_plan, scenes_of, stuck_log
from tests.fixtures.made_states import streaming
from tests.fixtures.spark import at

NAME = "public.t"
Check = Callable[..., CheckResult]


def commit(lake: Path, run: int = 3) -> Path:
    """The table's newest commit, by a run."""
    log = lake / "public" / "t" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    made = log / f"{run:020}.json"
    transaction = {"appId": application("t", NAME), "version": run}
    actions = [{"commitInfo": {}}, {"txn": transaction}, {"add": {"path": "part-1"}}]
    made.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lakehouse that one run has written."""
    path = tmp_path / "lake"
    plans = lakehouse_plans(str(path), pytest.fail)
    plans.start(left_plan())
    plans.finish(RunOutcome(run=3, ts_ms=1, failed={}))
    commit(path)
    return path


@pytest.fixture
def found(tmp_path: Path, lake: Path) -> Check:
    """What a check finds of a requirement, with these options of the lakehouse."""

    def check(
        requirement: str,
        log: CapturedLog | None = None,
        *columns: str,
        capture: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> CheckResult:
        sections: dict[str, Mapping[str, Any]] = {"lakehouse": {"path": str(lake), **options}}
        source = {"host": "127.0.0.1", "port": "1", "user": "u", "dbname": "d"}
        made = scenes_of(tmp_path, source, NO_KAFKA, "t", capture, **sections)()
        table = described(NAME, *(columns or ("id",)))
        if columns == ("keyless",):
            keyless = table.columns[0].model_copy(update={"key": None})
            table = replace(table, columns=(keyless,), primary_key=())
        made.tables.settle([table])
        made.log.settle(log or CapturedLog(streaming(at(20)), {}))
        lines = [each for each in check_lakehouse(made) if each.requirement == requirement]
        (line,) = lines
        return line

    return check


def test_what_the_last_run_has_left_is_in_order(found: Check) -> None:
    for requirement in ("applied so far", "Delta tables", "keys", "derived tables"):
        assert found(requirement).level is Level.OK, requirement


def test_another_kind_of_table_under_its_name_is_what_a_run_refuses(
    found: Check, lake: Path
) -> None:
    tables = [{"source": NAME, "name": NAME, "kind": "history"}]
    line = found("derived tables", tables=tables)
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.CONFIG)
    assert "kind current; the configuration now makes it of public.t, kind history" in line.found

    log = commit(lake).parent  # the remedy
    commit(lake).unlink()
    log.rmdir()
    assert found("derived tables", tables=tables).level is Level.OK


def test_a_history_of_a_table_without_a_key_is_what_a_run_refuses(found: Check) -> None:
    for options in ({"kind": "history", "name": "public.h"}, {"deletes": "mark"}):
        tables = [{"source": NAME, **options}]
        line = found("keys", None, "keyless", tables=tables)
        assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.CONFIG)
        assert "public.t has no key" in line.found
        assert found("keys", tables=tables).level is Level.OK
        capture = {"message.key.columns": "public.t:Keyless"}
        assert found("keys", None, "keyless", tables=tables, capture=capture).level is Level.OK
    assert found("keys", None, "keyless").level is Level.OK


def test_another_key_whose_rows_nobody_reads_again_is_what_a_run_refuses(found: Check) -> None:
    log = stuck_log()
    line = found("derived tables", log)
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert line.found.startswith("the key of public.t has changed")
    assert line.remedy == "millrace snapshot --reset public.t"
    assert found("derived tables", log._replace(progress=streaming(at(29)))).level is Level.OK


@pytest.mark.parametrize(
    "content",
    [b'{"commitInfo": {}}\n{"txn": {"appId": "mil', b"\xff\x00\xff", b"7\n", b'{"txn": 1}\n'],
    ids=["torn", "no text", "no actions", "another form"],
)
def test_a_commit_that_cannot_be_read_is_a_failure_that_names_it(
    found: Check, lake: Path, content: bytes
) -> None:
    torn = commit(lake, 4)
    torn.write_bytes(content)
    line = found("Delta tables")
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert line.found == "the log of a Delta table is damaged: a commit can't be read"
    assert line.where == str(torn)
    assert "remove the Delta table" in line.remedy


def test_line_breaks_of_other_kinds_in_values_damage_no_commit(found: Check, lake: Path) -> None:
    """Delta writes them as they are, such as in the least values of columns."""
    stats = json.dumps({"minValues": {"a": "x\u2028y\x85z\x7f"}}, ensure_ascii=False)
    added = json.dumps({"add": {"path": "part-2", "stats": stats}}, ensure_ascii=False)
    made = commit(lake)
    made.write_text(f"{made.read_text()}{added}\n\n", encoding="utf-8")
    assert found("Delta tables").level is Level.OK


@pytest.mark.parametrize("question", ["os.listdir", "pathlib.Path.is_dir"])
def test_a_folder_that_nobody_may_look_into_is_not_taken_for_somebody_elses(
    found: Check, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    answer = os.listdir if question == "os.listdir" else Path.is_dir

    def refuse(path: Path) -> Any:
        if path.name == "_delta_log":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return answer(path)

    monkeypatch.setattr(question, refuse)
    line = found("Delta tables")
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.DISK)
    assert "Permission denied" in line.found


def test_what_a_run_has_committed_while_the_check_waited_is_its_own(
    found: Check, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = lakehouse_plans(str(lake), pytest.fail)
    get = Awaited[CapturedLog].get

    def get_late(self: Awaited[CapturedLog]) -> CapturedLog | None:
        if (last := plans.last()) is not None and last.run < left_plan().run + 2:
            following = last.model_copy(update={"run": last.run + 1})
            plans.start(following)
            commit(lake, following.run)
            plans.finish(RunOutcome(run=following.run, ts_ms=1, failed={}))
        return get(self)

    monkeypatch.setattr(Awaited, "get", get_late)
    assert found("Delta tables").level is Level.OK
    commit(lake, left_plan().run + 9)
    assert found("Delta tables").level is Level.FAILURE


def test_a_table_that_somebody_else_has_put_in_its_place_is_a_failure(
    found: Check, lake: Path
) -> None:
    commit(lake).write_text('{"commitInfo": {}}\n')
    line = found("Delta tables")
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert "wasn't written by Millrace" in line.found


def test_of_an_object_store_a_check_says_what_it_has_not_tried(found: Check) -> None:
    for requirement in ("writing", "applied so far", "Delta tables", "derived tables"):
        line = found(requirement, path="s3a://bucket/lake")
        assert line.level is Level.UNKNOWN
        assert "only Spark can reach s3a://bucket/lake" in line.found
        assert "`millrace merge lakehouse`" in line.remedy
