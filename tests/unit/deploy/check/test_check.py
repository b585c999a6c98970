"""A check without servers: this machine, its order and words, and parts that are late or broken."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import ExitCode, SinkError
from cdc.records.position import Lsn, Position
from deploy.check import command, runner
from deploy.check.command import lines
from deploy.check.lakehouse import check_lakehouse
from deploy.check.machine import check_machine
from deploy.check.merges import check_merges
from deploy.check.result import Area, CheckReport, CheckResult, Level
from deploy.check.runner import run_parts
from deploy.check.scene import CapturedLog, Scene
from deploy.check.search import check_search
from deploy.check.spark import check_spark
from sinks.run.plan import RunPlan
from sinks.run.plans import lakehouse_plans
from tests.fixtures.checks import NO_KAFKA, described, scenes_of
from tests.fixtures.made_states import streaming

SOURCE = {"host": "127.0.0.1", "port": "1", "user": "u", "dbname": "d", "connect_timeout": "1"}
Make = Callable[..., Scene]


@pytest.fixture
def scene(tmp_path: Path) -> Make:
    def make(capture: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Scene:
        return scenes_of(tmp_path, SOURCE, NO_KAFKA, "t", capture or {}, **sections)()

    return make


def by_name(findings: Iterator[CheckResult]) -> dict[str, CheckResult]:
    return {finding.requirement: finding for finding in findings}


def test_a_file_of_secrets_that_everybody_may_read_is_told_with_the_command(scene: Make) -> None:
    made = scene()
    assert by_name(check_machine(made))["modes of files"].level is Level.OK
    Path(made.config).chmod(0o644)
    finding = by_name(check_machine(made))["modes of files"]
    assert finding.level is Level.WARNING
    assert finding.remedy == f"chmod o-rwx {made.config}"
    Path(made.config).chmod(0o640)
    assert by_name(check_machine(made))["modes of files"].level is Level.OK


def test_a_file_that_the_configuration_takes_a_secret_from_counts_too(
    scene: Make, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o604)
    made = scene(source={"password": f"${{file:{secret}}}"})
    assert by_name(check_machine(made))["modes of files"].remedy == f"chmod o-rwx {secret}"


def test_a_directory_that_takes_no_spill_is_what_a_start_refuses(
    scene: Make, tmp_path: Path
) -> None:
    finding = by_name(check_machine(scene({"spill.directory": str(tmp_path / "none")})))
    assert finding["spill.directory"].level is Level.FAILURE
    assert finding["spill.directory"].exit_code == ExitCode.CONFIG


def test_a_port_that_the_daemon_cannot_have_is_told(scene: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for listen, level in ((taken, Level.UNKNOWN), ("192.0.2.1:1", Level.FAILURE)):
            finding = by_name(check_machine(scene(health={"listen": listen})))["[health] listen"]
            assert finding.level is level
    assert by_name(check_machine(scene(health={"listen": taken})))["[health] listen"].level is (
        Level.OK
    )


def test_what_crosses_the_network_in_plain_text_is_told(scene: Make) -> None:
    findings = check_machine(scene(source={"host": "db.example"}))
    plain = by_name(findings)["plain text"]
    assert plain.level is Level.WARNING
    assert plain.where == "[source]"


def test_a_lakehouse_is_tried_with_a_file_that_is_gone_at_once(scene: Make, tmp_path: Path) -> None:
    made = scene()
    made.tables.settle([])
    before = sorted(tmp_path.rglob("*"))
    found = by_name(check_lakehouse(made))
    assert {each.level for each in found.values()} == {Level.OK}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lakehouse_of_another_prefix_or_log_is_what_a_run_refuses(
    scene: Make, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    position = Position(1, Lsn(9), 0)
    plan = RunPlan(run=1, prefix="t", log="one", cut=position, cut_ts_us=1, ts_ms=1, tables={})

    def applied(of: RunPlan, log: CapturedLog | None) -> CheckResult:
        runs = path / "_millrace" / "runs"
        shutil.rmtree(runs, ignore_errors=True)
        lakehouse_plans(str(path), pytest.fail).start(of)
        made = scene(lakehouse={"path": str(path)})
        made.tables.settle([])
        made.log.settle(log)
        return by_name(check_lakehouse(made))["applied so far"]

    same = CapturedLog(streaming(position), {})
    assert applied(plan, same).level is Level.OK
    assert applied(plan, None).level is Level.UNKNOWN
    other = applied(plan.model_copy(update={"log": "two"}), same)
    assert (other.level, other.exit_code) == (Level.FAILURE, ExitCode.LOG_FORGOTTEN)
    theirs = applied(plan.model_copy(update={"prefix": "q"}), same)
    assert (theirs.level, theirs.exit_code) == (Level.FAILURE, ExitCode.CONFIG)
    assert "the lakehouse belongs to topic.prefix q" in theirs.found


def test_a_delta_table_of_somebody_else_is_what_a_run_refuses(scene: Make, tmp_path: Path) -> None:
    made = scene(lakehouse={"path": str(tmp_path / "lake")})
    made.tables.settle([described("public.t", "id")])
    made.log.settle(CapturedLog(None, {}))
    assert by_name(check_lakehouse(made))["Delta tables"].level is Level.OK
    (tmp_path / "lake" / "public" / "t" / "_delta_log").mkdir(parents=True)
    finding = by_name(check_lakehouse(made))["Delta tables"]
    assert (finding.level, finding.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert "wasn't written by Millrace" in finding.found


def test_a_lakehouse_where_nothing_can_be_made_is_a_failure(scene: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = scene(lakehouse={"path": str(tmp_path / "file" / "lake")})
    made.tables.settle(None)
    finding = by_name(check_lakehouse(made))
    assert finding["writing"].level is Level.FAILURE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes what others couldn't")
def test_a_lakehouse_of_another_user_is_a_failure_for_root(scene: Make, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    os.chown(tmp_path / "lake", 65_534, -1)
    made = scene(lakehouse={"path": str(tmp_path / "lake")})
    made.tables.settle(None)
    finding = by_name(check_lakehouse(made))
    assert "run it as that user: runuser" in finding["writing"].remedy


def test_a_lakehouse_that_only_spark_reaches_is_unknown(scene: Make) -> None:
    made = scene(lakehouse={"path": "s3a://bucket/lake"})
    made.tables.settle(None)
    finding = by_name(check_lakehouse(made))
    assert finding["writing"].level is Level.UNKNOWN


def test_names_that_collide_in_delta_are_told_and_two_of_one_name_refused(scene: Make) -> None:
    plain = described("public.t", "id", "ID", "_millrace_op")
    made = scene()
    made.tables.settle([plain])
    made.log.settle(None)
    finding = by_name(check_lakehouse(made))["names"]
    assert finding.level is Level.WARNING
    assert "ID, _millrace_op get the suffix __2" in finding.found
    same = scene(lakehouse={"tables": [{"source": "public.t", "name": "public.u"}]})
    same.tables.settle([described("public.t", "id"), described("public.u", "id")])
    finding = by_name(check_lakehouse(same))["names"]
    assert (finding.level, finding.exit_code) == (Level.FAILURE, ExitCode.CONFIG)


def test_a_log_that_merges_cannot_read_is_what_they_refuse(scene: Make) -> None:
    made = scene({"decimal.handling.mode": "double"}, search={"url": "http://127.0.0.1:1"})
    for absent in ("search", "lakehouse"):
        settings = made.settings.model_copy(update={absent: None})
        finding = by_name(check_merges(Scene(settings, made.config)))["configuration"]
        assert (finding.level, finding.exit_code) == (Level.FAILURE, ExitCode.CONFIG)
        assert "which these options change: *.handling.mode" in finding.found


def test_without_java_spark_is_a_failure(
    scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = by_name(check_spark(scene()))["Java"]
    assert (finding.level, finding.exit_code) == (Level.FAILURE, ExitCode.SPARK_MISSING)


def test_an_old_java_and_one_without_its_modules_are_failures(
    scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for listed, words in (("java.base@11.0.2", "Java 11"), ("java.base@21", "lacks the module")):
        java.write_text(f"#!/bin/sh\necho {listed}\n")
        java.chmod(0o755)
        assert words in by_name(check_spark(scene()))["Java"].found


def test_too_little_memory_for_spark_is_a_failure(scene: Make) -> None:
    for text, level in (("400m", Level.FAILURE), ("2g", Level.OK), ("lots", Level.FAILURE)):
        findings = by_name(check_spark(scene(spark={"spark.driver.memory": text})))
        assert findings["spark.driver.memory"].level is level


def test_jars_that_are_not_those_of_this_release_are_failures(
    scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_JARS", str(tmp_path))
    assert by_name(check_spark(scene()))["jars"].level is Level.FAILURE
    own = scene(spark={"spark.jars": "/x.jar"})
    assert by_name(check_spark(own))["jars"].level is Level.UNKNOWN


def test_a_search_server_that_is_away_is_one_failure(scene: Make) -> None:
    findings = by_name(check_search(scene(search={"url": "http://127.0.0.1:1"})))
    levels = {name: finding.level for name, finding in findings.items()}
    assert levels == {"connection": Level.FAILURE, "everything else": Level.UNKNOWN}


def test_where_a_real_debezium_captures_its_source_is_none_of_ours(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[set[str]] = []

    def note(parts: Mapping[str, object]) -> list[CheckResult]:
        checked.append({*parts})
        return []

    monkeypatch.setattr(command, "run_parts", note)
    command.checked(scene(lakehouse={"path": "/lake", "topics_written_by": "debezium"}))
    command.checked(scene())
    theirs, own = checked
    assert own - theirs == {"source", "standby"}
    assert "kafka" in theirs


def test_a_part_that_is_late_or_broken_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DEADLINE_S", 0.3)

    def late() -> Iterator[CheckResult]:
        yield Area("late").ok("first", "it is there")
        time.sleep(5)

    def broken() -> Iterator[CheckResult]:
        raise KeyError("a bug")
        yield

    def refused() -> Iterator[CheckResult]:
        raise SinkError("it refuses", remedy="mend it")
        yield

    began = time.monotonic()
    found = run_parts({"late": late, "broken": broken, "refused": refused})
    assert time.monotonic() - began < 3
    assert [(each.part, each.level) for each in found] == [
        ("late", Level.OK),
        ("late", Level.UNKNOWN),
        ("broken", Level.UNKNOWN),
        ("refused", Level.FAILURE),
    ]


def test_problems_come_first_with_remedies_and_names_are_whole() -> None:
    part, name = Area("tables"), "public." + "long_name_" * 12
    error = SinkError(f"table {name} is wrong", where="here", remedy="run this;")
    findings = [part.ok("a", "fine"), part.unknown("b", "because"), part.of_error(name, error)]
    shown = list(lines(CheckReport.of(findings)))
    assert shown[0] == f"failure tables: {name}: table {name} is wrong (here)\n    → run this;"
    assert shown[1].startswith("unknown tables: b")
    assert shown[-1] == "failures: 1, warnings: 0, unknown: 1, ok: 1"


def test_control_characters_of_others_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = Area("tables").warning("a\x1b[2Jb", "x\nfailure y\x07", "z\u202e")
    monkeypatch.setattr(command, "checked", lambda _: CheckReport.of([evil]))
    made = scene()
    for words in ({}, {"json": True}):
        command.check(Path(made.config), **words)
        shown = capsys.readouterr().out
        assert not set(shown) & set("\x1b\x07\u202e")
        assert not any(line.startswith("failure y") for line in shown.splitlines())
    assert json.loads(shown)["counts"]["warning"] == 1
