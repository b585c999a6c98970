"""A real search server → the findings of `check` on names of indexes, fields and shards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch as Client

from cdc.errors import ExitCode
from cdc.records.position import Lsn, Position
from deploy.check.result import CheckResult, Level
from deploy.check.scene import CapturedLog, Scene
from deploy.check.search import check_search
from deploy.local.opensearch import OpenSearch
from sinks.run.plan import RunPlan
from sinks.run.summary import RunOutcome
from sinks.search.progress import Ledger, RunRecord
from tests.fixtures.checks import NO_KAFKA, described, left_plan, scenes_of, stuck_log
from tests.fixtures.made_states import streaming

SOURCE = {"host": "127.0.0.1", "port": "1", "user": "u", "dbname": "d"}
Make = Callable[..., Scene]


@pytest.fixture
def scene(tmp_path: Path, opensearch: OpenSearch, index_prefix: str) -> Make:
    def make(**search: Any) -> Scene:
        own = {"url": opensearch.url, "index.prefix": f"{index_prefix}.", **search}
        return scenes_of(tmp_path, SOURCE, NO_KAFKA, "t", {}, search=own)()

    return make


def test_an_index_of_somebody_else_and_one_of_another_log_are_failures(
    scene: Make, opensearch: OpenSearch, index_prefix: str
) -> None:
    client, prefix = Client(opensearch.url), f"{index_prefix}."
    made = scene()
    ledger = Ledger(client, prefix, made.settings.capture.topic_prefix)
    ledger.create()
    position = Position(1, Lsn(9), 0)
    plan = RunPlan(run=1, prefix="t", log="one", cut=position, cut_ts_us=1, ts_ms=1, tables={})
    ledger.write(ledger.run_id, RunRecord(plan=plan), {"op_type": "create"})
    client.indices.create(index=f"{prefix}public.t")
    client.indices.create(index=f"{prefix}public.u-1", body={"aliases": {f"{prefix}public.u": {}}})
    made.tables.settle([described(f"public.{name}", "id") for name in "tuv"])
    for log, level in (("one", Level.OK), ("two", Level.FAILURE)):
        again = scene()
        again.tables.settle(made.tables.get())
        again.log.settle(CapturedLog(streaming(position, log=log), {}))
        found = list(check_search(again))
        (applied,) = (each for each in found if each.requirement == "applied so far")
        assert applied.level is level
        theirs = [each for each in found if each.requirement == "indexes of others"]
        assert [each.level for each in theirs] == [Level.FAILURE] * 2
        for name, each in zip(("public.t", "public.u-1"), theirs, strict=True):
            assert f"belongs to an index of another program: {prefix}{name}" in each.found


def look(scene: Scene) -> dict[str, CheckResult]:
    return {finding.requirement: finding for finding in check_search(scene)}


def test_a_server_in_order_is_ok_and_has_no_new_index(scene: Make, opensearch: OpenSearch) -> None:
    client = Client(opensearch.url)
    before = sorted(client.indices.get(index="*"))
    made = scene()
    made.tables.settle([described("public.t", "id", "note")])
    made.log.settle(CapturedLog(None, {}))
    found = look(made)
    assert {name: each.level for name, each in found.items()} == dict.fromkeys(found, Level.OK)
    assert {"connection", "version", "rights", "blocks", "health", "fields", "shards"} < {*found}
    assert sorted(client.indices.get(index="*")) == before


def test_an_index_whose_table_nobody_reads_again_is_what_a_run_refuses(
    scene: Make, opensearch: OpenSearch, index_prefix: str
) -> None:
    made, client = scene(), Client(opensearch.url)
    ledger = Ledger(client, f"{index_prefix}.", made.settings.capture.topic_prefix)
    ledger.create()
    record = RunRecord(plan=left_plan(), outcome=RunOutcome(run=3, ts_ms=1, failed={}))
    ledger.write(ledger.run_id, record, {"op_type": "create"})
    made.tables.settle([described("public.t", "id")])
    made.log.settle(stuck_log())
    line = look(made)["derived tables"]
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.SINK)
    assert line.remedy == "millrace snapshot --reset public.t"


def test_names_that_collide_in_the_index_and_limits_are_failures(scene: Make) -> None:
    made = scene(
        indexes=[{"table": "public.w", "settings": {"index": {"mapping.total_fields.limit": 1}}}]
    )
    tables = [
        described("public.A", "id"),
        described("public.a", "id"),
        described("public.f", "a.b", "a_b"),
        described("public.w", "id", "v"),
    ]
    made.tables.settle(tables)
    found = list(check_search(made))
    told = [each.found for each in found if each.level is Level.FAILURE]
    assert any("table public.A would share the index" in each for each in told)
    assert any("two columns would share the field 'a_b'" in each for each in told)
    assert any("table public.w has 2 columns, more than the limit" in each for each in told)


def test_an_index_that_is_read_only_is_a_failure(
    scene: Make, opensearch: OpenSearch, index_prefix: str
) -> None:
    client, name = Client(opensearch.url), f"{index_prefix}.x"
    client.indices.create(index=name, body={"settings": {"index.blocks.write": True}})
    try:
        made = scene()
        made.tables.settle([])
        blocks = look(made)["blocks"]
        assert blocks.level is Level.FAILURE
        assert f"{name} has index.blocks.write" in blocks.found
    finally:
        client.indices.delete(index=name)
