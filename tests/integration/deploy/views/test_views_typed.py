"""Views as a user types them: merged, queried at cuts, awaited, compacted and rebuilt."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from cdc.errors import ExitCode
from tests.fixtures.command_line import CommandLine
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run
from tests.fixtures.spark import SPARK

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark, pytest.mark.proof]
BY_KIND: Final = {
    "name": "by_kind",
    "query": "SELECT title, count(*) AS orders FROM orders JOIN kinds USING (kind) GROUP BY 1",
}
BUSY: Final = {"name": "busy", "query": "SELECT title FROM by_kind WHERE orders > 1"}
BROKEN: Final = {"name": "broken", "query": "SELECT\n  nothing FROM orders"}
COUNTS: Final = "SELECT title, orders FROM by_kind"


@pytest.mark.timeout(900)
def test_views_follow_the_source_and_are_queried_at_each_cut(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], typed: CommandLine
) -> None:
    run(
        database,
        "CREATE TABLE kinds (kind int PRIMARY KEY, title text)",
        "CREATE TABLE orders (id int PRIMARY KEY, kind int)",
        "INSERT INTO kinds VALUES (1, 'book'), (2, 'pen')",
        "INSERT INTO orders VALUES (1, 1), (2, 1), (3, 2)",
    )
    sections: dict[str, Any] = {"spark": SPARK, "views": [BUSY, BY_KIND]}
    made = pipeline(sections=sections)
    daemon = made.catch_up()

    def ok(*words: str) -> str:
        done = typed(made.config, *words)
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr
        return done.stdout

    def rows(sql: str, at: str = "latest") -> list[str]:
        return sorted(ok("query", "-f", "csv", "--at", at, sql).splitlines()[1:])

    busy = "SELECT title FROM views.busy"
    assert "2 of 2 views" in ok("merge", "all")
    assert (rows(COUNTS), rows(busy)) == (["book,2", "pen,1"], ["book"])

    run(database, "UPDATE orders SET kind = 2 WHERE id = 2", "INSERT INTO kinds VALUES (3, 'ink')")
    made.wait_until_logged(made.wal_end(), daemon)
    ok("merge", "lakehouse")
    early = typed(made.config, "query", COUNTS)
    assert early.returncode == ExitCode.SINK
    assert "view by_kind: no run of views has this cut: `millrace merge views`" in early.stderr
    ok("merge", "views")
    assert (rows(COUNTS), rows(busy)) == (["book,1", "pen,2"], ["pen"])
    assert rows(COUNTS, "1") == ["book,2", "pen,1"]
    assert typed(made.config, "merge", "views").returncode == ExitCode.NOTHING_TO_DO
    ok("wait", "--now", "--timeout", "60s")
    (views,) = [s for s in json.loads(ok("status", "--json"))["sinks"] if s["sink"] == "views"]
    assert (views["sink_lag"]["seconds"], views["failed"]) == (0.0, {})

    ok("compact", "lakehouse")
    ok("rebuild", "view", "by_kind")
    assert (rows(COUNTS), rows(COUNTS, "1")) == (["book,1", "pen,2"], ["book,2", "pen,1"])

    made = pipeline(sections=sections | {"views": [BUSY, BROKEN, BY_KIND]})
    run(database, "DELETE FROM orders WHERE id = 1")
    made.wait_until_logged(made.wal_end(), daemon)
    failed = typed(made.config, "merge", "all")
    assert failed.returncode == ExitCode.CONFIG
    assert "2 of 3 views" in failed.stdout
    assert failed.stdout.splitlines()[-1].endswith("FAILED: broken")
    assert rows(COUNTS) == ["pen,2"]
    named = typed(made.config, "query", "SELECT * FROM broken")
    assert named.returncode == ExitCode.SINK
    assert "view broken: " in named.stderr
    assert "nothing" in named.stderr
    checked = typed(made.config, "views", "check")
    assert "by_kind: kept by its changes\n" in checked.stdout, checked.stderr
    assert "PROBLEM views, broken: " in ok("status")
    made.stop(daemon)
