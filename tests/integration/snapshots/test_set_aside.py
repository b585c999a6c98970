"""A table with unusable changes is set aside; all others stream on, and it comes back.

Each case makes a table one that a first start would refuse, writes to it as far as PostgreSQL
allows, and undoes it. Then the log adds up to the source's rows.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from deploy.local.processes import reserve_port
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import (
    PUBLICATION,
    differing,
    is_settled,
)
from tests.integration.snapshots.test_while_streaming import PAGES, state, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
OF_ALL = {"publication.autocreate.mode": "disabled", "publication.name": PUBLICATION}


class Case(NamedTuple):
    """DDL of a table ``{t}``; ``meanwhile`` is what is written then, ``undo`` the way back."""

    begin: tuple[str, ...]
    trouble: tuple[str, ...]
    meanwhile: tuple[str, ...]
    undo: tuple[str, ...]


INSERT = "INSERT INTO {t} VALUES (20, 120, 'meanwhile')"
CHANGES = (INSERT, "UPDATE {t} SET id = id + 100 WHERE id = 5", "DELETE FROM {t} WHERE id = 3")
KEYED = ("ALTER TABLE {t} ADD PRIMARY KEY (id)",)
DEFAULT = ("ALTER TABLE {t} REPLICA IDENTITY DEFAULT",)
BY_ID = (
    "ALTER TABLE {t} ADD CONSTRAINT {t}_by_id UNIQUE (id)",
    "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_by_id",
)
CASES = {
    "nothing": Case(KEYED, ("ALTER TABLE {t} REPLICA IDENTITY NOTHING",), (INSERT,), DEFAULT),
    "by_index": Case(
        KEYED, ("ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_k_key",), CHANGES, DEFAULT
    ),
    "no_index": Case(BY_ID, ("ALTER TABLE {t} DROP CONSTRAINT {t}_by_id",), (INSERT,), BY_ID),
    "no_key": Case(KEYED, ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",), (INSERT,), KEYED),
    "whole_rows": Case(
        KEYED,
        ("ALTER TABLE {t} REPLICA IDENTITY FULL", "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey"),
        (*CHANGES, "INSERT INTO {t} VALUES (20, 121, 'twice')", "DELETE FROM {t} WHERE k = 121"),
        KEYED,
    ),
}
PARTITIONED = (
    "CREATE TABLE parts (id int, k int NOT NULL, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (200)",
    "ALTER TABLE low ALTER v SET STORAGE EXTERNAL",
    "INSERT INTO parts SELECT i, i, repeat('p', 3000) FROM generate_series(1, 19) i",
    "CREATE UNIQUE INDEX low_k ON low (k)",
)
PARTITION = Case(
    PARTITIONED,
    ("ALTER TABLE low REPLICA IDENTITY USING INDEX low_k",),
    (
        "UPDATE parts SET k = k + 1000 WHERE id = 1",  # without its key, and its large value
        "DELETE FROM parts WHERE id = 3",
        "UPDATE parts SET id = 3 WHERE id = 8",
    ),
    ("ALTER TABLE low REPLICA IDENTITY DEFAULT",),
)
TABLES = [*CASES, "parts"]
LAST = "DELETE FROM {t} WHERE id = 7"
"""Right behind the way back, where the table may be set aside still."""


@pytest.fixture
def tables(database: Conninfo) -> list[str]:
    """The tables of all cases, and ``other``, which nothing happens to."""
    for name, case in CASES.items():
        run(
            database,
            f"CREATE TABLE {name} (id int NOT NULL, k int NOT NULL UNIQUE, v text)",
            *(statement.replace("{t}", name) for statement in case.begin),
            f"INSERT INTO {name} SELECT i, 100 - i, 'v' FROM generate_series(1, 9) i",
        )
    run(database, *PARTITIONED, "CREATE TABLE other (id int PRIMARY KEY)")
    run(database, "INSERT INTO other VALUES (1)")
    return TABLES


def make_trouble(database: Conninfo) -> None:
    for name, case in [*CASES.items(), ("parts", PARTITION)]:
        steps = (*case.trouble, *case.meanwhile)
        run(database, *(step.replace("{t}", name) for step in steps))


def undo(database: Conninfo) -> None:
    for name, case in [*CASES.items(), ("parts", PARTITION)]:
        steps = (*case.undo, LAST)
        run(database, *(step.replace("{t}", name) for step in steps))


def aside(made: RunningPipeline) -> set[str]:
    return {each.table for each in made.tables() if each.is_set_aside}


def difference(made: RunningPipeline, database: Conninfo, tables: list[str]) -> list[object]:
    """The tables that differ, each with the rows that one side alone has."""
    return [
        (
            table,
            [row for row in actual if row not in expected],
            [row for row in expected if row not in actual],
        )
        for table, actual, expected in differing(made, database, tables)
    ]


def wait_until_equal(made: RunningPipeline, database: Conninfo, tables: list[str]) -> None:
    def are_equal() -> bool:
        return is_settled(made.tables()) and not differing(made, database, tables)

    deadline = time.monotonic() + 120
    while not are_equal():
        assert time.monotonic() < deadline, difference(made, database, tables)
        time.sleep(0.3)


@pytest.mark.parametrize(
    "is_streaming", few([True, False], True), ids=["while streaming", "while it is down"]
)
def test_a_table_without_its_key_is_set_aside_and_comes_back(
    pipeline: MakePipeline, database: Conninfo, tables: list[str], is_streaming: bool
) -> None:
    port = reserve_port()
    made = pipeline(sections={"health": {"listen": f"127.0.0.1:{port}"}})
    daemon = made.catch_up()
    before = {table: len(records_of(made, table)) for table in tables}
    if not is_streaming:  # what was written before it is in the log all the same
        assert made.stop(daemon) == 0
        run(database, *(f"INSERT INTO {table} VALUES (30, 130, 'before')" for table in CASES))
        before |= {table: before[table] + 1 for table in CASES}
    make_trouble(database)
    run(database, "INSERT INTO other VALUES (2)")
    daemon = daemon if is_streaming else made.start()
    wait_for(lambda: aside(made) == set(tables) or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    assert {table: len(records_of(made, table)) for table in CASES} == {
        table: before[table] for table in CASES
    }
    tell_of_it(made, port)
    undo(database)
    wait_until_equal(made, database, [*tables, "other"])
    assert daemon.running, daemon.command.log_end()
    assert made.stop(daemon) == 0


def records_of(made: RunningPipeline, table: str) -> list[object]:
    return [record for record in made.log() if record.topic.endswith(f".public.{table}")]


def readiness(port: int) -> dict[str, Any]:
    """What health says once the daemon is ready; nothing before."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready") as answer:
            report: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError:
        return {}
    return report


