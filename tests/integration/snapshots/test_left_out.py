"""A publication that was made again, or another one, and an existing log → the captured tables.

An uncapturable table is never published. A table that a user removed stays removed, and is
reported.
"""

from collections.abc import Callable

import pytest

from cdc.errors import ExitCode
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run, session
from tests.integration.snapshots.test_publication import (
    ITEM,
    ZZ,
    is_logged,
    publication,
    reasons,
)
from tests.integration.snapshots.test_while_streaming import state, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
COPIED = "CREATE TABLE copied AS SELECT 1 AS id"


def begin_anew(made: RunningPipeline) -> None:
    begun = made.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr


def test_a_publication_that_is_made_again_leaves_out_what_cannot_be_captured(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline()
    daemon = made.catch_up()
    run(database, COPIED)
    wait_for(lambda: "copied" in reasons(made))
    assert made.stop(daemon) == 0
    assert made.millrace("drop", "--yes").returncode == 0
    begin_anew(made)
    daemon = made.start()
    wait_for(lambda: is_logged(made, database, "item") or not daemon.running)
    run(database, "UPDATE copied SET id = 3")  # it isn't published
    assert "REPLICA IDENTITY FULL" in reasons(made)["copied"]
    run(database, "ALTER TABLE copied ADD PRIMARY KEY (id)")
    wait_for(lambda: is_logged(made, database, "copied"))
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_what_somebody_took_out_is_set_aside_in_a_new_epoch(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM, *ZZ)
    made = pipeline()
    assert made.stop(made.catch_up()) == 0
    run(database, f"ALTER PUBLICATION {publication(made)} DROP TABLE zz")
    begin_anew(made)
    daemon = made.start()
    wait_for(lambda: "zz" in reasons(made) or not daemon.running)
    wait_for(lambda: is_logged(made, database, "item") or not daemon.running)
    add = f"ALTER PUBLICATION {publication(made)} ADD TABLE ONLY public.zz;"
    assert add in reasons(made)["zz"]
    run(database, add, "DELETE FROM zz WHERE id = 1")
    wait_for(lambda: is_logged(made, database, "zz"))
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_new_table_that_is_locked_is_published_later(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline()
    assert made.stop(made.catch_up()) == 0
    run(database, *ZZ)
    with session(database) as opened:
        opened.execute("BEGIN; LOCK TABLE public.zz IN SHARE MODE")
        daemon = made.catch_up()
        assert "can't add a table to the publication yet" in daemon.command.log.read_text()
        assert state(made, "zz") is None, "it isn't set aside for that"
    wait_for(lambda: is_logged(made, database, "zz"))
    assert made.stop(daemon) == 0


def test_another_name_of_the_publication_is_told_and_the_old_one_goes_on(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM, *ZZ)
    made = pipeline(**{"publication.name": "first"})
    assert made.stop(made.catch_up()) == 0
    run(database, "INSERT INTO item VALUES (6, 6, 'g')")
    other = pipeline(**{"publication.name": "other", "snapshot.mode": "when_needed"})
    for command in (["run"], ["snapshot", "public.zz"]):
        ended = other.millrace(*command, timeout_s=120)
        assert ended.returncode == ExitCode.PUBLICATION, ended.stderr
        assert "set publication.name = first again" in ended.stderr
    made = pipeline(**{"publication.name": "first"})
    daemon = made.start()
    wait_for(lambda: is_logged(made, database, "item") or not daemon.running)
    states = made.tables()
    assert {each.epoch for each in states} == {1}
    assert made.stop(daemon) == 0
