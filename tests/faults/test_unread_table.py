"""A table that appears in the stream unread: its rows are read first, if it still exists."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.pipeline import RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def test_a_table_renamed_while_running_is_read_whole_under_its_new_name(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO item VALUES (1, 'before')")
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        connection.execute("ALTER TABLE item RENAME TO thing")
        connection.execute("INSERT INTO thing VALUES (2, 'after')")
        # It joins once the stream has come to the WAL's end.
        daemon.wait_until(lambda: any(state.table == "thing" for state in made.tables()))
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    records = [record for record in made.log() if record.topic == f"{topic_prefix}.public.thing"]
    assert sorted(row["v"] for row in state_of(records).values()) == ["after", "before"]


def test_a_table_that_is_gone_before_it_could_be_read_stops_nothing(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline(**{"publication.name": "everything", "publication.autocreate.mode": "disabled"})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        daemon.pause()  # it looks for new tables now and then, and might find this one in time
        connection.execute("CREATE TABLE staging (id int PRIMARY KEY)")
        connection.execute("INSERT INTO staging VALUES (1)")
        connection.execute("DROP TABLE staging")
        connection.execute("ALTER TABLE item RENAME TO passing")
        connection.execute("INSERT INTO passing VALUES (2, 'in passing')")
        connection.execute("ALTER TABLE passing RENAME TO thing")
        connection.execute("INSERT INTO thing VALUES (3, 'after')")
        daemon.resume()
        daemon.wait_until(lambda: any(state.table == "thing" for state in made.tables()))
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert "public.staging" in daemon.command.log.read_text()
    records = made.log()
    assert {record.topic for record in records} == {f"{topic_prefix}.public.thing"}
    assert sorted(row["v"] for row in state_of(records).values()) == ["after", "in passing"]