def tell_of_it(made: RunningPipeline, port: int) -> None:
    """What status, health and metrics say."""
    answer = made.status()
    shown = {table["table"]: table for table in answer["tables"]}
    assert shown["public.by_index"]["set_aside"]
    assert "REPLICA IDENTITY DEFAULT" in shown["public.by_index"]["doubt"]
    assert not shown["public.other"]["set_aside"]
    wait_for(lambda: readiness(port).get("ready"))
    report = readiness(port)
    assert report["degraded"]
    assert report["set_aside"].keys() == {f"public.{table}" for table in TABLES}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'millrace_table_set_aside{table="public.nothing"} 1.0' in metrics
    assert 'millrace_table_doubtful{table="public.nothing"} 1.0' in metrics
    assert 'millrace_table_set_aside{table="public.other"} 0.0' in metrics


@pytest.mark.proof
def test_what_was_undone_while_it_is_down_is_read_again(
    pipeline: MakePipeline, database: Conninfo, tables: list[str]
) -> None:
    """The WAL has updates without a key, and the catalog says nothing of it any more."""
    made = pipeline()
    assert made.stop(made.catch_up()) == 0
    make_trouble(database)
    undo(database)
    daemon = made.start()
    wait_until_equal(made, database, [*tables, "other"])
    assert made.stop(daemon) == 0


