"""A daemon and `merge --follow` as their own processes, killed and stopped: tables keep up.

Their configuration has secrets, and other users can read none of them.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.processes import Process
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.secrets import arguments_seen, assert_no_secret, sections_with_secrets

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("jvms"),
    pytest.mark.timeout(600),  # it starts two JVMs, one after the other
]
ROWS = 100
OTHERS = ("first", "last")


def shows(folder: Path, total: int, column: str = "v") -> bool:
    """Whether a reader without Spark sees all rows once, with values that add up to so much."""
    try:
        table = DeltaTable(folder)
    except TableNotFoundError:
        return False
    if column not in [field.name for field in table.schema().fields]:
        return False
    sql = f"SELECT count(*) AS rows, sum({column}) AS total FROM t"
    answer = QueryBuilder().register("t", table).execute(sql).read_all()
    return (answer["rows"][0].as_py(), answer["total"][0].as_py()) == (ROWS, total)


def once_changed(folder: Path, is_reached: Callable[[], bool]) -> Callable[[], bool]:
    """Whether so much is reached; a table without a new commit since isn't read again."""
    commits_seen = 0

    def look() -> bool:
        nonlocal commits_seen
        commits = len(list((folder / "_delta_log").glob("*.json")))
        is_new, commits_seen = commits > commits_seen, commits
        return is_new and is_reached()

    return look


def under_way(runs: Path, events_min: int = 0) -> bool:
    """Whether a run has made its plan, with so many events, and hasn't finished it.

    One without any has seen only records that came behind its cut.
    """
    plans = {path.name for path in runs.iterdir() if path.name[0].isdigit()}
    return any(
        sum(table["events"] for table in json.loads((runs / name).read_text())["tables"].values())
        >= events_min
        for name in plans
        if len(name) == 25 and name.replace(".json", ".done.json") not in plans
    )


@pytest.mark.parametrize(
    "is_late", few([False, True], False), ids=["killed in its first run", "killed later"]
)
def test_tables_keep_up_whatever_becomes_of_the_merge(
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    tmp_path: Path,
    is_late: bool,
) -> None:
    events = tmp_path / "events"
    made = pipeline(sections=sections_with_secrets(events))
    lakehouse = made.folder / "lakehouse"
    table, runs = lakehouse / "public" / "item", lakehouse / "_millrace" / "runs"

    def follow() -> Process:
        merge = made.follow()
        made.daemons.append(merge)
        return merge

    def wait_until_shown(total: int, column: str = "v") -> None:
        merge.wait_until(once_changed(table, partial(shows, table, total, column)))

    with (
        arguments_seen() as seen,
        psycopg.connect(make_conninfo(**database), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO item SELECT i, 0 FROM generate_series(1, %s) i", [ROWS])
        for other in OTHERS:
            connection.execute(f"CREATE TABLE {other} AS SELECT * FROM item")
            connection.execute(f"ALTER TABLE {other} ADD PRIMARY KEY (id)")
        made.start()
        merge = follow()  # before there is a log
        if is_late:
            wait_until_shown(0)
            connection.execute("ALTER TABLE item ADD COLUMN w int NOT NULL DEFAULT 7")
        else:
            merge.wait_until(lambda: runs.is_dir() and under_way(runs, ROWS))
        connection.execute("UPDATE item SET v = v + 1 WHERE id = 1")
        if is_late:
            wait_until_shown(1)
            wait_until_shown(7 * ROWS, "w")  # all rows were read again
        connection.execute("UPDATE item SET v = v + 1")
        merge.kill()
        merge = follow()
        wait_until_shown(1 + ROWS)
        merge.wait_until(lambda: not under_way(runs))
        with connection.transaction():
            for name in ("item", *OTHERS):
                connection.execute(f"UPDATE {name} SET v = v + 1")
        merge.wait_until(partial(under_way, runs, ROWS))
    assert made.stop(merge) == ExitCode.OK, "it isn't cut short"
    assert under_way(runs), "the tables in hand are done, and others aren't"
    if is_late:  # as in the other case's second JVM
        merged = made.millrace("merge", "lakehouse")
        assert merged.returncode == ExitCode.OK, merged.stdout + merged.stderr
        assert "which was interrupted" in merged.stdout
        assert not under_way(runs)
        assert shows(table, 1 + 2 * ROWS)
        assert all(shows(lakehouse / "public" / other, ROWS) for other in OTHERS)
    output = [path.read_text() for path in made.folder.glob("*.log")]
    assert_no_secret(seen, events, lakehouse, *output)
