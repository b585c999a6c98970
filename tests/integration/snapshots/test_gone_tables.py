"""Tables that are dropped or renamed: the old name ends, and a new name is read."""

from collections.abc import Callable

import pytest

from cdc.records.state import Phase
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import PUBLICATION, differing, is_settled
from tests.integration.snapshots.test_while_streaming import ITEM, PAGES, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
OWN = {"publication.autocreate.mode": "disabled", "publication.name": PUBLICATION}
TABLES = ("item", "left_out", "dropped", "replaced", "own.moved", "named.kept")
AWAY = (
    "ALTER TABLE item RENAME TO thing",
    "DELETE FROM thing WHERE id = 3",
    "ALTER TABLE left_out RENAME TO other_one",
    "DROP TABLE dropped, replaced",
    "CREATE TABLE replaced (id int)",
    "CREATE VIEW dropped AS SELECT 1 AS id",
    "ALTER TABLE own.moved SET SCHEMA public",
    "INSERT INTO moved VALUES (10, 'new')",
    "ALTER SCHEMA named RENAME TO renamed",
)
NEW_NAMES = {
    "public.item": "public.thing",
    "public.left_out": "public.other_one",
    "public.dropped": "",
    "own.moved": "public.moved",
    "named.kept": "renamed.kept",
}
BACK = ("ALTER TABLE thing RENAME TO item", "DELETE FROM item WHERE id = 4")


@pytest.mark.parametrize(
    ("of_all", "is_streaming"),
    [
        pytest.param(True, True, id="all tables, while streaming"),
        pytest.param(False, False, id="some tables, while it is down", marks=pytest.mark.proof),
        pytest.param(True, False, id="all tables, while it is down", marks=pytest.mark.proof),
        pytest.param(False, True, id="some tables, while streaming", marks=pytest.mark.proof),
    ],
)
def test_a_table_goes_on_under_its_new_name_and_its_old_one_is_gone(
    pipeline: MakePipeline, database: Conninfo, of_all: bool, is_streaming: bool
) -> None:
    run(database, "CREATE SCHEMA own", "CREATE SCHEMA named")
    for table in TABLES:
        run(
            database,
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 9) i",
        )
    published = "ALL TABLES" if of_all else f"TABLE {', '.join(TABLES)}"
    run(database, f"CREATE PUBLICATION {PUBLICATION} FOR {published}")
    # Of all tables, the one in the place of another would be read.
    left_out = "public.other_one" + (",public.replaced" if of_all else "")
    made = pipeline(**OWN, **{"table.exclude.list": left_out})
    daemon = made.catch_up()

    def after(*statements: str) -> None:
        nonlocal daemon
        if not is_streaming:
            assert made.stop(daemon) == 0
        run(database, *statements)
        if not is_streaming:
            daemon = made.start()

    def is_whole(table: str) -> bool:
        there = {str(state.name): state for state in made.tables()}.get(table)
        return there is not None and there.phase is Phase.STREAMING and not there.gone_ms

    after(*AWAY)
    new_names = NEW_NAMES | ({} if of_all else {"public.replaced": ""})

    def gone() -> dict[str, str]:
        return {str(state.name): state.renamed_to for state in made.tables() if state.gone_ms}

    wait_for(lambda: gone() == new_names)
    wait_for(lambda: all(map(is_whole, ("public.thing", "public.moved", "renamed.kept"))))
    made.wait_until_logged(made.wal_end(), daemon)
    assert differing(made, database, ["thing", "moved"]) == []
    assert "public.other_one" not in [str(state.name) for state in made.tables()]
    taken = [str(state.name) for state in made.tables() if state.is_name_taken]
    assert sorted(taken) == ["public.dropped", *([] if of_all else ["public.replaced"])]
    shown = made.status()
    assert {t["table"]: t["renamed_to"] for t in shown["tables"] if t["gone_since_ms"]} == new_names
    log = daemon.command.log.read_text()
    assert "the lists leave the new name out" in log
    assert "a table was dropped" in log

    after(*BACK)
    wait_for(lambda: gone().get("public.thing") == "public.item" and is_whole("public.item"))
    wait_for(lambda: is_settled(made.tables()) and differing(made, database, ["item"]) == [])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_table_that_is_dropped_while_it_is_read_is_gone(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    slow = {"snapshot.max.threads": 1, "snapshot.rows.per.second.max": 500}
    made = pipeline(**PAGES, **slow, **{"snapshot.transaction.max.ms": 0})
    daemon = made.start()
    wait_for(lambda: any(state.pages_done for state in made.tables()))
    run(database, "DROP TABLE item")
    wait_for(lambda: all(state.is_left_unread and state.gone_ms for state in made.tables()))
    (shown,) = made.status()["tables"]
    assert shown["left_unread"]
    assert shown["gone_since_ms"]
    assert made.stop(daemon) == 0