@pytest.fixture
def pair(database: Conninfo) -> list[str]:
    """Two tables, of some pages each."""
    for name in ("one", "two"):
        run(
            database,
            f"CREATE TABLE {name} (id int PRIMARY KEY, k int NOT NULL UNIQUE, v text)",
            f"INSERT INTO {name} SELECT i, i, repeat('x', 300) FROM generate_series(1, 1000) i",
        )
    return ["one", "two"]


def turn_to_index(database: Conninfo, tables: list[str]) -> None:
    for name in tables:
        run(
            database,
            f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_k_key",
            f"UPDATE {name} SET id = -id WHERE id % 100 = 5",
            f"DELETE FROM {name} WHERE id % 10 = 3",
        )


def turn_back(database: Conninfo, tables: list[str]) -> None:
    for name in tables:
        run(
            database,
            f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT",
            f"DELETE FROM {name} WHERE id % 10 = 7",
        )


@pytest.mark.proof
def test_a_death_behind_it_and_one_in_the_read_lose_nothing(
    pipeline: MakePipeline, database: Conninfo, pair: list[str]
) -> None:
    made = pipeline(**PAGES)
    daemon = made.catch_up()
    turn_to_index(database, pair)
    wait_for(lambda: aside(made) == set(pair))
    daemon.kill()
    turn_to_index(database, pair)
    turn_back(database, pair)
    daemon = made.start({VARIABLE: f"{FaultPoint.CHUNK_TAKEN}:3"})
    assert daemon.wait(60) != 0
    daemon = made.start()
    wait_until_equal(made, database, pair)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_trouble_that_comes_back_in_the_read_is_found_again(
    pipeline: MakePipeline, database: Conninfo, pair: list[str]
) -> None:
    made = pipeline(**PAGES, **{"snapshot.rows.per.second.max": 1_000, "snapshot.max.threads": 1})
    daemon = made.catch_up()
    turn_to_index(database, pair)
    wait_for(lambda: aside(made) == set(pair))
    turn_back(database, pair)
    wait_for(lambda: any(each.initial and each.pages_done for each in made.tables()))
    turn_to_index(database, pair)
    wait_for(lambda: aside(made) == set(pair))
    turn_back(database, pair)
    wait_until_equal(made, database, pair)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_table_that_is_dropped_or_swapped_while_it_is_set_aside_ends_nothing(
    pipeline: MakePipeline, database: Conninfo, pair: list[str]
) -> None:
    run(database, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    made = pipeline(**OF_ALL)
    daemon = made.catch_up()
    turn_to_index(database, pair)
    wait_for(lambda: aside(made) == set(pair))
    run(database, "DROP TABLE one, two", "CREATE TABLE two AS SELECT 1 AS id, 2 AS k, 'x' AS v")
    wait_for(lambda: (found := state(made, "one")) and found.gone_ms)
    assert made.stop(daemon) == 0
    daemon = made.start()
    run(database, "ALTER TABLE two ADD PRIMARY KEY (id)")
    wait_for(lambda: "two" not in aside(made))
    wait_until_equal_but(made, database, "one", ["two"])
    assert made.stop(daemon) == 0


def wait_until_equal_but(
    made: RunningPipeline, database: Conninfo, gone: str, tables: list[str]
) -> None:
    def are_equal() -> bool:
        states = [each for each in made.tables() if each.table != gone]
        return is_settled(states) and not differing(made, database, tables)

    wait_for(are_equal)


@pytest.mark.proof
def test_by_policy_the_command_brings_it_back(
    pipeline: MakePipeline, database: Conninfo, pair: list[str]
) -> None:
    made = pipeline(**{"doubt.policy": "set_aside"})
    daemon = made.catch_up()
    turn_to_index(database, pair)
    wait_for(lambda: aside(made) == set(pair))
    asked = made.millrace("snapshot", "--reset", "public.one")
    assert asked.returncode == ExitCode.NOT_DONE
    turn_back(database, pair)
    wait_for(lambda: all(each.doubt and each.doubt.refused for each in made.tables()))
    shown = made.status()["tables"]
    assert {table["not_reread"] for table in shown} == {"doubt.policy is set_aside"}
    assert aside(made) == set(pair)
    for name in pair:
        assert made.millrace("snapshot", "--reset", f"public.{name}").returncode == 0
    wait_until_equal(made, database, pair)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_new_table_that_cannot_be_captured_ends_nothing_and_joins_when_it_can(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    run(database, "CREATE TABLE a_b (id int PRIMARY KEY)", 'CREATE SCHEMA "dotted.name"')
    run(database, "CREATE SCHEMA app", "CREATE TABLE app.user_roles (id int PRIMARY KEY)")
    made = pipeline(**OF_ALL)
    daemon = made.catch_up()
    run(
        database,
        "CREATE TABLE copied AS SELECT i AS id FROM generate_series(1, 5) i",
        'CREATE TABLE "a b" (id int PRIMARY KEY)',
        'CREATE TABLE "dotted.name".t (id int PRIMARY KEY)',
        "CREATE SCHEMA app_user",
        "CREATE TABLE app_user.roles (id int PRIMARY KEY)",
        "BEGIN; CREATE TABLE by_index (id int PRIMARY KEY, k int NOT NULL UNIQUE);"
        " ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k_key; COMMIT",
        'INSERT INTO "a b" VALUES (1)',
        "INSERT INTO by_index VALUES (1, 1)",
        'INSERT INTO "dotted.name".t VALUES (1)',
    )
    refused = {"copied", "a b", "t", "roles", "by_index"}
    wait_for(lambda: aside(made) == refused or not daemon.running)
    run(database, "INSERT INTO a_b VALUES (1)")
    wait_for(lambda: not differing(made, database, ["a_b"]))
    assert made.stop(daemon) == 0
    run(database, "CREATE TABLE late AS SELECT 1 AS id")
    run(database, *(f'CREATE TABLE "{name}" (id int PRIMARY KEY)' for name in ("x y", "x_y")))
    daemon = made.catch_up()
    assert aside(made) == {*refused, "late", "x_y"}
    run(
        database,
        "ALTER TABLE copied ADD PRIMARY KEY (id)",
        'ALTER TABLE "a b" RENAME TO a_c',
        'DROP TABLE "dotted.name".t, late',
        "ALTER TABLE app_user.roles RENAME TO role",
        "ALTER TABLE by_index REPLICA IDENTITY DEFAULT",
        "DROP TABLE x_y",
        "INSERT INTO copied VALUES (6)",
    )
    wait_until_equal(made, database, ["a_b", "a_c", "copied", "by_index"])
    there = {"a_b", "a_c", "copied", "by_index", "user_roles", "role", "x y"}
    wait_for(lambda: {each.table for each in made.tables()} == there)
    assert made.stop(daemon) == 0


def test_an_impossible_table_that_a_new_configuration_names_is_set_aside(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE loose (v int)")
    run(database, "INSERT INTO loose VALUES (1)")
    made = pipeline(**{"table.include.list": "public.item"})
    assert made.stop(made.catch_up()) == 0
    more = pipeline(**{"table.include.list": "public.item,public.loose"})
    daemon = more.start()
    wait_for(lambda: aside(more) == {"loose"})
    assert "ALTER TABLE public.loose REPLICA IDENTITY FULL" in daemon.command.log.read_text()
    run(database, "UPDATE loose SET v = 2")  # for it isn't published
    assert more.stop(daemon) == 0
